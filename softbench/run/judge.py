"""`softbench judge`: one untrusted plugin, checked and timed by a process that it cannot reach (`softbench.judge`)."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from softbench.core.case import YARDSTICK, Case
from softbench.core.errors import SoftbenchError, UsageError, WorkersError
from softbench.core.json_types import JsonObject
from softbench.core.outcome import Status
from softbench.core.text import one_line
from softbench.ops import registry
from softbench.plan import sweep
from softbench.plan.flags import from_flags
from softbench.plan.settings import Settings, with_axes
from softbench.plugins.select import needed
from softbench.plugins.source import FILE, PluginSource, origins
from softbench.results import signature

END_SECONDS = 20.0
_CODE = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from softbench.judge.main import main; main()"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A signed verdict."""

    document: JsonObject

    @property
    def text(self) -> str:
        """The verdict as JSON."""
        return json.dumps(self.document, indent=1, allow_nan=False) + "\n"

    @property
    def exit_code(self) -> int:
        """0 if every output was right and the clock has a figure or a limit, else 1."""
        return 0 if self.document["status"] == Status.OK else 1


def judge(settings: Settings, plugin: Path | None, case: Case, backend: str | None, key: Path, version: str) -> Verdict:
    """Judge one backend on one case.

    Args:
        settings: device and deadlines.
        plugin: `FILE`, or `FILE:FUNCTION`; None for an installed backend.
        case: its device is replaced by that of the settings.
        backend: its name, which an installed backend and a file of several need.
        key: the file of the key; it is made if it does not exist.
        version: softbench's.

    Raises:
        UsageError: the file, the backend, the key or the device does not exist, or the plugin could read the key.
        WorkersError: the judge's process failed.
    """
    source = _source(plugin, backend)
    secret, content = signature.read_key(key, make=True), source.file.read_bytes() if source.file else b""
    request = {
        "source": asdict(source),
        "case": asdict(case),
        "backend": backend,
        "device": settings.device,
        "timeout": settings.timeout,
        "operations": registry.files(),
        "private": [str(key.resolve())],
    }
    found = _ask(request)
    facts: JsonObject = {
        "softbench": version,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "plugin": source.shown,
        "sha256": hashlib.sha256(content).hexdigest() if content else "",
        "case": case.key,
    }
    return Verdict(signature.signed({**facts, **found}, secret))


def _source(plugin: Path | None, backend: str | None) -> PluginSource:
    """The file, or the entry point of an installed backend."""
    if plugin is None:
        found = [source for source in needed(origins(()), [backend or ""]) if source.label != YARDSTICK]
        if len(found) != 1:
            raise UsageError(f"--backend {backend}: no installed backend of that name; see: softbench list")
        return found[0]
    source = origins([plugin])[-1]
    if source.kind != FILE:
        raise UsageError(f"{plugin}: no file; the judge takes a Python file")
    return source


def one_case(flags: Mapping[str, Any]) -> Case:
    """The case that flags name. Raises UsageError if they name several."""
    try:
        (case,) = sweep.cases([with_axes(sweep.Sweep((4096,), (4096,)), from_flags(flags))], "cuda")
    except ValueError:
        raise UsageError("softbench judge takes one case: give one --dtype, one --direction, and one --shape with one --dim") from None
    return case


def verified(file: Path, key: Path) -> JsonObject:
    """The verdict in a file whose signature is right.

    Raises:
        SoftbenchError: the signature is not that of this key.
        UsageError: there is no such file or key.
    """
    document = signature.read_document(file)
    if not signature.is_signed(document, signature.read_key(key)):
        raise SoftbenchError(f"{file}: not signed with the key in {key}, or changed since")
    return document


def _ask(request: JsonObject) -> JsonObject:
    """The answer of a new judge's process."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _CODE, json.dumps(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a terminal's Ctrl-C reaches this process only, which then ends the other
    )
    try:
        output, errors = process.communicate(json.dumps(request))
    except BaseException:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        raise
    try:
        answer = json.loads(output)
    except ValueError:
        lines: Sequence[str] = errors.strip().splitlines() or [f"exit code {process.returncode}"]
        raise WorkersError(f"the judge's process failed: {one_line(lines[-1])}; try: softbench doctor") from None
    if "error" in answer:
        raise (UsageError if answer["exit_code"] == UsageError.exit_code else WorkersError)(answer["error"])
    return answer
