"""`softbench inspect`: the code generated for one case of one backend, collected in its own worker (`softbench.worker.code_capture`)."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from softbench.core.case import Case, parse_op
from softbench.core.errors import SoftbenchError, UsageError
from softbench.core.files import not_written
from softbench.core.inspection import KINDS, Artifact, Inspection
from softbench.core.messages import Failure, InspectCase, Skip
from softbench.core.text import unknown
from softbench.plan.settings import Settings
from softbench.plugins.select import select
from softbench.plugins.source import origins
from softbench.plugins.static_scan import require_python
from softbench.processes.session import Session
from softbench.processes.worker_pool import Lost
from softbench.run import operations

SOURCE = "source"


def inspect(settings: Settings, name: str, case: Case) -> Inspection:
    """The code and facts of a case, on the device of the settings.

    Raises:
        UsageError: the backend or device does not exist, cannot run here, or does not support the case.
        SoftbenchError: the worker failed, crashed or hung.
    """
    require_python(settings.plugins)
    with Session(
        settings.device, settings.timeout["import"], operations.sources([parse_op(case.op)[0]], origins(settings.plugins))
    ) as session:
        opened = session.open_for([name])
        chosen = select([slot.info for slot in opened], [name], yardstick=False, flag="inspect")[-1]
        slot = next(slot for slot in opened if slot.info is chosen)
        session.drop(opened)  # this backend's worker too: it may have loaded another backend of its source first
        if reason := session.revive([slot]).get(slot):
            raise SoftbenchError(f"{name}: {reason}")
        if slot.worker is None:
            raise AssertionError("a revived slot has a worker")
        request = InspectCase(replace(case, device=session.device), settings.seed)
        reply = session.pool.ask(slot.worker, request, settings.timeout["build"], "inspect")
    if isinstance(reply, Lost | Failure):
        raise SoftbenchError(f"{name}: {reply.reason}")
    if isinstance(reply, Skip):
        raise UsageError(f"{name}: {reply.reason}")
    return reply.inspection


def kinds(text: str) -> tuple[str, ...]:
    """The kinds of code that `--show` names.

    Raises:
        UsageError: an unknown kind.
    """
    if text in ("all", "none"):
        return KINDS if text == "all" else ()
    wanted = tuple(word.strip() for word in text.split(","))
    for word in wanted:
        if word not in KINDS:
            raise UsageError(f"--show: {unknown(word, (*KINDS, 'all', 'none'), 'kind')}")
    return wanted


def make_folder(folder: Path) -> None:
    """Create the folder for the files, and try to write into it.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise not_written(f"--out {folder}", error) from None


def write(found: Inspection, folder: Path) -> list[Path]:
    """Write each piece of code to its own file in the folder.

    Raises:
        UsageError: it cannot be written.
    """
    written = []
    try:
        for artifact in found.artifacts:
            file = folder / artifact.name
            file.write_text(artifact.text)
            written.append(file)
    except OSError as error:
        raise not_written(f"--out {folder}", error) from None
    return written


def left_out(found: Inspection, shown: tuple[str, ...]) -> list[Artifact]:
    """The pieces of code that are not shown."""
    return [artifact for artifact in found.artifacts if artifact.kind not in shown]
