"""From settings to a plan, with the machine probed and the plugin sources opened."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from softbench.core import text as units
from softbench.core.case import CPU_TIMER, TIMERS, YARDSTICK
from softbench.core.errors import UsageError, WorkersError
from softbench.core.machine import Gpu, Probe
from softbench.core.text import unknown
from softbench.plan import settings as config, sweep
from softbench.plan.plan import Plan, grouped, most_alive
from softbench.plan.settings import Settings
from softbench.plugins import select as registry
from softbench.plugins.info import BackendInfo
from softbench.plugins.source import PluginSource, origins
from softbench.processes.pool import Lost, Pool
from softbench.processes.slot import WorkerSlot, discover, distinct
from softbench.results import store

DEFAULT_CONFIG = {"cuda": "tutorial", "cpu": "cpu"}


def make_plan(pool: Pool, file: config.Layer, flags: config.Layer, *, quick: bool) -> tuple[Plan, list[WorkerSlot]]:
    """Look at the machine and the plugins, and plan the run that the layers describe (see `config.resolve`).

    Returns the plan and a lane for each of its offers; where all may be alive together, with its worker.

    Raises:
        UsageError: a device, a backend or a reference that is not there, or a timer that this device has not.
        WorkersError: the machine cannot even be probed.
    """
    settings = config.resolve(file, flags, quick=quick)
    doors = origins(settings.plugins)
    look = probe(pool, settings.timeout["import"])
    device, gpu = choose_device(settings.device, look)
    notes = []
    if not settings.sweep:
        settings = config.resolve({**config.load(DEFAULT_CONFIG[device]), **file}, flags, quick=quick)
        if device == "cpu" and settings.device == "auto":
            own = {"M", "N"} <= {**file, **flags}.keys()  # the user's own shapes are not shortened
            notes.append(f"no GPU ({look.no_gpu}): {'measuring' if own else 'a short sweep'} on the CPU instead")
    if device == "cpu" and (settings.timer, settings.l2) != (TIMERS[0], "cold"):
        raise UsageError(f"--timer and --l2 need a GPU; on the CPU the timer is {CPU_TIMER}")
    cases = sweep.cases(settings.sweep, device)
    lanes = open_for(pool, doors, settings.backends, device, gpu, look, settings.timeout["import"])
    offers = registry.select([lane.offer for lane in lanes], settings.backends, yardstick=settings.yardstick)
    chosen = [lane for offer in offers for lane in lanes if lane.offer is offer]
    for lane in lanes:
        if lane not in chosen:
            lane.drop(pool)
    settings = _with_reference(settings, offers, asked="relative_to" in {**file, **flags})
    free = gpu.free_bytes if gpu else look.cpu_free_bytes
    alone = gpu is not None and gpu.exclusive
    most = 1 if alone else most_alive(cases, device, settings.memory_share * free)
    able = [offer.name for offer in offers if not (offer.broken or offer.unavailable)]
    groups = grouped(able, most, [offer.name for offer in offers if offer.name not in able])
    if len(groups) > 1:
        why = "the GPU is in an exclusive compute mode" if alone else "memory holds no more workers"
        notes.append(f"not interleaved: {why}, so {most} of {len(able)} backends are alive at a time")
        for lane in chosen:
            lane.drop(pool)
    if others := gpu.facts.get("gpu_other_processes") if gpu else 0:
        notes.append(f"others use the GPU ({units.count(int(str(others)), 'process')}): what they do disturbs the figures")
    facts = {**look.software, **(gpu.facts if gpu else {}), "device": device, "interleaved": len(groups) == 1}
    name = gpu.name if gpu else look.cpu
    return Plan(settings, cases, offers, device, name, environment(gpu, look), free, groups, facts, tuple(notes)), chosen


def open_doors(pool: Pool, doors: Sequence[PluginSource], device: str, gpu: Gpu | None, look: Probe, deadline: float) -> list[WorkerSlot]:
    """`discover` on the chosen device, all doors at once unless the GPU takes one process at a time."""
    return discover(pool, doors, device, environment(gpu, look), deadline, together=not (gpu and gpu.exclusive))


def open_for(
    pool: Pool, doors: Sequence[PluginSource], names: Sequence[str] | None, device: str, gpu: Gpu | None, look: Probe, deadline: float
) -> list[WorkerSlot]:
    """`open_doors`, but only those that these backends (None: all) may be behind: some import for seconds."""
    first = registry.needed(doors, names)
    lanes = open_doors(pool, first, device, gpu, look, deadline)
    rest = [door for door in doors if door not in first]
    if rest and registry.missing([lane.offer for lane in lanes], names):
        return distinct(lanes + open_doors(pool, rest, device, gpu, look, deadline))
    return lanes


def run_header(plan: Plan, command: str, version: str) -> dict[str, Any]:
    """What is stored of a run beside its cells: how it was made, where, of what."""
    settings = plan.settings
    return {
        "command": command,
        "softbench": version,
        "git_commit": _git_commit(),
        "device_name": plan.device_name,
        "backends": [offer.name for offer in plan.offers],
        "origins": {offer.name: offer.origin.shown for offer in plan.offers},
        "sources": {offer.name: offer.source for offer in plan.offers},
        "yardstick": YARDSTICK,
        "relative_to": settings.relative_to,
        "settings": {**settings.measuring(), "timeout": settings.timeout, "memory_share": settings.memory_share},
        "environment": plan.facts,
        "fingerprint": store.fingerprint(settings.measuring(), plan.facts, version, plan.cases, [offer.name for offer in plan.offers]),
    }


def _git_commit() -> str | None:
    """The commit of the checkout that softbench runs from, `+` behind it when files differ; None outside a checkout."""
    here = Path(__file__).resolve().parents[1]
    if not (here.parent / ".git").exists():
        return None
    with suppress(OSError, subprocess.SubprocessError):
        git = ["git", "-C", str(here.parent), "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
        return subprocess.run(git, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    return None


def environment(gpu: Gpu | None, look: Probe) -> dict[str, str]:
    """A worker sees its device as the only one, whatever order others number them in."""
    if gpu is None:
        return {"CUDA_VISIBLE_DEVICES": ""}
    return {"CUDA_VISIBLE_DEVICES": gpu.uuid} if len(look.gpus) > 1 else {}


def probe(pool: Pool, deadline: float) -> Probe:
    """Ask a probe worker what the machine is.

    Raises:
        WorkersError: it died or did not answer.
    """
    worker = pool.spawn("probe")
    reply = pool.ask(worker, {"op": "probe"}, deadline, "probe")
    if isinstance(reply, Lost) or "failed" in reply:
        reason = reply.reason if isinstance(reply, Lost) else reply["failed"]["reason"]
        raise WorkersError(
            f"the machine could not be probed: {reason}; try: softbench doctor, or --device cpu with CUDA_VISIBLE_DEVICES=''"
        )
    pool.discard(worker)
    data: dict[str, Any] = reply["probe"]
    return Probe(**{**data, "gpus": tuple(Gpu(**gpu) for gpu in data["gpus"])})


def choose_device(wanted: str, look: Probe) -> tuple[str, Gpu | None]:
    """`cuda` and its GPU, or `cpu` and None.

    Raises:
        UsageError: a GPU was asked for that is not there.
    """
    if wanted == "cpu" or (wanted == "auto" and not look.gpus):
        return "cpu", None
    if not look.gpus:
        raise UsageError(f"--device {wanted}: {look.no_gpu}; use --device cpu, or see: softbench doctor")
    index = int(wanted.partition(":")[2] or 0)
    if index >= len(look.gpus):
        there = ", ".join(f"cuda:{i} {gpu.name}" for i, gpu in enumerate(look.gpus))
        raise UsageError(f"--device {wanted}: no such GPU; there are {there}")
    return "cuda", look.gpus[index]


def _with_reference(settings: Settings, offers: Sequence[BackendInfo], *, asked: bool) -> Settings:
    names = [offer.name for offer in offers]
    if settings.relative_to in names:
        return settings
    if asked:
        raise UsageError(f"--relative-to: {unknown(settings.relative_to, names, 'backend')}")
    return replace(settings, relative_to="")
