"""The messages between parent and worker: a type for each request, and one for each reply. Each request has one reply."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Generic, TypeVar, get_args

from msgspec import Meta, Struct

from softbench.core.case import DO_BENCH, Case, Direction, Value
from softbench.core.inspection import Inspection
from softbench.core.json import JsonObject, from_json
from softbench.core.machine import Machine
from softbench.core.outcome import Accuracy, Build, Count, ErrorMetrics, NotNegative, Profile, Status, Telemetry, Us

INVALID_REPLY = "the worker sent an invalid reply"


class Reply(Struct, frozen=True, forbid_unknown_fields=True, tag_field="reply", tag=True):
    """A reply. Its JSON has the name of its type as `reply`."""


class Failure(Reply, frozen=True):
    """The request raised an exception."""

    status: Status
    stage: str
    reason: str
    poisoned: bool = False
    """True if the CUDA context is lost: the worker must not be used again."""

    def __post_init__(self) -> None:
        if self.status not in (Status.FAILED, Status.OOM):
            raise ValueError(f"{self.status} is no status of an exception")


class Described(Reply, frozen=True):
    """A user's operation."""

    operation: JsonObject
    """As `softbench.ops.declaration.to_json` makes it."""
    layouts: bytes = b""
    """Those of a problem's cases, for other workers (`softbench.problems.layout.pack`)."""


class Skip(Reply, frozen=True):
    """The backend does not support the case."""

    reason: str


class Unsupported(Reply, frozen=True):
    """The cases that backends do not support."""

    places: dict[str, list[int]]
    """By backend: their places in the request, from 0."""


class Done(Reply, frozen=True):
    """The request succeeded and has no result."""


class Probed(Reply, frozen=True):
    """The machine."""

    machine: Machine


class Loaded(Reply, frozen=True):
    """The backends of a plugin source."""

    infos: list[JsonObject]
    """One for each backend (`softbench.plugins.info`)."""


class Built(Reply, frozen=True):
    """The build of a case."""

    build: Build


class Graded(Reply, frozen=True):
    """The accuracy of the built case."""

    accuracy: Accuracy
    untimed: str = ""
    """Why the case must not be timed here; empty if it may be."""


class CheckCases(Reply, frozen=True):
    """All check cases."""

    cases: list[tuple[str, Direction, bool, str]]
    """Name, direction, whether the case needs the device alone, and its only dtype if it has one."""


class CheckCaseGraded(Reply, frozen=True):
    """The accuracy of a check case."""

    accuracy: Accuracy
    metrics: ErrorMetrics | None = None
    """None if nothing was compared."""


class RowsCompared(Reply, frozen=True):
    """What the bits of a row depend on, beside its own values."""

    tried: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(min_length=1)]
    """The numbers of rows that were compared."""
    differences: list[tuple[Annotated[str, Meta(pattern=r"^(run|M|position)\Z")], Count, Count, Count]]
    """What they depend on; the rows of the smallest batch in which they differ; the rows of the other batch, or the place of the row; and
    the largest distance in ULP."""
    bits: str
    """A checksum of the rows' results in the first batch. Backends on one device with the same one agree to the bit."""


class Inspected(Reply, frozen=True):
    """The code and facts of a case."""

    inspection: Inspection


class Timed(Reply, frozen=True):
    """The samples of a batch."""

    samples_us: Annotated[tuple[Us, ...], Meta(min_length=1)]
    """Latencies of single calls, microseconds."""
    timer: Annotated[str, Meta(pattern=rf"^({DO_BENCH})?\Z")] = ""
    """DO_BENCH if it took them in place of the timer that was asked. A worker cannot claim another one: results of `host` have no limit."""
    calls: Count = 0
    """On a CPU: the calls of the batch, with those of its warm-up; 0 if nobody counted."""
    spent_us: NotNegative = 0.0
    """Microseconds of all these calls, by the worker's clock."""
    whole_us: NotNegative = 0.0
    """Microseconds of the whole batch by the same clock, if the calls were counted."""


class Verified(Reply, frozen=True):
    """The accuracy of a batch, and the telemetry."""

    accuracy: Accuracy | None
    """Of the kept outputs; None if the batch kept none."""
    telemetry: Telemetry | None
    """After the batch."""


class Profiled(Reply, frozen=True):
    """The profile of a case."""

    profile: Profile
    unverified: str = ""
    """Why the case has no result; empty if it has one."""
    unordered: str = ""
    """Work of the traced calls that is not ordered with the caller's stream; empty if there is none."""


class Confined(Reply, frozen=True):
    """The rights that were taken from the worker."""

    levels: dict[str, bool]
    """By level: whether this machine has it."""


class Called(Reply, frozen=True):
    """Calls of a challenge were made, or queued."""

    places: tuple[tuple[int, ...], ...]
    """For each call: the byte of the shared memory at which each output begins."""
    device_us: float
    """Microseconds of the GPU for all calls of the challenge, 0 on a CPU. That of a plugin's process counts for nothing."""


Answer_co = TypeVar("Answer_co", bound=Reply, covariant=True)
Answer = TypeVar("Answer", bound=Reply)


class Request(Struct, Generic[Answer_co], frozen=True, forbid_unknown_fields=True, tag_field="op"):
    """A request whose reply is an `Answer_co` or a `Failure`. Its JSON has its name as `op`."""

    @property
    def op(self) -> str:
        """Its name, also in a run document's `seconds`."""
        return str(self.__struct_config__.tag)


class ProbeMachine(Request[Probed], frozen=True, tag="probe"):
    """Describe the machine."""


class LoadOperation(Request[Described], frozen=True, tag="operation"):
    """Import a user's operation, and test it on a small case; or a problem, and follow the shapes of its cases."""

    file: str
    cases: tuple[dict[str, Value], ...] = ()
    """Values of parameters of a problem, each a case. Without them, its own cases count."""
    layouts: bytes = b""
    """Those of the cases of a problem that are known. No shapes are followed then."""


class LoadSource(Request[Loaded], frozen=True, tag="load"):
    """Load the users' operations, then a plugin source. The worker then serves the backend `name`, or the first."""

    source: dict[str, str]
    """The fields of a `softbench.plugins.source.PluginSource`."""
    device: str
    name: str | None = None
    operations: tuple[str, ...] = ()
    """Files of users' operations."""
    layouts: dict[str, bytes] = {}
    """Those of the cases of problems, by file."""
    problems: tuple[str, ...] = ()
    """Files of the problems that a solution is for; empty if it may solve any."""


class ListUnsupported(Request[Unsupported], frozen=True, tag="list_unsupported"):
    """List the cases that backends of the worker's plugin source do not support."""

    names: tuple[str, ...]
    cases: tuple[Case, ...]


class BuildCase(Request[Built | Skip], frozen=True, tag="build"):
    """Prepare the backend for a case, and call it once."""

    case: Case
    seed: int


class CheckOutputs(Request[Graded], frozen=True, tag="check"):
    """Check the built case against the float64 reference."""


class ListCheckCases(Request[CheckCases], frozen=True, tag="list_check_cases"):
    """List the check cases of an operation."""

    operation: str
    files: tuple[str, ...] = ()
    """Files of users' operations."""


class RunCheckCase(Request[CheckCaseGraded | Skip], frozen=True, tag="run_check_case"):
    """Run one check case of an operation."""

    operation: str
    name: str
    direction: Direction
    dtype: str
    seed: int


class CompareRows(Request[RowsCompared | Skip], frozen=True, tag="compare_rows"):
    """Compare the bits of rows in batches of different numbers of rows (`softbench.worker.checking.invariance`)."""

    operation: str
    N: int
    direction: Direction
    dtype: str
    seed: int
    counts: tuple[int, ...]
    """Numbers of rows, in the order in which they are tried."""
    seconds: float
    """After so many no further number is tried."""

    @property
    def name(self) -> str:
        """The name of the case."""
        return f"N={self.N}"


class InspectCase(Request[Inspected | Skip], frozen=True, tag="inspect"):
    """Collect the code generated for a case."""

    case: Case
    seed: int


class RenewInputs(Request[Done], frozen=True, tag="renew"):
    """Give the inputs of the next batch new values."""

    l2: str


class TimeBatch(Request[Timed], frozen=True, tag="time"):
    """Time a batch."""

    warmup_ms: float
    batch_ms: float
    timer: str
    l2: str


class VerifyOutputs(Request[Verified], frozen=True, tag="verify"):
    """Verify the kept outputs of the batch, and read the telemetry."""


class MeasureProducts(Request[Done], frozen=True, tag="products"):
    """Measure the case's matrix products alone, or the fastest product of its dtype, once."""


class TimeUsersCall(Request[Done], frozen=True, tag="users"):
    """Measure host times of what users call, and add them to those of earlier rounds."""

    batch_ms: float
    beside: tuple[dict[str, str], str] | None = None
    """The source and the name of the reference, whose call is timed in turns with those of others: processes differ by more than calls."""


class TimeHost(Request[Done], frozen=True, tag="host"):
    """Measure the host time of calls, before the profiler starts."""

    batch_ms: float
    l2: str


class StartTrace(Request[Done], frozen=True, tag="trace"):
    """Start the profiler."""

    l2: str


class TraceCalls(Request[Done], frozen=True, tag="calls"):
    """Run the calls that the profiler records."""

    batch_ms: float
    l2: str


class EndProfile(Request[Profiled], frozen=True, tag="profile"):
    """Stop the profiler, and report the case's profile."""


class Release(Request[Done], frozen=True, tag="release"):
    """Free the case's device memory; `RenewInputs` allocates it again."""


class ConfineProcess(Request[Confined], frozen=True, tag="confine"):
    """Take rights from the worker for the rest of its life, before it loads a plugin (`softbench.worker.judged.confinement`)."""

    readable: tuple[str, ...]
    """Files and folders that it may read."""
    folder: str
    """The only folder that it may write to."""
    device: str
    sockets: bool = False
    """True while CUDA still needs a socket of its own. Another request without it then forbids sockets."""


class ShareOutputs(Request[Done], frozen=True, tag="share"):
    """Map the judge's memory for the outputs of the calls of a challenge. Its descriptor comes with the request."""

    case: Case
    calls: int
    bytes: int


class QueueCalls(Request[Called], frozen=True, tag="queue_of_judge"):
    """Give the GPU calls of the next `MakeCalls`, as many as it takes. It starts them when that has mapped their inputs."""

    at_once: bool = False
    """As of the `MakeCalls` that follows."""


class MakeCalls(Request[Called], frozen=True, tag="calls_of_judge"):
    """Call the backend once on each set of inputs in the memory whose descriptor comes with the request, but for calls that are queued.

    Such requests without a backend show what a challenge costs without its calls. On a CPU they write one element. On a GPU they
    read the inputs and write the outputs, and the reply has the time of that.
    """

    bytes: int
    touch: bool = False
    """On a CPU such a request uses each page of inputs and outputs: what memory costs that is new to a process."""
    at_once: bool = False
    """Reply with copies of the outputs, each made on the caller's stream right after its call: what that stream reads without a wait."""


class MapInputs(Request[Done], frozen=True, tag="map_of_judge"):
    """Map the inputs whose descriptor comes with the request, and call nothing: the judge's clock does not run now."""

    bytes: int


class ReleaseOutputs(Request[Done], frozen=True, tag="release_of_judge"):
    """Free the outputs of the last `MakeCalls`, and prepare the next calls: the judge's clock does not run now.

    The values of the outputs stay in the judge's memory until the next calls. The inputs stay mapped until others take their place.
    """


_REQUESTS: dict[Any, type[Request[Any]]] = {kind.__struct_config__.tag: kind for kind in Request.__subclasses__()}


def request_from_json(data: JsonObject) -> Request[Any]:
    """A request from its JSON. Raises KeyError or ValueError if it is invalid."""
    return from_json(_REQUESTS[data["op"]], data)  # a union of all kinds would cost 15 us, and the judge's clock may run


def reply_from_json(request: Request[Answer], data: JsonObject) -> Answer | Failure:
    """The reply to a request, from a worker. Raises ValueError if the data is no valid reply to it."""
    reply: Answer | Failure = from_json(_replies(type(request)), data)
    return reply


@cache
def _replies(kind: type[Request[Any]]) -> Any:
    """The types of the replies to a request, as its base class names them."""
    (base,) = kind.__orig_bases__  # type: ignore[attr-defined]
    return get_args(base)[0] | Failure
