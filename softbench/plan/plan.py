"""From settings and a look at the machine to a plan: cases, backends, and who may be alive with whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from softbench.core.case import CPU_TIMER, Case
from softbench.plan.settings import Settings
from softbench.plugins.info import BackendInfo

CONTEXT_BYTES = {"cuda": 800 * 2**20, "cpu": 400 * 2**20}
"""What a worker holds before any case: a CUDA context and do_bench's 256 MiB flush buffer; on the CPU, torch and Inductor."""
WORKING_TENSORS = 10
"""(M, N) tensors that building, checking and timing a case hold at most: inputs twice (copies, or the second set), outputs of up to
three calls, a naive backend's temporaries."""
CHECK_BYTES = 640 * 2**20
"""The float64 temporaries of the check (`softbench.ops.softmax.inputs.CHUNK_BYTES`), with a margin."""
CALL_OVERHEAD = 1.4  # a batch takes this times its samples: warm-up estimate, L2 flushes, synchronizing
BUILD_SECONDS = {
    "compile": 1.5,
    "compile-torch": 1.5,
}  # of one shape, roughly, with variants; what is not named builds in no time


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does, before it does it."""

    settings: Settings
    cases: tuple[Case, ...]
    offers: tuple[BackendInfo, ...]
    device: str
    """`cuda` or `cpu`."""
    device_name: str
    env: dict[str, str]
    """Added to every worker's environment: it sees its device as the only one."""
    free_bytes: int
    groups: tuple[tuple[str, ...], ...]
    """Backends that are alive together; one group is an interleaved run."""
    facts: dict[str, object]
    """Of the machine, stored beside the figures."""
    notes: tuple[str, ...]
    """What the user should know before it starts."""

    @property
    def timer(self) -> str:
        """What makes the headline figure."""
        return self.settings.timer if self.device == "cuda" else CPU_TIMER

    @property
    def l2(self) -> str:
        """`cold` or `warm`; empty on the CPU, where nothing is flushed."""
        return self.settings.l2 if self.device == "cuda" else ""

    def takes_turns(self, case: Case, workers: int) -> bool:
        """True when so many workers cannot all hold the case's buffers at once."""
        each = CONTEXT_BYTES[self.device] + WORKING_TENSORS * case.tensor_bytes + CHECK_BYTES
        return workers * each > self.settings.memory_share * self.free_bytes

    def estimate_seconds(self) -> float:
        """Rough wall time: batches, checks and known builds."""
        settings, able = self.settings, [offer for offer in self.offers if not (offer.broken or offer.unavailable)]
        batch = (settings.rounds + settings.max_rounds) / 2 * (settings.warmup_ms + settings.batch_ms) / 1e3 * CALL_OVERHEAD
        cell = sum(batch + 0.05 + BUILD_SECONDS.get(offer.name.partition(":")[0], 0.0) for offer in able)
        return settings.processes * (5 + len(self.cases) * cell)


def most_alive(cases: Sequence[Case], device: str, budget: float) -> int:
    """How many workers fit beside each other when only one of them holds a case's buffers at a time."""
    largest = max((case.tensor_bytes for case in cases), default=0)
    rest = budget - WORKING_TENSORS * largest - CHECK_BYTES
    return max(1, int(rest // CONTEXT_BYTES[device]))


def grouped(names: Sequence[str], most: int, idle: Sequence[str] = ()) -> tuple[tuple[str, ...], ...]:
    """The names in groups of at most `most`, in order; `idle` ones, which never have a worker, are in the last group beside them."""
    groups = [tuple(names[i : i + most]) for i in range(0, len(names), most)] or [()]
    return (*groups[:-1], (*groups[-1], *idle))
