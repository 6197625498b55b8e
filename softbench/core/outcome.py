"""The types that travel between planning, workers, results and views.

All are frozen. Raw samples are kept; statistics are derived from them (`softbench.core.statistics`) and never stored instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from softbench.core.case import Case


class Grade(StrEnum):
    """What the check against float64 says (`softbench.ops.softmax.tolerance`)."""

    PASS = "pass"
    LOW_PRECISION = "low-precision"
    """Honest, but intermediates were rounded to 16 bits."""
    YARDSTICK = "yardstick"
    """Not a softmax: a copy or an add, compared bit by bit with what it should have moved."""
    WRONG = "wrong"
    UNVERIFIED = "unverified"
    """The reference could not be computed; nothing is published."""


class Status(StrEnum):
    """How a cell ended; the CSV's `status`."""

    OK = "ok"
    WRONG = "wrong"
    FAILED = "failed"
    TIMEOUT = "timeout"
    OOM = "oom"
    UNVERIFIED = "unverified"
    CHECKED = "checked"
    """Right, and not timed: only an interpreter runs it here."""
    SKIPPED = "skipped"
    UNAVAILABLE = "unavailable"


FAILURES = frozenset({Status.WRONG, Status.FAILED, Status.TIMEOUT, Status.OOM})
"""The statuses that make a run's exit code 1."""


@dataclass(frozen=True, slots=True)
class Build:
    """Everything before the second call: prepare, first call, synchronize."""

    seconds: float
    cache: str
    """`cold` (a compiler ran), `cached` (its earlier output was found), or empty (nothing is compiled)."""
    compile_s: float | None = None
    """Of `seconds`, those in torch.compile; None where it compiled nothing."""
    graph_breaks: int | None = None
    """Where torch.compile left a part of the function to Python; None where it compiled nothing."""
    reuses_output: bool = False
    """True when the backend's next call overwrites what a call returned."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The verdict on the very tensor that is timed."""

    grade: Grade
    worst: float
    """max(|out - ref| / bound) over all elements; at most 1 passes. inf where NaN or infinities differ."""
    detail: str
    """Why it is not a pass, in words; empty for a pass."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The GPU right after a batch, as NVML has it; what a card does not tell is None."""

    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    reasons: int | None = None
    """NVML's clocks-event reasons, a bit mask."""
    throttled: str = ""
    """How the GPU was slowed, in words (`softbench.worker.telemetry`); empty where it was not."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The samples of one backend in one round."""

    process: int
    """Which set of workers, from 0."""
    round: int
    """Which round of that set, from 0."""
    position: int
    """The backend's place in the round's order, from 0."""
    samples_us: tuple[float, ...]
    """Latencies of single calls (CPU: of blocks, per call), microseconds, in the order taken."""
    telemetry: Telemetry | None = None
    """None on the CPU and where there is no NVML."""

    @property
    def throttled(self) -> bool:
        """True when the GPU was slowed: its samples count only where there are no others."""
        return self.telemetry is not None and bool(self.telemetry.throttled)


@dataclass(frozen=True, slots=True)
class Timing:
    """All batches of a cell."""

    batches: tuple[Batch, ...]
    kind: str
    """The timer: one of TIMERS, or CPU_TIMER."""
    l2: str = ""
    """`cold` (flushed before every call), `warm`, or empty: on the CPU, and in results of earlier versions."""
    stopped: str = ""
    """Why it was not sampled further: `precise`, `limit` or `fixed` (`softbench.core.stopping`)."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What a call costs apart, and beside time. Times, kernels and memory are those of a GPU."""

    device_us: tuple[float, ...] = ()
    """Of single calls: the sum of their kernels' times, microseconds."""
    host_us: tuple[float, ...] = ()
    """Of single calls: the time it took to issue them, microseconds."""
    kernels: tuple[str, ...] = ()
    """What a call runs on the device, by name, in order; copies and fills too."""
    note: str = ""
    """Why there is no device time, where there should be one."""
    peak_bytes: int | None = None
    """Device memory that a call takes at its peak from torch's allocator, outputs included, inputs not."""
    recompiles: int | None = None
    """Graphs that torch.compile made after the build, when there was nothing left to compile; None where it made none at all."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Built, checked and timed."""

    build: Build
    accuracy: Accuracy
    timing: Timing
    profile: Profile = Profile()


@dataclass(frozen=True, slots=True)
class Skipped:
    """Not tried, for a reason that is nobody's fault."""

    reason: str
    unavailable: bool = False
    """True when the backend as a whole cannot run here."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Tried, and no figure may be published."""

    status: Status
    stage: str
    """`import`, `build`, `check` or `time`."""
    reason: str
    """In one line, the stage in it."""
    build: Build | None = None
    accuracy: Accuracy | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """Built and found right, but not to be timed here."""

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
    """Hash of the backend's source files: a resumed run keeps the cell only while it is unchanged."""

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
