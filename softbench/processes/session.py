"""One command's worker processes: the pool, the machine, the chosen device, and the workers of plugin sources."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from softbench.core.errors import UsageError, WorkersError
from softbench.core.machine import Gpu, Machine
from softbench.core.messages import Failure, ProbeMachine
from softbench.core.toolchain import FRESH_CACHES
from softbench.plugins.select import missing, needed
from softbench.plugins.source import PluginSource
from softbench.processes.activity import Activity
from softbench.processes.sanitizer import Sanitizer
from softbench.processes.slot import WorkerSlot, discover, distinct, revive
from softbench.processes.worker_pool import Lost, Pool, opened


class Session:
    """A worker pool on a machine that has been probed. Leaving the context ends every worker.

    Every command opens its workers in this order: start the pool, probe the machine, choose the device, load the plugin sources.
    """

    def __init__(
        self,
        device: str,
        import_seconds: float,
        sources: Sequence[PluginSource] = (),
        threads: int | None = None,
        activity: Activity | None = None,
        sanitizer: Sanitizer | None = None,
        *,
        fresh_caches: bool = False,
    ) -> None:
        """`device` is `auto`, `cpu`, `cuda` or `cuda:K`; `import_seconds` is the deadline of the probe and of each load;
        `threads`, `activity` and `sanitizer`: as in `Pool`. With `fresh_caches` each worker has empty caches of compilers.

        Raises:
            UsageError: that GPU does not exist.
            WorkersError: the machine cannot be probed.
        """
        self.import_seconds, self.sources = import_seconds, sources
        self._fresh_caches = fresh_caches
        self.pool = opened(activity, threads, sanitizer, [source.python for source in sources if source.python])
        try:
            self.machine = probe(self.pool, import_seconds)
            self.device, self.gpu = choose_device(device, self.machine)
        except BaseException:
            self.pool.close(gently=False)
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.pool.close(gently=kind is None)

    @property
    def exclusive(self) -> bool:
        """True if the GPU takes one process at a time."""
        return self.gpu is not None and self.gpu.exclusive

    @property
    def environment(self) -> dict[str, str]:
        """Variables for every worker, so that it sees its device as the only one."""
        return environment(self.gpu, self.machine) | ({FRESH_CACHES: f"{self.pool.folder}/caches"} if self._fresh_caches else {})

    def open(self, sources: Sequence[PluginSource]) -> list[WorkerSlot]:
        """Load plugin sources, all at once unless the GPU takes one process at a time."""
        return discover(self.pool, sources, self.device, self.environment, self.import_seconds, together=not self.exclusive)

    def open_for(self, names: Sequence[str] | None, *, yardstick: bool = True) -> list[WorkerSlot]:
        """Load the session's plugin sources that can hold these backends (None: all), as some sources import for seconds."""
        first = needed(self.sources, names, yardstick=yardstick)
        slots = self.open(first)
        rest = [source for source in self.sources if source not in first]
        if rest and missing([slot.info for slot in slots], names):
            return distinct(slots + self.open(rest))
        return slots

    def revive(self, slots: Sequence[WorkerSlot]) -> dict[WorkerSlot, str]:
        """Give each slot without a worker a new one; the reason for each whose plugin does not load."""
        lost = revive(self.pool, slots, self.device, self.environment, self.import_seconds)
        return {slot: failed.reason for slot, failed in lost.items()}

    def drop(self, slots: Sequence[WorkerSlot]) -> None:
        """End the workers of these slots."""
        for slot in slots:
            slot.drop(self.pool)


def environment(gpu: Gpu | None, machine: Machine) -> dict[str, str]:
    """Variables for a worker, so that it sees its device as the only one."""
    if gpu is None:
        return {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1"}  # HIP takes an empty list for all devices
    if len(machine.gpus) <= 1:
        return {}
    return {"HIP_VISIBLE_DEVICES": gpu.hip_device} if gpu.hip_device else {"CUDA_VISIBLE_DEVICES": gpu.uuid}


def probe(pool: Pool, deadline: float) -> Machine:
    """Ask a probe worker about the machine.

    Raises:
        WorkersError: the worker died or did not reply.
    """
    worker = pool.spawn("probe", python=next(iter(pool.pythons), ""))  # of an environment, whose torch is measured
    reply = pool.ask(worker, ProbeMachine(), deadline, "probe")
    if isinstance(reply, Lost | Failure):
        raise WorkersError(
            f"the machine could not be probed: {reply.reason}; try: softbench doctor, or --device cpu with CUDA_VISIBLE_DEVICES=''"
        )
    pool.discard(worker)
    return reply.machine


def choose_device(wanted: str, machine: Machine) -> tuple[str, Gpu | None]:
    """`cuda` and its GPU, or `cpu` and None.

    Raises:
        UsageError: the requested GPU does not exist.
    """
    if wanted == "cpu" or (wanted == "auto" and not machine.gpus):
        return "cpu", None
    if not machine.gpus:
        raise UsageError(f"--device {wanted}: {machine.no_gpu}; use --device cpu, or see: softbench doctor")
    index = int(wanted.partition(":")[2] or 0)
    if index >= len(machine.gpus):
        there = ", ".join(f"cuda:{i} {gpu.name}" for i, gpu in enumerate(machine.gpus))
        raise UsageError(f"--device {wanted}: no such GPU; there are {there}")
    return "cuda", machine.gpus[index]
