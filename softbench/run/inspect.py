"""`softbench inspect`: one case of one backend, built and looked at in a worker of its own (`softbench.worker.code_capture`)."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from softbench.core.case import Case
from softbench.core.errors import SoftbenchError, UsageError
from softbench.core.inspection import KINDS, Artifact, Inspection, from_json
from softbench.plan.settings import Settings
from softbench.plugins.select import select
from softbench.plugins.source import origins
from softbench.processes.pool import Lost
from softbench.processes.session import Session

SOURCE = "source"


def inspect(settings: Settings, name: str, case: Case) -> Inspection:
    """Look at a case; its device is the settings'.

    Raises:
        UsageError: no such backend or device, it cannot run here, or cannot do the case.
        SoftbenchError: it failed, crashed or hung; in one line.
    """
    with Session(settings.device, settings.timeout["import"], origins(settings.plugins)) as session:
        opened = session.open_for([name])
        chosen = select([slot.info for slot in opened], [name], flag="inspect")[-1]
        slot = next(slot for slot in opened if slot.info is chosen)
        session.drop(opened)  # this backend's worker too: it may have loaded another backend of its source first
        if reason := session.revive([slot]).get(slot):
            raise SoftbenchError(f"{name}: {reason}")
        if slot.worker is None:
            raise AssertionError("a revived slot has a worker")
        message = {"op": "inspect", "case": asdict(replace(case, device=session.device)), "seed": settings.seed}
        reply = session.pool.ask(slot.worker, message, settings.timeout["build"], "inspect")
    if isinstance(reply, Lost):
        raise SoftbenchError(f"{name}: {reply.reason}")
    if failure := reply.get("failed"):
        raise SoftbenchError(f"{name}: {failure['reason']}")
    if skip := reply.get("skip"):
        raise UsageError(f"{name}: {skip}")
    try:
        return from_json(reply["inspection"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise SoftbenchError(f"{name}: the worker sent an invalid reply") from None


def kinds(text: str) -> tuple[str, ...]:
    """What `--show` asks for: kinds of code, `all` or `none`.

    Raises:
        UsageError: an unknown kind.
    """
    if text in ("all", "none"):
        return KINDS if text == "all" else ()
    wanted = tuple(word.strip() for word in text.split(","))
    for word in wanted:
        if word not in KINDS:
            raise UsageError(f"--show: unknown '{word}'; known are {', '.join(KINDS)}, all and none")
    return wanted


def make_folder(folder: Path) -> None:
    """The folder for the files, which can be written to.

    Raises:
        UsageError: it cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"--out {folder}: cannot be written: {error.strerror}") from None


def write(found: Inspection, folder: Path) -> list[Path]:
    """Every piece of code as a file of the folder.

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
        raise UsageError(f"--out {folder}: cannot be written: {error.strerror}") from None
    return written


def left_out(found: Inspection, shown: tuple[str, ...]) -> list[Artifact]:
    """What there is beside what is shown."""
    return [artifact for artifact in found.artifacts if artifact.kind not in shown]
