"""The judge's process (`softbench.judge.main`), from the side of the command line, which never imports torch."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from msgspec import Struct

from softbench.core.case import Case
from softbench.core.errors import UsageError, WorkersError
from softbench.core.json import JsonObject, from_json, to_json
from softbench.core.text import one_line
from softbench.ops import registry
from softbench.plugins.source import PluginSource
from softbench.processes.worker_log import signal_name

END_SECONDS = 20.0
_CODE = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from softbench.judge.main import main; main()"


class JudgeCase(Struct, frozen=True):
    """The request to judge a backend on a case."""

    device: str
    """As `--device`."""
    timeout: dict[str, float]
    """Deadlines by phase, seconds."""
    private: tuple[str, ...]
    """Files that no plugin may be able to read."""
    operations: dict[str, bytes]
    """Files of users' operations, each with the layouts of a problem's cases."""
    source: PluginSource
    case: Case
    backend: str | None
    """Its name, which a source of several needs."""


class Advanced(Struct, frozen=True, tag=True):
    """What the judge does now; an answer follows."""

    done: int
    """Challenges that it has made."""
    total: int
    """Challenges that it makes."""
    now: str


class Found(Struct, frozen=True, tag=True):
    """The answer to a `JudgeCase`."""

    judgement: JsonObject
    """As `softbench.judge.judgement.Judgement.document`, with the device's name."""


class NotJudged(Struct, frozen=True, tag=True):
    """The answer if an error that was expected ended it."""

    error: str
    exit_code: int


class JudgeProcess:
    """A process of `softbench.judge`. Leaving the context ends it and its workers."""

    def __init__(self, device: str, timeout: Mapping[str, float], private: Sequence[Path] = ()) -> None:
        """`device`, `timeout` and `private`: as in `JudgeCase`."""
        self.log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - it lives as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _CODE, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            start_new_session=True,  # a terminal's Ctrl-C reaches this process only, which then ends the other
        )
        self.device, self.timeout = device, dict(timeout)
        self.private = tuple(str(file.resolve()) for file in private)

    def __enter__(self) -> JudgeProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self.process.terminate()
        try:
            self.process.communicate(timeout=END_SECONDS)  # the end of its stdin ends it
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
        self.log.close()

    def ask(
        self, source: PluginSource, case: Case, backend: str | None, advance: Callable[[int, int, str], object] = lambda *now: None
    ) -> JsonObject:
        """The judgement of a backend on a case (`Found.judgement`). `advance` gets the values of each `Advanced` before it.

        Raises:
            UsageError: the device does not exist, or the plugin could read a private file.
            WorkersError: the judge's process failed.
        """
        if self.process.stdin is None or self.process.stdout is None:
            raise AssertionError("it was started with pipes")
        request = JudgeCase(
            self.device, self.timeout, self.private, dict.fromkeys(registry.files(), b"") | registry.layouts(), source, case, backend
        )
        with suppress(BrokenPipeError):  # the read below finds its end
            self.process.stdin.write(json.dumps(to_json(request)) + "\n")
            self.process.stdin.flush()
        for line in self.process.stdout:
            answer: Advanced | Found | NotJudged = from_json(Advanced | Found | NotJudged, json.loads(line))  # type: ignore[arg-type]
            if isinstance(answer, NotJudged):
                raise (UsageError if answer.exit_code == UsageError.exit_code else WorkersError)(answer.error)
            if isinstance(answer, Found):
                return answer.judgement
            advance(answer.done, answer.total, answer.now)
        self.process.wait(END_SECONDS)
        self.log.seek(0)
        code = self.process.returncode
        last = self.log.read().strip().splitlines() or [f"exit code {code}"]
        how = f"was killed ({signal_name(-code)})" if code < 0 else f"failed: {one_line(last[-1])}"
        raise WorkersError(f"the judge's process {how}; try: softbench doctor")
