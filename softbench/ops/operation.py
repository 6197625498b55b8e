"""An operation: its tensors, its passes and its byte model. It needs no torch, so the parent process can use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from softbench.core.case import DIMS, DTYPES, Case, Direction, Value, op_text
from softbench.ops import parameters
from softbench.ops.parameters import Parameter, Setting, holds

ELEMENT_BYTES = DTYPES | {"int64": 8, "int32": 4, "bool": 1, "fp64": 8, "fp8_e4m3": 1, "fp8_e5m2": 1, "int16": 2, "int8": 1, "uint8": 1}
"""Bytes per element of each dtype that a tensor may have."""
AXES = ("M", "N")
SEEN = "seen"
"""The share of a tensor that consists of what queries see, and the name of the number of columns that each row sees."""
CASE_DTYPE = "case"
"""The dtype of a tensor that has the case's."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor of an operation."""

    axes: tuple[str | int, ...]
    """Its axes, such as `("M", "N")`: M, N, the name of a parameter that is a whole number, or a number. The first axis of an output is M,
    because rows of it are sampled. With `scores` of the operation, a tensor may have axes of B, H, S, N in order, or a parameter whose
    choices are words of such axes, such as BSN. Rows share it along the others, which have size 1 if it has N, and else do not exist."""
    dtype: str = CASE_DTYPE
    """`case` for the case's, `fp32`, `fp16`, `bf16`, `int64`, `int32` or `bool`; or the name of a parameter whose choices are such."""
    when: Setting = ()
    """The value of a parameter without which the tensor does not exist, such as `("scale", "row")`."""
    only_seen: bool = False
    """True if an input is 0 beyond what its query sees."""

    def shape(self, case: Case) -> tuple[int, ...]:
        """The tensor's shape in a case. In a case of rows each row has its own part of a tensor that rows share."""
        if case.shape and self.has_columns:
            return case.sizes
        if case.shape and self.is_of_rows:
            return case.sizes[: case.dim] + case.sizes[case.dim + 1 :]
        if self.is_shared:
            if not case.shape:
                return (case.M, case.N)[: 1 + ("N" in self.axes)]
            sizes = {axis: size if axis in self.axes else 1 for axis, size in zip(DIMS, case.sizes, strict=True)}
            return tuple(sizes[axis] for axis in DIMS if "N" in self.axes or axis in self.axes)
        return tuple(axis if isinstance(axis, int) else getattr(case, axis) for axis in self.axes)

    def dtype_of(self, case: Case) -> str:
        """The name of its dtype in a case."""
        return case.dtype if self.dtype == CASE_DTYPE else self.dtype

    def bytes(self, case: Case) -> int:
        """The tensor's bytes in a case."""
        elements = case.M * case.N if self.has_columns else prod(self.shape(case))
        return elements * ELEMENT_BYTES[self.dtype_of(case)]

    @property
    def has_rows(self) -> bool:
        """True if element i belongs to row i, because its first axis is M, or if each row has a part of it."""
        return self.axes[:1] == ("M",) or self.is_shared

    @property
    def is_shared(self) -> bool:
        """True if it has batch, heads or queries: several rows may have one part of it."""
        return not set(DIMS[:-1]).isdisjoint(self.axes)

    @property
    def is_of_rows(self) -> bool:
        """True if it has one element for each row."""
        return self.axes == AXES[:1]

    @property
    def has_columns(self) -> bool:
        """True if it has rows, and its second axis is N."""
        return self.axes == AXES

    def laid_out(self, case: Case, values: Any) -> Any:
        """A torch.Tensor of rows, (M, N) or (M,), in the shape of the case: a view."""
        if not case.shape or not (self.is_of_rows or self.has_columns):
            return values
        rows = case.sizes[: case.dim] + case.sizes[case.dim + 1 :]
        return values.detach().view(*rows, case.N).movedim(-1, case.dim) if self.has_columns else values.view(rows)

    def at(self, values: Mapping[str, Value]) -> TensorSpec:
        """The tensor for these values of the operation's parameters."""
        axes: tuple[str | int, ...] = ()
        for axis in self.axes:
            value = values.get(axis) if isinstance(axis, str) else None
            if isinstance(value, str):
                axes += tuple(value)
            else:
                axes += (axis if value is None else int(value),)
        return TensorSpec(axes, str(values.get(self.dtype, self.dtype)), only_seen=self.only_seen)


@dataclass(frozen=True, slots=True)
class Share:
    """The share of a tensor that an ideal kernel reads, such as half of masked scores."""

    tensor: str
    """Its name."""
    of: float | str
    """Above 0, and at most 1; or `seen`, the share that the queries of a causal operation see."""
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
    in_place: tuple[str, ...] = ()
    """The inputs that a call changes. What each becomes is one of the last outputs, in this order."""
    whole: bool | Setting = False
    """True, or the value of a parameter such as `("reduction", "mean")`, if a row of an output depends on other rows, as a sum over rows
    does. A call is then drawn, changed and compared as a whole."""
    multiply_adds: tuple[str | int, ...] = ()
    """Of a matrix product: the axes, such as `("M", "K", "N")`, whose product is the number of its multiply-adds. A product and its two
    gradients have `(3, "M", "K", "N")`."""
    products_alone: bool = False
    """True if the roof is the time of these products alone; else it is the rate of the fastest product of the dtype."""

    @property
    def writes(self) -> tuple[str, ...]:
        """The tensors that an ideal kernel writes, each once."""
        return self.outputs

    def share(self, tensor: str) -> float | str:
        """The share of a tensor that is read, as it is declared."""
        return next((share.of for share in self.shares if share.tensor == tensor), 1.0)

    def at(self, values: Mapping[str, Value], tensors: Mapping[str, TensorSpec]) -> Pass:
        """The pass for these values of the operation's parameters, on the tensors that exist then."""
        inputs, outputs, reads = (tuple(name for name in names if name in tensors) for names in (self.inputs, self.outputs, self.reads))
        shares = tuple(Share(share.tensor, share.of) for share in self.shares if share.tensor in tensors and holds(share.when, values))
        whole = holds(self.whole, values) if isinstance(self.whole, tuple) else self.whole
        sizes = tuple(axis if isinstance(axis, int) or axis in AXES else int(values[axis]) for axis in self.multiply_adds)
        return Pass(inputs, outputs, reads, shares, self.in_place, whole, sizes, self.products_alone)


Extent = tuple[str, int, int, str]
"""What names a case of a problem beside its dtype: the case's op, M, N and shape."""


@dataclass(frozen=True, slots=True)
class WholeCase:
    """A case of a problem: the tensors have any axes, and no row of them stands alone."""

    extent: Extent
    tensors: Mapping[str, TensorSpec]
    """Its tensors by name; their axes are numbers."""
    call: Pass
    """The call of this case, as arguments may be left out in others."""
    flops: int = 0
    """Floating-point operations of its matrix products and convolutions, as torch counts them."""
    dtype: str = ""
    """The dtype of the case; empty if its inputs have that of `--dtype`."""
    spec: tuple[str, ...] = ()
    """The case in the words of the problem's format, once for each benchmark there that differs in its seed only."""


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
    """The name of its module in `softbench.ops`, or that of a user's file."""
    tensors: Mapping[str, TensorSpec]
    """Its tensors, by name."""
    passes: Mapping[str, Pass]
    """Its passes, by a case's direction."""
    summary: str = ""
    """One line for `softbench list --ops`."""
    parameters: tuple[Parameter, ...] = ()
    """The parameters, which `--set` sets."""
    parameter_values: Mapping[str, Value] = field(default_factory=dict)
    """The value of each parameter, of an operation that `at` returned."""
    any_dim: bool = False
    """True if its rows may lie along any dimension of an N-D tensor, as `--shape` gives it. Tensors of M and N then have that shape, and
    those of M the other dimensions. With parameters that change its tensors it is False, because `over_dim` of a backend gets no such."""
    presets: Mapping[str, Preset] = field(default_factory=dict)
    """Shapes by name."""
    scores: bool = False
    """True if its tensors of M and N are attention scores of shape (B, H, S, N). Each case then has such a shape."""
    causal: Setting = ()
    """The value of a parameter with which a query sees no later key. Query s sees its first s + 1 + max(0, N - S) keys."""
    whole: bool = False
    """True for a problem: its tensors have no rows, and each pass is whole."""
    cases: Mapping[Extent, WholeCase] = field(default_factory=dict)
    """The cases of a problem. M and N are those of its first tensor, or parameters of these names."""
    case_dtypes: tuple[str, ...] = tuple(DTYPES)
    """The dtypes of its cases."""
    solution: str = ""
    """What a plugin file may call its function or class, beside the operation's name."""
    format: str = ""
    """The format of a problem, as `softbench export --to` names it; empty if none has such results."""
    recorded: bool = False
    """True if the outputs of the reference backend are right, so that it is checked before the others."""
    lost: tuple[str, ...] = ()
    """A line for each case of a problem that cannot run, with the reason."""

    def __hash__(self) -> int:
        """Of the name, as a mapping has no hash."""
        return hash(self.name)

    def at(self, given: Mapping[str, Value]) -> Operation:
        """The operation for these parameters: tensors, dtypes, passes and bytes follow from them.

        Raises:
            ValueError: a parameter is unknown or has another value.
        """
        values = parameters.read(self.parameters, given, self.name)
        tensors, usual = self._tensors_at(values), self._tensors_at({parameter.name: parameter.default for parameter in self.parameters})
        passes = {direction: one.at(values, tensors) for direction, one in self.passes.items()}
        return replace(self, tensors=tensors, passes=passes, parameter_values=values, any_dim=self.any_dim and tensors == usual)

    def _tensors_at(self, values: Mapping[str, Value]) -> dict[str, TensorSpec]:
        return {name: tensor.at(values) for name, tensor in self.tensors.items() if holds(tensor.when, values)}

    @property
    def text(self) -> str:
        """A case's `op`: the name, and the parameters that are not at their default."""
        defaults = {parameter.name: parameter.default for parameter in self.parameters}
        return op_text(self.name, {name: value for name, value in self.parameter_values.items() if value != defaults[name]})

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes of its cases; those that its parameters are for."""
        changed = [
            parameter
            for parameter in self.parameters
            if self.parameter_values and self.parameter_values[parameter.name] != parameter.default
        ]
        return tuple(dtype for dtype in self.case_dtypes if all(dtype in parameter.dtypes for parameter in changed))

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions of its passes."""
        return tuple(Direction(name) for name in self.passes)

    @property
    def is_causal(self) -> bool:
        """True if queries see no later keys, of an operation that `at` returned."""
        return bool(self.causal) and holds(self.causal, self.parameter_values)

    def tensor(self, name: str, case: Case) -> TensorSpec:
        """A tensor of a case.

        Raises:
            KeyError: the problem has no such case.
        """
        if self.whole:
            return self.cases[case.op, case.M, case.N, case.shape].tensors[name]
        spec = self.tensors[name]
        return TensorSpec(spec.shape(case), spec.dtype) if self.is_whole(case) else spec

    def is_whole(self, case: Case) -> bool:
        """True if a call of the case is drawn, changed and compared as a whole. Its tensors then have no rows."""
        return self.whole or bool(self.passes[case.direction].whole)

    def with_rows(self, case: Case) -> list[bool]:
        """For each input of a case, whether structured rows can be written to it."""
        if self.is_whole(case):
            return [self.tensors[name].has_rows for name in self.passes[case.direction].inputs]
        return [spec.has_rows for spec in self.inputs(case)]

    def free(self, case: Case) -> list[bool]:
        """For each input of a case, whether its elements may change alone: where a pass gets a result of the forward, what the forward
        knows may not."""
        inputs, forward = self.passes[case.direction].inputs, self.passes.get(Direction.FORWARD)
        saved = forward is not None and not set(inputs).isdisjoint(forward.outputs)
        known = {*forward.inputs, *forward.outputs} if forward and saved else set()
        return [name not in known for name in inputs]

    def flops(self, case: Case) -> int:
        """Floating-point operations of the matrix products of a call; 0 if it has none."""
        if self.whole:
            return self.cases[case.op, case.M, case.N, case.shape].flops
        sizes = self.passes[case.direction].multiply_adds
        return 2 * prod(size if isinstance(size, int) else getattr(case, size) for size in sizes) if sizes else 0

    def products_alone(self, case: Case) -> tuple[int, int, int] | None:
        """M, K and N of the product whose time, with that of its gradients if the pass has three, is the roof of a case.

        None if the roof is the rate of the fastest product of the dtype.
        """
        one = self.pass_of(case)
        if not one.products_alone:
            return None
        M, K, N = (size if isinstance(size, int) else int(getattr(case, size)) for size in one.multiply_adds[-3:])
        return M, K, N

    def pass_of(self, case: Case) -> Pass:
        """The pass of a case. Raises as `tensor`."""
        return self.cases[case.op, case.M, case.N, case.shape].call if self.whole else self.passes[case.direction]

    def rows(self, case: Case) -> int:
        """How many parts of a case are compared by themselves: its rows, and 1 of a case that is whole."""
        return 1 if self.is_whole(case) else case.M

    def inputs(self, case: Case) -> tuple[TensorSpec, ...]:
        """The arguments of a call of this case, in order. A case of rows of a causal operation also has what each row sees."""
        given = tuple(self.tensor(name, case) for name in self.pass_of(case).inputs)
        return (*given, TensorSpec(("M",), "int64")) if self.is_causal and not case.shape else given

    def outputs(self, case: Case) -> dict[str, TensorSpec]:
        """What a call of this case returns, by name."""
        return {name: self.tensor(name, case) for name in self.pass_of(case).outputs}

    def largest_bytes(self, case: Case) -> int:
        """Bytes of the case's largest tensor."""
        tensors = self.cases[case.op, case.M, case.N, case.shape].tensors if self.whole else self.tensors
        return max(spec.bytes(case) for spec in tensors.values())

    def bytes_moved(self, case: Case) -> int:
        """Algorithmic bytes of one call: what must be moved, not what a backend happens to move.

        Triton's tutorial counts M*N*itemsize for softmax forward: half of this.
        """
        done = self.pass_of(case)
        read = sum(self.bytes_read(case, name) for name in done.reads)
        return read + sum(self.tensor(name, case).bytes(case) for name in done.writes)

    def distinct_bytes(self, case: Case) -> int:
        """Bytes of the case's distinct tensors: one that is written and read again counts once."""
        done = self.pass_of(case)
        read = sum(self.bytes_read(case, name) for name in done.reads if name not in done.writes)
        return read + sum(self.tensor(name, case).bytes(case) for name in done.writes)

    def bytes_read(self, case: Case, name: str) -> int:
        """The bytes of a tensor that the pass of a case reads."""
        share, spec = self.pass_of(case).share(name), self.tensor(name, case)
        if isinstance(share, str):
            whole = not (spec.has_columns or {"S", "N"} <= set(spec.axes))  # what queries share is read for the last one
            share = 1.0 if whole else _seen_share(*case.sizes[-2:])
        return round(share * spec.bytes(case))

    def gbps(self, case: Case, us: float) -> float:
        """Decimal GB/s of a call that takes `us` microseconds."""
        return self.bytes_moved(case) / us / 1e3


def _seen_share(S: int, N: int) -> float:
    """The share of S x N scores that causal queries see."""
    steps = min(S, N)  # the numbers of keys that queries see rise to N in so many steps
    return (S * N - steps * (steps - 1) // 2) / (S * N)
