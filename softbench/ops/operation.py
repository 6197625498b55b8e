"""An operation: its tensors, its passes and its byte model. It needs no torch, so the parent process can use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from math import prod

from softbench.core.case import DTYPES, MAX_PARAMETERS, PRESET, Case, Direction, Value, op_text, shape_of
from softbench.core.json_types import JsonObject
from softbench.core.validate import NAME
from softbench.ops import parameters
from softbench.ops.parameters import Parameter, Setting, holds

ELEMENT_BYTES = DTYPES | {"int64": 8, "int32": 4, "bool": 1}
"""Bytes per element of each dtype that a tensor may have."""
AXES = ("M", "N")
CASE_DTYPE = "case"
"""The dtype of a tensor that has the case's."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor of an operation."""

    axes: tuple[str | int, ...]
    """Its axes, such as `("M", "N")`: M, N, the name of a parameter that is a whole number, or a number. The first axis of an output is M,
    because rows of it are sampled."""
    dtype: str = CASE_DTYPE
    """A key of ELEMENT_BYTES, CASE_DTYPE, or the name of a parameter whose choices are such."""
    when: Setting = ()
    """The value of a parameter without which the tensor does not exist, such as `("scale", "row")`."""

    def shape(self, case: Case) -> tuple[int, ...]:
        """The tensor's shape in a case."""
        if case.shape and self.has_columns:
            return case.sizes
        return tuple(axis if isinstance(axis, int) else getattr(case, axis) for axis in self.axes)

    def dtype_of(self, case: Case) -> str:
        """The name of its dtype in a case."""
        return case.dtype if self.dtype == CASE_DTYPE else self.dtype

    def bytes(self, case: Case) -> int:
        """The tensor's bytes in a case."""
        return prod(self.shape(case)) * ELEMENT_BYTES[self.dtype_of(case)]

    @property
    def has_rows(self) -> bool:
        """True if its first axis is M: element i belongs to row i."""
        return self.axes[:1] == ("M",)

    @property
    def has_columns(self) -> bool:
        """True if it has rows, and its second axis is N."""
        return self.axes == ("M", "N")

    def at(self, values: Mapping[str, Value]) -> TensorSpec:
        """The tensor for these values of the operation's parameters."""
        axes = tuple(int(values[axis]) if axis in values else axis for axis in self.axes)  # type: ignore[index]
        return TensorSpec(axes, str(values.get(self.dtype, self.dtype)))


@dataclass(frozen=True, slots=True)
class Share:
    """The share of a tensor that an ideal kernel reads, such as half of masked scores."""

    tensor: str
    of: float
    """Above 0, and at most 1."""
    when: Setting = ()
    """The value of a parameter without which the whole tensor is read, such as `("causal", True)`."""


@dataclass(frozen=True, slots=True)
class Pass:
    """The call of an operation in one direction. It names tensors of the operation."""

    inputs: tuple[str, ...]
    """The inputs of the call, in order."""
    outputs: tuple[str, ...]
    """The outputs of the call: it returns a tensor, or a tuple if there are several."""
    reads: tuple[str, ...]
    """The tensors that an ideal kernel reads, each once."""
    shares: tuple[Share, ...] = ()
    """The tensors of `reads` that are not read as a whole."""

    @property
    def writes(self) -> tuple[str, ...]:
        """The tensors that an ideal kernel writes, each once."""
        return self.outputs

    def share(self, tensor: str) -> float:
        """The share of a tensor that is read."""
        return next((share.of for share in self.shares if share.tensor == tensor), 1.0)

    def at(self, values: Mapping[str, Value], tensors: Mapping[str, TensorSpec]) -> Pass:
        """The pass for these values of the operation's parameters, on the tensors that exist then."""
        inputs, outputs, reads = (tuple(name for name in names if name in tensors) for names in (self.inputs, self.outputs, self.reads))
        shares = tuple(Share(share.tensor, share.of) for share in self.shares if share.tensor in tensors and holds(share.when, values))
        return Pass(inputs, outputs, reads, shares)


@dataclass(frozen=True, slots=True)
class Preset:
    """Shapes of an operation under a name that `--shape` takes."""

    shapes: tuple[str, ...]
    """As `--shape` takes them: `4096x32000`, or `8x16x1024x1024` of an operation with `any_dim`."""
    doc: str = ""
    """One line for `softbench list --ops`: where the shapes come from."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What backends compute, without values: tensors, passes, parameters and shapes."""

    name: str
    """The name of its package in `softbench.ops`."""
    tensors: Mapping[str, TensorSpec]
    """Its tensors, by name."""
    passes: Mapping[str, Pass]
    """Its passes, by a case's direction."""
    summary: str = ""
    """One line for `softbench list --ops`."""
    parameters: tuple[Parameter, ...] = ()
    """The parameters, which `--set` sets."""
    values: Mapping[str, Value] = field(default_factory=dict)
    """The value of each parameter, of an operation that `at` returned."""
    any_dim: bool = False
    """True if its rows may lie along any dimension of an N-D tensor, as `--shape` gives it. Tensors of M and N then have that shape.
    With parameters that add a tensor or change a dtype it is False, because `over_dim` of a backend gets no such tensors."""
    presets: Mapping[str, Preset] = field(default_factory=dict)
    """Shapes by name."""

    def at(self, given: Mapping[str, Value]) -> Operation:
        """The operation for these parameters: tensors, dtypes, passes and bytes follow from them.

        Raises:
            ValueError: a parameter is unknown or has another value.
        """
        values = parameters.read(self.parameters, given, self.name)
        tensors = {name: tensor.at(values) for name, tensor in self.tensors.items() if holds(tensor.when, values)}
        passes = {direction: one.at(values, tensors) for direction, one in self.passes.items()}
        any_dim = self.any_dim and all(tensor == TensorSpec(AXES) for tensor in tensors.values())
        return replace(self, tensors=tensors, passes=passes, values=values, any_dim=any_dim)

    @property
    def text(self) -> str:
        """A case's `op`: the name, and the parameters that are not at their default."""
        defaults = {parameter.name: parameter.default for parameter in self.parameters}
        return op_text(self.name, {name: value for name, value in self.values.items() if value != defaults[name]})

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes of its cases; those that its parameters are for."""
        changed = [parameter for parameter in self.parameters if self.values and self.values[parameter.name] != parameter.default]
        return tuple(dtype for dtype in DTYPES if all(dtype in parameter.dtypes for parameter in changed))

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions of its passes."""
        return tuple(Direction(name) for name in self.passes)

    def inputs(self, case: Case) -> tuple[TensorSpec, ...]:
        """The arguments of a call of this case, in order."""
        return tuple(self.tensors[name] for name in self.passes[case.direction].inputs)

    def outputs(self, case: Case) -> dict[str, TensorSpec]:
        """What a call of this case returns, by name."""
        return {name: self.tensors[name] for name in self.passes[case.direction].outputs}

    def largest_bytes(self, case: Case) -> int:
        """Bytes of the case's largest tensor."""
        return max(tensor.bytes(case) for tensor in self.tensors.values())

    def bytes_moved(self, case: Case) -> int:
        """Algorithmic bytes of one call: what must be moved, not what a backend happens to move.

        Triton's tutorial counts M*N*itemsize for softmax forward: half of this.
        """
        done = self.passes[case.direction]
        read = sum(round(done.share(name) * self.tensors[name].bytes(case)) for name in done.reads)
        return read + sum(self.tensors[name].bytes(case) for name in done.writes)

    def distinct_bytes(self, case: Case) -> int:
        """Bytes of the case's distinct tensors: one that is written and read again counts once."""
        done = self.passes[case.direction]
        read = sum(round(done.share(name) * self.tensors[name].bytes(case)) for name in done.reads if name not in done.writes)
        return read + sum(self.tensors[name].bytes(case) for name in done.writes)

    def gbps(self, case: Case, us: float) -> float:
        """Decimal GB/s of a call that takes `us` microseconds."""
        return self.bytes_moved(case) / us / 1e3


def validate(operation: Operation) -> None:
    """Raises a ValueError for the first part of an operation that softbench cannot measure."""
    if not NAME.fullmatch(operation.name):
        raise ValueError(f"'{operation.name}' is no name; use 1 to 64 letters, digits and . _ : + -")
    if not all(isinstance(parameter, Parameter) for parameter in operation.parameters) or len(operation.parameters) > MAX_PARAMETERS:
        raise ValueError(f"parameters must be a tuple of at most {MAX_PARAMETERS} softbench.ops.parameters.Parameter")
    known = {parameter.name: parameter for parameter in operation.parameters}
    if len(known) < len(operation.parameters) or set(known) & {*AXES, CASE_DTYPE, *ELEMENT_BYTES}:
        raise ValueError(f"its parameters need a name each, and none of {', '.join((*AXES, CASE_DTYPE, *ELEMENT_BYTES))}")
    for parameter in known.values():
        parameters.validate(parameter)
    for name, tensor in operation.tensors.items():
        _validate_tensor(name, tensor, known)
    for name, preset in operation.presets.items():
        _validate_preset(name, preset, any_dim=operation.any_dim)
    if not operation.passes:
        raise ValueError("it has no pass; give it one named forward")
    for direction, one in operation.passes.items():
        _validate_pass(operation, direction, one)
        for share in one.shares:
            _validate_setting(f"pass {direction}: shares", share.when, known)


def _validate_tensor(name: str, tensor: TensorSpec, known: Mapping[str, Parameter]) -> None:
    axes = {*AXES, *(parameter.name for parameter in known.values() if parameter.kind == "whole" and (parameter.least or 0) >= 0)}
    if not tensor.axes or not set(tensor.axes) <= axes or len(set(tensor.axes)) < len(tensor.axes):
        raise ValueError(f"tensor {name} has axes {tensor.axes}; they must be of {' and '.join(sorted(axes))}")
    dtypes = known[tensor.dtype].choices if tensor.dtype in known else (tensor.dtype,)
    if not dtypes or not set(dtypes) <= {CASE_DTYPE, *ELEMENT_BYTES}:
        raise ValueError(f"tensor {name} has dtype {tensor.dtype}; known are {CASE_DTYPE}, {', '.join(ELEMENT_BYTES)}")
    _validate_setting(f"tensor {name}", tensor.when, known)


def _validate_preset(name: str, preset: Preset, *, any_dim: bool) -> None:
    if not PRESET.fullmatch(name):
        raise ValueError(f"preset '{name}' needs a name of at most 32 letters, digits, _ and - that begins with a letter")
    if isinstance(preset.shapes, str) or not preset.shapes:
        raise ValueError(f"preset {name}: shapes must be a tuple of texts such as 4096x1024")
    for text in preset.shapes:
        try:
            found = shape_of(text)
        except ValueError as error:
            raise ValueError(f"preset {name}: {error}") from None
        if not (found.plain or any_dim):
            raise ValueError(f"preset {name}: {text} is not (M, N), and the operation has no any_dim")


def _validate_setting(at: str, when: Setting, known: Mapping[str, Parameter]) -> None:
    if not when:
        return
    if when[0] not in known:
        raise ValueError(f"{at}: when names {when[0]}, which is none of its parameters")
    known[when[0]].read(when[1])


def _validate_pass(operation: Operation, direction: str, one: Pass) -> None:
    if direction not in set(Direction):
        raise ValueError(f"pass {direction}: the name must be one of {', '.join(Direction)}")
    for part in ("inputs", "outputs", "reads"):
        if isinstance(names := getattr(one, part), str) or len(set(names)) < len(names):
            raise ValueError(f"pass {direction}: {part} must be a tuple of names, each once")
        for name in names:
            if name not in operation.tensors:
                raise ValueError(f"pass {direction}: {part} has {name}, which is none of its tensors")
    for share in one.shares:
        if share.tensor not in one.reads or not 0 < share.of <= 1:
            raise ValueError(f"pass {direction}: the share of {share.tensor} is {share.of}; give a number up to 1 for one of its reads")
    first = operation.tensors[one.inputs[0]] if one.inputs else None
    if first is None or first.when or not first.has_columns:
        raise ValueError(f"pass {direction}: its first input must have the axes M and N")
    if not one.outputs or any(operation.tensors[name].when or not operation.tensors[name].has_rows for name in one.outputs):
        raise ValueError(f"pass {direction}: every output must have M as its first axis")


def to_json(operation: Operation) -> JsonObject:
    """An operation as JSON."""
    return asdict(
        replace(
            operation,
            tensors=dict(operation.tensors),
            passes=dict(operation.passes),
            presets=dict(operation.presets),
            values={},
        )
    )


def from_json(data: JsonObject) -> Operation:
    """The inverse of `to_json`; the data are untrusted.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: it is invalid.
    """
    tensors = {
        str(name): TensorSpec(tuple(map(str, one["axes"])), str(one["dtype"]), tuple(one["when"])) for name, one in data["tensors"].items()
    }
    passes = {str(name): _pass_from_json(one) for name, one in data["passes"].items()}
    known = tuple(parameters.from_json(one) for one in data["parameters"])
    presets = {str(name): Preset(tuple(map(str, one["shapes"])), str(one["doc"])) for name, one in data["presets"].items()}
    found = Operation(str(data["name"]), tensors, passes, str(data["summary"]), known, any_dim=bool(data["any_dim"]), presets=presets)
    validate(found)
    return found


def _pass_from_json(data: JsonObject) -> Pass:
    inputs, outputs, reads = (tuple(map(str, data[part])) for part in ("inputs", "outputs", "reads"))
    return Pass(inputs, outputs, reads, tuple(Share(str(one["tensor"]), float(one["of"]), tuple(one["when"])) for one in data["shares"]))
