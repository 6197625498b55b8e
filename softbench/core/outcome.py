"""The types that travel between planning, workers, results and views.

All are frozen. Raw samples are kept; statistics are derived from them (`softbench.core.statistics`) and never stored instead.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from softbench.core.case import Case

LARGEST = sys.float_info.max
Finite = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
"""A number that is neither infinite nor NaN."""
NotNegative = Annotated[float, Meta(ge=0, le=LARGEST)]
Us = Annotated[float, Meta(gt=0, le=LARGEST)]
"""The microseconds of a sample."""
Count = Annotated[int, Meta(ge=0)]


class Grade(StrEnum):
    """The class of an output (`softbench.ops.check`)."""

    PASS = "pass"
    SAMPLED = "sampled"
    """A pass by the sampled bound of a problem: what its reference loses, times a factor."""
    TOLERANCE = "tolerance"
    """Beyond the sampled bound, and within the problem's own tolerance."""
    LOW_PRECISION = "low-precision"
    """Intermediates were rounded to 16 bits, or in float32 the terms of the exponent."""
    FINITE_ONLY = "finite-only"
    """NaN in rows that hold -inf, and right in all others."""
    YARDSTICK = "yardstick"
    """The yardstick: a copy or an add, compared bit by bit."""
    WRONG = "wrong"
    UNVERIFIED = "unverified"
    """The float64 reference could not be computed; no bandwidth is published."""


PASSES = frozenset({Grade.PASS, Grade.SAMPLED})
"""Grades of outputs within the bound."""
LIMITED = frozenset({Grade.LOW_PRECISION, Grade.FINITE_ONLY, Grade.TOLERANCE})
"""Grades whose results are published with a mark."""


class Status(StrEnum):
    """How a cell ended; the CSV's `status`."""

    OK = "ok"
    WRONG = "wrong"
    FAILED = "failed"
    TIMEOUT = "timeout"
    OOM = "oom"
    UNVERIFIED = "unverified"
    CHECKED = "checked"
    """Correct and not timed: only an interpreter runs it here."""
    SKIPPED = "skipped"
    UNAVAILABLE = "unavailable"


FAILURES = frozenset({Status.WRONG, Status.FAILED, Status.TIMEOUT, Status.OOM})
"""The statuses that make a run's exit code 1."""
UNTRIED = frozenset({Status.SKIPPED, Status.UNAVAILABLE})
"""The statuses of cells that no worker computed."""


@dataclass(frozen=True, slots=True)
class Build:
    """The build: prepare, first call and synchronization."""

    seconds: NotNegative
    cache: str
    """`cold` (a compiler ran), `cached` (its earlier output was found), or empty (nothing is compiled)."""
    compile_s: Finite | None = None
    """Seconds of `seconds` in torch.compile; None if it compiled nothing."""
    graph_breaks: int | None = None
    """Places where torch.compile left a part of the function to Python; None if it compiled nothing."""
    reuses_output: bool = False
    """True if the backend's next call overwrites the last output."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The accuracy of an output."""

    grade: Grade
    worst: float
    """max(|out - ref| / bound) over all elements; at most 1 passes. inf if NaN or infinities differ, except for `finite-only`."""
    detail: str
    """Why the output does not pass; empty for a pass."""

    @staticmethod
    def wrong(reason: str) -> Accuracy:
        """The accuracy of an output that is wrong whatever its values are."""
        return Accuracy(Grade.WRONG, float("inf"), reason)

    @property
    def rank(self) -> tuple[bool, float]:
        """The larger of two is the one to keep for a cell whose output is not wrong."""
        return self.grade is Grade.FINITE_ONLY, self.worst


@dataclass(frozen=True, slots=True)
class ErrorMetrics:
    """Error metrics of other tools, over all finite elements of an output. They do not affect the verdict."""

    ulp: float
    """The largest |out - ref| in units in the last place of `ref` in the output's dtype."""
    row_sum: float
    """The largest difference between the sum of a row of the output and that of the reference."""
    frobenius: float
    """||out - ref|| / ||ref||; 0 if both are 0."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """NVML's reading of the GPU after a batch, or how busy the CPU was; an unsupported value is None, and a whole one stays an int."""

    sm_clock_mhz: int | Finite | None = None
    memory_clock_mhz: int | Finite | None = None
    power_w: int | Finite | None = None
    temperature_c: int | Finite | None = None
    reasons: int | None = None
    """NVML's clocks-event reasons, a bit mask."""
    throttled: str = ""
    """Why the GPU was slowed, or the CPU not free (`softbench.worker.timing.telemetry`); empty if nothing slowed the batch."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The samples of one backend in one round."""

    process: Count
    """Number of the process set, from 0."""
    round: Count
    """Number of the round in that set, from 0."""
    position: Count
    """The backend's place in the round's order, from 0."""
    samples_us: Annotated[tuple[Us, ...], Meta(min_length=1)]
    """Latencies of single calls in microseconds, in order; on the CPU per call of a block."""
    telemetry: Telemetry | None = None
    """None on the CPU and without NVML."""

    @property
    def throttled(self) -> bool:
        """True if the GPU was slowed: such samples count only if a cell has no others."""
        return self.telemetry is not None and bool(self.telemetry.throttled)


@dataclass(frozen=True, slots=True)
class Timing:
    """All batches of a cell."""

    batches: Annotated[tuple[Batch, ...], Meta(min_length=1)]
    kind: str
    """The timer that took them: one of TIMERS, or CPU_TIMER. `do_bench` in a run of `queued`: the calls wait for the GPU."""
    l2: str = ""
    """`cold` (flushed before every call), `warm`, or empty on the CPU and in results of earlier versions."""
    stopped: str = ""
    """Why sampling stopped: `precise`, `limit` or `fixed` (`softbench.core.statistics`)."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Device time, host time, kernels and memory of a call on a GPU."""

    device_us: tuple[Us, ...] = ()
    """Device times of single calls, microseconds."""
    host_us: tuple[Us, ...] = ()
    """Host times of single calls, microseconds."""
    kernels: tuple[str, ...] = ()
    """Names of the kernels, copies and fills of a call, in order."""
    note: str = ""
    """Why the device time is missing; empty if it is not."""
    peak_bytes: Count | None = None
    """Peak of torch's allocator during a call, with outputs and without inputs, bytes."""
    recompiles: Count | None = None
    """Graphs that torch.compile made after the build; None if it made no graph at all."""
    do_bench_us: tuple[Us, ...] = ()
    """What `triton.testing.do_bench` finds for single calls in a short sample, microseconds: the host is in it where it is slower."""
    users_us: tuple[tuple[Us, ...], ...] = ()
    """Host times of single calls that users make, microseconds: without autograd, recorded by it, and with the backward. Then those of the
    reference in the same process, if it has such a call. Empty unless the timer is `host`."""
    product_tflops: NotNegative | None = None
    """Of the yardstick, in a case with matrix products: their rate alone, or that of the fastest one of its dtype, in 10^12 a second."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What the judge of `--judge separate` measured: microseconds of a call, as docs/judge.md defines them."""

    judgements: Annotated[int, Meta(ge=1)]
    """How often the cell was judged: twice if the first judgement disputed it. The times are those of the last one."""
    us: NotNegative | None = None
    low_us: NotNegative | None = None
    high_us: NotNegative | None = None
    at_most_us: NotNegative | None = None
    least_us: NotNegative | None = None
    """None on a GPU."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Built, checked and timed."""

    build: Build
    accuracy: Accuracy
    timing: Timing
    profile: Profile = Profile()
    judged: Judged | None = None
    """None without the judge."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """Not tried: the backend does not support the case or the machine."""

    reason: str
    unavailable: bool = False
    """True if the backend cannot run on this machine."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Tried without a result to publish."""

    status: Status
    stage: str
    """`import`, `build`, `check` or `time`."""
    reason: str
    """One line that names the stage."""
    build: Build | None = None
    accuracy: Accuracy | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """Built and correct, and not timed here."""

    build: Build
    accuracy: Accuracy
    reason: str


Outcome = Measured | Checked | Skipped | Failed


@dataclass(frozen=True, slots=True)
class Record:
    """One cell: one backend on one case."""

    backend: str
    case: Case
    outcome: Outcome
    source: str = ""
    """Hash of the backend's source files; a resumed run keeps only cells with the present hash."""
    unit: str = ""
    """The unit that measured it (`softbench.core.machine.unit_of`); empty in results of earlier versions."""

    @property
    def status(self) -> Status:
        match self.outcome:
            case Measured():
                return Status.OK
            case Checked():
                return Status.CHECKED
            case Skipped(unavailable=True):
                return Status.UNAVAILABLE
            case Skipped():
                return Status.SKIPPED
            case Failed(status=status):
                return status
