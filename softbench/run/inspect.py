"""`softbench inspect`: one case of one backend, built and looked at in a worker of its own (`softbench.worker.code_capture`)."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from softbench.core.case import Case
from softbench.core.errors import SoftbenchError, UsageError
from softbench.core.inspection import KINDS, Artifact, Inspection, from_json
from softbench.plan.settings import Settings
from softbench.plugins import select as registry
from softbench.plugins.source import origins
from softbench.processes import slot as lanes_of
from softbench.processes.pool import Lost, Pool
from softbench.run.session import choose_device, environment, open_for, probe

SOURCE = "source"


def inspect(settings: Settings, name: str, case: Case) -> Inspection:
    """Look at a case; its device is the settings'.

    Raises:
        UsageError: no such backend or device, it cannot run here, or cannot do the case.
        SoftbenchError: it failed, crashed or hung; in one line.
    """
    doors = origins(settings.plugins)
    with Pool() as pool:
        look = probe(pool, settings.timeout["import"])
        device, gpu = choose_device(settings.device, look)
        lanes = open_for(pool, doors, [name], device, gpu, look, settings.timeout["import"])
        offers = registry.select([lane.offer for lane in lanes], [name], flag="inspect")
        lane = next(lane for lane in lanes if lane.offer is offers[-1])
        for other in lanes:  # the worker itself too: what it loaded at first may be another of its door's backends
            other.drop(pool)
        if failed := lanes_of.revive(pool, [lane], device, environment(gpu, look), settings.timeout["import"]).get(lane):
            raise SoftbenchError(f"{name}: {failed.reason}")
        if lane.worker is None:
            raise AssertionError("a lane that was revived has a worker")
        message = {"op": "inspect", "case": asdict(replace(case, device=device)), "seed": settings.seed}
        reply = pool.ask(lane.worker, message, settings.timeout["build"], "inspect")
    if isinstance(reply, Lost):
        raise SoftbenchError(f"{name}: {reply.reason}")
    if failure := reply.get("failed"):
        raise SoftbenchError(f"{name}: {failure['reason']}")
    if skip := reply.get("skip"):
        raise UsageError(f"{name}: {skip}")
    try:
        return from_json(reply["inspection"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise SoftbenchError(f"{name}: its process gave an answer that is none") from None


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
