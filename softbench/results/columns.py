"""The columns of the results CSV: each is a field of `Row`, and each row is a cell."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, fields
from typing import TypeVar

from softbench.core import statistics as stats
from softbench.core.case import OPERATION, CaseKey, pass_name
from softbench.core.outcome import Status

L2_RESIDENT = "L2-resident"
COMPUTE_BOUND = "compute-bound"
IMPLAUSIBLE = "implausible"
"""Cells with this label publish no bandwidth."""
LABELS = {
    "launch-bound": "do_bench read the host, and the kernels take less: use --timer queued, or see device_us",
    L2_RESIDENT: "the tensors fit the GPU's L2, so times are shown and no GB/s; larger tensors show the memory's bandwidth",
    COMPUTE_BOUND: "the matrix products take longer than the bytes, so the percentage is of the products alone",
    "throttled": "the GPU was slowed in every round: let it cool down, or see the limit with nvidia-smi -q -d PERFORMANCE",
    "busy": "in every round threads waited for a processor: end other programs, wait for them (--wait 10m), or take fewer --threads",
    "noisy": "the middle 60 % of the samples span over 10 %, or leave out the median: repeat with --processes 3, or when nothing else runs",
    IMPLAUSIBLE: "faster than the memory or than 1.5 times copy, so without a bandwidth: softbench check shows what it leaves out",
    "recompiled": "torch.compile compiled again after the build: TORCH_LOGS=recompiles says why",
    "graph-breaks": "torch.compile left parts of the function to Python: with fullgraph=True it says which",
}
"""Each label with its meaning and what to do."""
HARMLESS = frozenset({L2_RESIDENT, COMPUTE_BOUND, "graph-breaks"})
"""Labels that describe a result without casting doubt on it."""
USERS = ("no_grad_us", "recorded_us", "training_us")
"""The columns of a call that users make, in the order of `Profile.users_us`."""
OVER_REFERENCE = ("no_grad_ratio", "recorded_ratio", "training_ratio")
"""The columns of its ratio to the reference's call, in the same order."""
DOUBTFUL = frozenset(LABELS) - HARMLESS
"""Labels that cast doubt on a result."""


@dataclass(frozen=True, slots=True)
class Row:
    """A cell as a row of the CSV. A field that does not apply is None or an empty text."""

    backend: str
    """Name of the backend."""
    direction: str
    """`forward`, `backward`, `both` or `fused`."""
    M: int
    """Rows."""
    N: int
    """Columns: the reduced axis."""
    dtype: str
    """`fp32`, `fp16` or `bf16`."""
    status: str
    """`ok`, `wrong`, `failed`, `timeout`, `oom`, `unverified`, `checked` (not timed), `skipped` or `unavailable`. Only `ok` has times."""
    grade: str
    """`pass`, `sampled`, `low-precision`, `finite-only`, `tolerance`, `yardstick`, `wrong` or `unverified`; empty without a check."""
    reason: str
    """Why the status is not `ok`, why the class is not `pass`, or why there is no device time."""
    median_us: float | None
    """The median of the round medians, microseconds per call."""
    p20_us: float | None
    """20th percentile over all samples, microseconds."""
    p80_us: float | None
    """80th percentile over all samples, microseconds."""
    n: int | None
    """Number of samples."""
    rounds: int | None
    """Number of rounds, over all process sets."""
    processes: int | None
    """Number of process sets."""
    gbps: float | None
    """Bandwidth in decimal GB/s: algorithmic bytes over `median_us`. Empty for `host` times and `implausible` cells."""
    of_copy: float | None
    """Fraction of copy: copy's `median_us` over this one. Empty if copy has a doubtful label, or took more than 1.5 times as long.

    Of a `compute-bound` cell it is the time of its matrix products alone over `median_us`.
    """
    speedup: float | None
    """Speed-up: the reference backend's `median_us` over this one."""
    relative_to: str
    """The reference backend."""
    build_s: float | None
    """Seconds of prepare, first call and synchronization."""
    build_cache: str
    """`cold`, `cached`, or empty if nothing is compiled."""
    error_over_bound: float | None
    """The largest error over its bound; `inf` if NaN or infinities are misplaced."""
    timer: str
    """`queued`, `do_bench` (also for calls that wait for the GPU), `device`, `graph` or `host`; on the CPU `torch.utils.benchmark`."""
    device: str
    """Name of the GPU or CPU."""
    run: str
    """Name of the run, whose JSON has the raw samples."""
    l2: str = ""
    """`cold` or `warm`; empty on the CPU."""
    device_us: float | None = None
    """Median device time, microseconds."""
    host_us: float | None = None
    """Median host time, microseconds."""
    do_bench_us: float | None = None
    """Median of a short sample of `triton.testing.do_bench`, microseconds: what other tools print. With a warm L2 without the flush."""
    kernels: int | None = None
    """Number of kernels, copies and fills of a call; their names are in the JSON."""
    labels: str = ""
    """Labels of the cell, separated by blanks."""
    of_peak: float | None = None
    """Bandwidth over that of the datasheet, which is NVML's memory clock x 2 x bus width. Empty if the tensors fit L2."""
    low_us: float | None = None
    """Lower end of the 95 % interval of the median, microseconds. It covers the differences between processes and contains the median."""
    high_us: float | None = None
    """Upper end of that interval, microseconds."""
    stopped: str = ""
    """Why sampling stopped: `precise`, `limit` (of rounds) or `fixed` (number of rounds)."""
    compile_s: float | None = None
    """Seconds of `build_s` in `torch.compile`."""
    recompiles: int | None = None
    """Graphs that `torch.compile` made after the build; empty if it compiled nothing."""
    peak_bytes: int | None = None
    """Peak of torch's allocator during a call, with outputs and without inputs, bytes."""
    sm_clock_mhz: float | None = None
    """Median SM clock after the counted batches, MHz."""
    memory_clock_mhz: float | None = None
    """Median memory clock after the counted batches, MHz."""
    power_w: float | None = None
    """Median power after the counted batches, watts."""
    temperature_c: float | None = None
    """Median temperature after the counted batches, degrees Celsius."""
    throttled_batches: int | None = None
    """Batches of a throttled GPU or a busy CPU; they count only if a cell has no others."""
    graph_breaks: int | None = None
    """Places where `torch.compile` left a part of the function to Python; empty if it compiled nothing."""
    op: str = OPERATION
    """The operation with the parameters that are not at their default, such as `softmax(scale=0.7)`."""
    shape: str = ""
    """Shape of an N-D case, such as `8x16x1024x1024`, or `64x32x1000@dim1` with rows along dimension 1; empty if it is (M, N)."""
    unit: str = ""
    """The unit that measured the cell: label of the host, index and hash of the UUID, as in `node7/0/9c1d22e0`."""
    no_grad_us: float | None = None
    """With `--timer host`: median host time of the users' call, without autograd, microseconds."""
    recorded_us: float | None = None
    """Its host time, recorded by autograd."""
    training_us: float | None = None
    """Its host time with the backward."""
    no_grad_ratio: float | None = None
    """`no_grad_us` over the host time of the reference's call, timed in turns in the same processes."""
    recorded_ratio: float | None = None
    """The same ratio of `recorded_us`."""
    training_ratio: float | None = None
    """The same ratio of `training_us`."""

    @property
    def case(self) -> CaseKey:
        """The case, whose text is its name, such as `forward-bf16-4096x1024`."""
        return CaseKey(self.direction, self.dtype, self.M, self.N, self.op, self.shape)

    @property
    def of_pass(self) -> str:
        """The operation and the direction, as in `log_softmax forward`; for softmax the direction."""
        return pass_name(self.op, self.direction)

    @property
    def timed(self) -> bool:
        """True if the cell has a plausible time."""
        return self.status == Status.OK and bool(self.median_us) and IMPLAUSIBLE not in self.labels

    @property
    def ends(self) -> stats.Ends | None:
        """The 95 % interval of the median, microseconds; None if unknown. In a file of another program it may lie beside the median."""
        low, high, median = self.low_us, self.high_us, self.median_us
        return (min(low, median), max(high, median)) if low and high and median else None

    def times_as_fast(self, other: Row) -> stats.Ratio | None:
        """How many times as fast it is as another row: the ratio of both medians. None if one has no median, or no interval."""
        if not (self.median_us and other.median_us and self.ends and other.ends):
            return None
        return stats.ratio(other.median_us, other.ends, self.median_us, self.ends)

    @property
    def doubtful(self) -> bool:
        """True if the cell has a label that is not harmless."""
        return not DOUBTFUL.isdisjoint(self.labels.split())

    @property
    def in_l2(self) -> bool:
        """True if the tensors fit the GPU's L2, so that `gbps` is not the memory's."""
        return L2_RESIDENT in self.labels.split()

    @property
    def compute_bound(self) -> bool:
        """True if `of_copy` is the fraction of the matrix products alone."""
        return COMPUTE_BOUND in self.labels.split()


FIELDS = {"class" if field.name == "grade" else field.name: field for field in fields(Row)}
"""The fields of a row by the names of their columns."""
FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last four are full-width signs
"""A text with such a first character is a formula for a spreadsheet: writing adds an apostrophe, reading removes it."""
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items with each key, in the order of the first items with that key."""
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found
