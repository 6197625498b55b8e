"""`softbench judge`: one untrusted plugin, checked and timed by a process that it cannot reach (`softbench.judge`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.machinery import all_suffixes
from pathlib import Path

from softbench.core.case import YARDSTICK, Case
from softbench.core.errors import SoftbenchError, UsageError
from softbench.core.json import JsonObject
from softbench.core.outcome import Status
from softbench.core.text import did_you_mean
from softbench.plan.settings import Settings
from softbench.plugins.select import needed
from softbench.plugins.source import FILE, PluginSource, origins
from softbench.processes.judge_process import JudgeProcess
from softbench.processes.worker_pool import close_kept
from softbench.results import labels
from softbench.run import signature


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
        """0 if every output was right and the clock has a time or a limit, else 1."""
        return 0 if self.document["status"] == Status.OK else 1


def judge(
    settings: Settings,
    plugin: Path | None,
    case_of: Callable[[], Case],
    backend: str | None,
    key: Path,
    version: str,
    advance: Callable[[int, int, str], object],
) -> Verdict:
    """Judge one backend on one case.

    Args:
        settings: device and deadlines.
        plugin: `FILE`, or `FILE:FUNCTION`; None for an installed backend.
        case_of: gives the case, while the judge's process starts; the settings' device replaces its own.
        backend: its name, which an installed backend and a file of several need.
        key: the file of the key; it is made if it does not exist.
        version: softbench's.
        advance: as in `JudgeProcess.ask`.

    Raises:
        UsageError: the file, the backend, the key or the device does not exist, or the plugin could read the key; also those of `case_of`.
        WorkersError: the judge's process failed.
    """
    source = _source(plugin, backend)
    made = not key.exists()
    secret, content = signature.read_key(key, make=True), source.file.read_bytes() if source.file else b""
    try:
        with JudgeProcess(settings.device, settings.timeout, [key]) as process:
            case = case_of()
            close_kept()  # of the worker that read the operation: nothing of it shall run beside the challenges
            found = process.ask(source, case, backend, advance)
    except UsageError:
        if made:  # it may be where the plugin can read it
            key.unlink(missing_ok=True)
        raise
    facts: JsonObject = {
        "softbench": version,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "plugin": source.shown,
        "sha256": hashlib.sha256(content).hexdigest() if content else "",
        "case": case.key,
    }
    return Verdict(signature.signed({**facts, **found, "noisy": noisy(found)}, secret))


def noisy(found: JsonObject) -> bool:
    """True if a judgement's time is uncertain: other processes may have started or ended meanwhile."""
    us, low, high = (found[name] for name in ("us", "low_us", "high_us"))
    return bool(found["status"] == Status.OK and (us is None or labels.noisy(us, low, high)))


def _source(plugin: Path | None, backend: str | None) -> PluginSource:
    """The file, or the entry point of an installed backend."""
    if plugin is None:
        if backend == YARDSTICK:
            raise UsageError(f"--backend {backend}: the yardstick is not judged; see: softbench list")
        found = [source for source in needed(origins(()), [backend or ""]) if source.label != YARDSTICK]
        if len(found) != 1:
            close = did_you_mean(backend or "", (source.label for source in origins(()) if source.label != YARDSTICK))
            raise UsageError(f"--backend {backend}: no installed backend of that name; {close}see: softbench list")
        return found[0]
    try:
        source = origins([plugin])[-1]
    except UsageError as error:
        installed = any(source.label == str(plugin) for source in origins(()))
        raise UsageError(str(error).removeprefix("--plugin ") + f"; for an installed backend give --backend {plugin}" * installed) from None
    if source.kind != FILE or not source.target.endswith((".json", *all_suffixes())):
        raise UsageError(f"{plugin}: is no Python file, and the judge takes one")
    return source


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
