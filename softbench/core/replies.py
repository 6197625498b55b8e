"""The replies of a worker, a type for each, and the parts of an outcome from JSON. That data is untrusted, so it is validated."""

from __future__ import annotations

import math
from dataclasses import dataclass

from softbench.core.case import Direction
from softbench.core.inspection import Inspection, from_json
from softbench.core.json_types import JsonObject
from softbench.core.machine import Machine, machine_from_json
from softbench.core.outcome import Accuracy, Build, Grade, Profile, Status, Telemetry
from softbench.core.validate import typed

INVALID = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""What `parse` raises for an invalid reply."""
INVALID_REPLY = "the worker sent an invalid reply"


def accuracy_from_json(data: JsonObject) -> Accuracy:
    """An accuracy from JSON; a worker's reply is untrusted data.

    Raises:
        KeyError, TypeError, ValueError: it is invalid.
    """
    return Accuracy(Grade(data["grade"]), float(data["worst"]), str(data["detail"]))


def build_from_json(data: JsonObject) -> Build:
    """A build; raises as `accuracy_from_json`."""
    build = typed(Build, data)
    if build.seconds < 0:
        raise ValueError("a build that took less than no time")
    return build


def telemetry_from_json(data: JsonObject | None) -> Telemetry | None:
    """A telemetry reading from JSON.

    Raises:
        TypeError, ValueError: it is invalid.
    """
    return None if data is None else typed(Telemetry, data)


def profile_from_json(data: JsonObject) -> Profile:
    """A profile from JSON.

    Raises:
        TypeError, ValueError: it is invalid.
    """
    fields: JsonObject = {key: tuple(value) if isinstance(value, list | tuple) else value for key, value in data.items()}
    profile = typed(Profile, fields)
    if not all(isinstance(word, str) for word in (*profile.kernels, profile.note)):
        raise ValueError("an invalid name")
    if not all(_is_time(us) for us in (*profile.device_us, *profile.host_us)):
        raise ValueError("an invalid time")
    if not all(count is None or count >= 0 for count in (profile.peak_bytes, profile.recompiles)):
        raise ValueError("a negative count")
    return profile


def _is_time(us: object) -> bool:
    """Whether a sample is a positive number; True is none."""
    return isinstance(us, int | float) and not isinstance(us, bool) and 0 < us < math.inf


class Reply:
    """A reply. `parse` makes it from the fields of its JSON."""

    @classmethod
    def parse(cls, fields: JsonObject) -> Reply:
        """Raises one of `INVALID` if a field is missing, unknown or invalid."""
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Failure(Reply):
    """The request raised an exception."""

    status: Status
    stage: str
    reason: str
    poisoned: bool = False
    """True if the CUDA context is lost: the worker must not be used again."""

    @classmethod
    def parse(cls, fields: JsonObject) -> Failure:
        status = Status(fields["status"])
        if status not in (Status.FAILED, Status.OOM):
            raise ValueError(f"{status} is no status of an exception")
        return cls(status, str(fields["stage"]), str(fields["reason"]), bool(fields["poisoned"]))


@dataclass(frozen=True, slots=True)
class Described(Reply):
    """A user's operation."""

    operation: JsonObject
    """As `softbench.ops.declaration.to_json` makes it."""

    @classmethod
    def parse(cls, fields: JsonObject) -> Described:
        return cls(dict(fields["operation"]))


@dataclass(frozen=True, slots=True)
class Skip(Reply):
    """The backend does not support the case."""

    reason: str

    @classmethod
    def parse(cls, fields: JsonObject) -> Skip:
        return cls(str(fields["reason"]))


@dataclass(frozen=True, slots=True)
class Unsupported(Reply):
    """The cases that backends do not support."""

    places: dict[str, list[int]]
    """By backend: their places in the request, from 0."""

    @classmethod
    def parse(cls, fields: JsonObject) -> Unsupported:
        return cls({str(name): [int(place) for place in places] for name, places in fields["places"].items()})


@dataclass(frozen=True, slots=True)
class Done(Reply):
    """The request succeeded and has no result."""


@dataclass(frozen=True, slots=True)
class Probed(Reply):
    """The machine."""

    machine: Machine

    @classmethod
    def parse(cls, fields: JsonObject) -> Probed:
        return cls(machine_from_json(fields["machine"]))


@dataclass(frozen=True, slots=True)
class Loaded(Reply):
    """The backends of a plugin source."""

    infos: list[JsonObject]
    """One for each backend (`softbench.plugins.info`)."""


@dataclass(frozen=True, slots=True)
class Built(Reply):
    """The build of a case."""

    build: Build

    @classmethod
    def parse(cls, fields: JsonObject) -> Built:
        return cls(build_from_json(fields["build"]))


@dataclass(frozen=True, slots=True)
class Graded(Reply):
    """The accuracy of the built case."""

    accuracy: Accuracy
    untimed: str = ""
    """Why the case must not be timed here; empty if it may be."""

    @classmethod
    def parse(cls, fields: JsonObject) -> Graded:
        return cls(accuracy_from_json(fields["accuracy"]), str(fields["untimed"]))


@dataclass(frozen=True, slots=True)
class CheckCases(Reply):
    """All check cases."""

    cases: list[tuple[str, Direction, bool]]
    """Name, direction, and whether the case needs the device alone."""

    @classmethod
    def parse(cls, fields: JsonObject) -> CheckCases:
        return cls([(str(name), Direction(direction), bool(alone)) for name, direction, alone in fields["cases"]])


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
class CheckCaseGraded(Reply):
    """The accuracy of a check case."""

    accuracy: Accuracy
    metrics: ErrorMetrics | None = None
    """None if nothing was compared."""

    @classmethod
    def parse(cls, fields: JsonObject) -> CheckCaseGraded:
        metrics = fields["metrics"]
        found = None if metrics is None else ErrorMetrics(**{key: float(value) for key, value in metrics.items()})
        return cls(accuracy_from_json(fields["accuracy"]), found)


@dataclass(frozen=True, slots=True)
class Inspected(Reply):
    """The code and facts of a case."""

    inspection: Inspection

    @classmethod
    def parse(cls, fields: JsonObject) -> Inspected:
        return cls(from_json(fields["inspection"]))


@dataclass(frozen=True, slots=True)
class Timed(Reply):
    """The samples of a batch."""

    samples_us: tuple[float, ...]
    """Latencies of single calls, microseconds."""

    @classmethod
    def parse(cls, fields: JsonObject) -> Timed:
        samples = fields["samples_us"]
        if not samples or not all(_is_time(sample) for sample in samples):
            raise ValueError("no samples")
        return cls(tuple(map(float, samples)))


@dataclass(frozen=True, slots=True)
class Verified(Reply):
    """The accuracy of a batch, and the telemetry."""

    accuracy: Accuracy | None
    """Of the kept outputs; None if the batch kept none."""
    telemetry: Telemetry | None
    """After the batch."""

    @classmethod
    def parse(cls, fields: JsonObject) -> Verified:
        accuracy = None if fields["accuracy"] is None else accuracy_from_json(fields["accuracy"])
        return cls(accuracy, telemetry_from_json(fields["telemetry"]))


@dataclass(frozen=True, slots=True)
class Profiled(Reply):
    """The profile of a case."""

    profile: Profile
    unverified: str = ""
    """Why the case has no result; empty if it has one."""
    unordered: str = ""
    """Work of the traced calls that is not ordered with the caller's stream; empty if there is none."""

    @classmethod
    def parse(cls, fields: JsonObject) -> Profiled:
        return cls(profile_from_json(fields["profile"]), str(fields["unverified"]), str(fields["unordered"]))


@dataclass(frozen=True, slots=True)
class Confined(Reply):
    """The rights that were taken from the worker."""

    levels: dict[str, bool]
    """By level: whether this machine has it."""

    @classmethod
    def parse(cls, fields: JsonObject) -> Confined:
        return cls({str(name): bool(had) for name, had in fields["levels"].items()})


@dataclass(frozen=True, slots=True)
class Called(Reply):
    """Calls of a challenge were made, or queued."""

    places: tuple[tuple[int, ...], ...]
    """For each call: the byte of the shared memory at which each output begins."""
    device_us: float
    """Microseconds of the GPU for all calls of the challenge, 0 on a CPU. That of a plugin's process counts for nothing."""

    @classmethod
    def parse(cls, fields: JsonObject) -> Called:
        return cls(tuple(tuple(int(place) for place in call) for call in fields["places"]), float(fields["device_us"]))
