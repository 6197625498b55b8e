"""The requests from parent to worker, a type for each, and the JSON of requests and replies. Each request has one reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from softbench.core.case import Case, Direction
from softbench.core.json_types import JsonObject, to_json
from softbench.core.replies import (
    Built,
    Called,
    CheckCaseGraded,
    CheckCases,
    Confined,
    Described,
    Done,
    Failure,
    Graded,
    Inspected,
    Loaded,
    Probed,
    Profiled,
    Reply,
    Skip,
    Timed,
    Unsupported,
    Verified,
)

Answer_co = TypeVar("Answer_co", bound=Reply, covariant=True)
Answer = TypeVar("Answer", bound=Reply)


class Request(Generic[Answer_co]):
    """A request whose reply is an `Answer_co` or a `Failure`."""

    op: ClassVar[str]
    """Its name in JSON, and in a run document's `seconds`."""
    replies: ClassVar[tuple[type[Reply], ...]] = (Done,)


@dataclass(frozen=True)
class ProbeMachine(Request[Probed]):
    """Describe the machine."""

    op, replies = "probe", (Probed,)


@dataclass(frozen=True)
class LoadOperation(Request[Described]):
    """Import a user's operation, and test it on a small case."""

    file: str
    op, replies = "operation", (Described,)


@dataclass(frozen=True)
class LoadSource(Request[Loaded]):
    """Load the users' operations, then a plugin source. The worker then serves the backend `name`, or the first."""

    source: dict[str, str]
    """The fields of a `softbench.plugins.source.PluginSource`."""
    device: str
    name: str | None = None
    operations: tuple[str, ...] = ()
    """Files of users' operations."""
    op, replies = "load", (Loaded,)


@dataclass(frozen=True)
class ListUnsupported(Request[Unsupported]):
    """List the cases that backends of the worker's plugin source do not support."""

    names: tuple[str, ...]
    cases: tuple[Case, ...]
    op, replies = "list_unsupported", (Unsupported,)


@dataclass(frozen=True)
class BuildCase(Request[Built | Skip]):
    """Prepare the backend for a case, and call it once."""

    case: Case
    seed: int
    op, replies = "build", (Built, Skip)


@dataclass(frozen=True)
class CheckOutputs(Request[Graded]):
    """Check the built case against the float64 reference."""

    op, replies = "check", (Graded,)


@dataclass(frozen=True)
class ListCheckCases(Request[CheckCases]):
    """List the check cases of an operation."""

    operation: str
    files: tuple[str, ...] = ()
    """Files of users' operations."""
    op, replies = "list_check_cases", (CheckCases,)


@dataclass(frozen=True)
class RunCheckCase(Request[CheckCaseGraded | Skip]):
    """Run one check case of an operation."""

    operation: str
    name: str
    direction: Direction
    dtype: str
    seed: int
    op, replies = "run_check_case", (CheckCaseGraded, Skip)


@dataclass(frozen=True)
class InspectCase(Request[Inspected | Skip]):
    """Collect the code generated for a case."""

    case: Case
    seed: int
    op, replies = "inspect", (Inspected, Skip)


@dataclass(frozen=True)
class RenewInputs(Request[Done]):
    """Give the inputs of the next batch new values."""

    l2: str
    op = "renew"


@dataclass(frozen=True)
class TimeBatch(Request[Timed]):
    """Time a batch."""

    warmup_ms: float
    batch_ms: float
    timer: str
    l2: str
    op, replies = "time", (Timed,)


@dataclass(frozen=True)
class VerifyOutputs(Request[Verified]):
    """Verify the kept outputs of the batch, and read the telemetry."""

    op, replies = "verify", (Verified,)


@dataclass(frozen=True)
class TimeHost(Request[Done]):
    """Measure the host time of calls, before the profiler starts."""

    batch_ms: float
    l2: str
    op = "host"


@dataclass(frozen=True)
class StartTrace(Request[Done]):
    """Start the profiler."""

    l2: str
    op = "trace"


@dataclass(frozen=True)
class TraceCalls(Request[Done]):
    """Run the calls that the profiler records."""

    batch_ms: float
    l2: str
    op = "calls"


@dataclass(frozen=True)
class EndProfile(Request[Profiled]):
    """Stop the profiler, and report the case's profile."""

    op, replies = "profile", (Profiled,)


@dataclass(frozen=True)
class Release(Request[Done]):
    """Free the case's device memory; `RenewInputs` allocates it again."""

    op = "release"


@dataclass(frozen=True)
class ConfineProcess(Request[Confined]):
    """Take rights from the worker for the rest of its life, before it loads a plugin (`softbench.worker.judged.confinement`)."""

    readable: tuple[str, ...]
    """Files and folders that it may read."""
    folder: str
    """The only folder that it may write to."""
    device: str
    sockets: bool = False
    """True while CUDA still needs a socket of its own. Another request without it then forbids sockets."""
    op, replies = "confine", (Confined,)


@dataclass(frozen=True)
class ShareOutputs(Request[Done]):
    """Map the judge's memory for the outputs of the calls of a challenge. Its descriptor comes with the request."""

    case: Case
    calls: int
    bytes: int
    op = "share"


@dataclass(frozen=True)
class QueueCalls(Request[Called]):
    """Give the GPU calls of the next `MakeCalls`, as many as it takes. It starts them when that has mapped their inputs."""

    op, replies = "queue_of_judge", (Called,)


@dataclass(frozen=True)
class MakeCalls(Request[Called]):
    """Call the backend once on each set of inputs in the memory whose descriptor comes with the request, but for calls that are queued.

    Such requests without a backend show what a challenge costs without its calls. On a CPU they write one element. On a GPU they
    read the inputs and write the outputs, and the reply has the time of that.
    """

    bytes: int
    op, replies = "calls_of_judge", (Called,)


@dataclass(frozen=True)
class ReleaseOutputs(Request[Done]):
    """Free the outputs of the last `MakeCalls`, and prepare the next calls: the judge's clock does not run now.

    The values of the outputs stay in the judge's memory until the next calls. The inputs stay mapped until others take their place.
    """

    op, replies = "release_of_judge", (Done,)


REQUESTS: dict[str, type[Request[Any]]] = {kind.op: kind for kind in Request.__subclasses__()}


def request_to_json(request: Request[Any]) -> JsonObject:
    """The request as JSON."""
    return {"op": request.op, **to_json(request)}


def request_from_json(data: JsonObject) -> Request[Any]:
    """The inverse of `request_to_json`."""
    fields = dict(data)
    kind = REQUESTS[fields.pop("op")]
    if "case" in fields:
        fields["case"] = _case(fields["case"])
    if "cases" in fields:
        fields["cases"] = tuple(map(_case, fields["cases"]))
    if "names" in fields:
        fields["names"] = tuple(fields["names"])
    if "direction" in fields:
        fields["direction"] = Direction(fields["direction"])
    return kind(**fields)


def _case(fields: JsonObject) -> Case:
    return Case(**{**fields, "direction": Direction(fields["direction"])})


def reply_to_json(reply: Reply) -> JsonObject:
    """The reply as JSON."""
    return {"reply": type(reply).__name__, **to_json(reply)}


def reply_from_json(request: Request[Answer], data: JsonObject) -> Answer | Failure:
    """The reply to a request.

    Raises:
        An exception of `softbench.core.replies.INVALID`: the data is no valid reply to it.
    """
    fields = dict(data)
    kinds: dict[str, type[Reply]] = {kind.__name__: kind for kind in (*request.replies, Failure)}
    return kinds[fields.pop("reply")].parse(fields)  # type: ignore[return-value]
