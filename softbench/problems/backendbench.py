"""An operator of BackendBench: `torch.ops.aten` is the reference, and the operator's folder has the solutions.

`relu/relu_implementation_v1.py` has `relu_kernel_impl`; `add__Tensor` stands for `add.Tensor`. Cases are the lines of a file of traces,
such as `cnt: 3, ((T([5, 5], f16), T([5, 5], f16)), {})` below `Operator: aten.add.Tensor`. Without traces of the operator, its arguments
follow from its schema, with M and N. Its evaluator draws values from 0 to 1, where relu returns its input; here they are normal, unless the
operator has fewer NaN and infinities from 0 to 1. https://github.com/meta-pytorch/BackendBench
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from inspect import Parameter, Signature
from itertools import islice, product
from keyword import iskeyword
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_iter, tree_map_only

from softbench.core.case import Value
from softbench.core.errors import UsageError
from softbench.core.text import did_you_mean
from softbench.ops import registry
from softbench.problems.problem import Arguments, Problem, Tolerance, seeded

SAMPLE = "sample"
"""The parameter of an operator with traces: the number of the trace, the largest first."""
TOLERANCE = (1e-2, 1e-2)
"""rtol and atol of its evaluator."""
DTYPES = {
    **{"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64, "b8": torch.bool, "u8": torch.uint8},
    **{"i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64},
    **{"c32": torch.complex32, "c64": torch.complex64, "c128": torch.complex128},
}
NAMES = {**DTYPES, "inf": math.inf, "nan": math.nan}
LINE = re.compile(r"cnt: \d+, (.*)")
RENAMED = {"aten.sum.SymInt": "aten.sum.dim_IntList"}
"""Operators of older traces."""
SMALL = (3, 4)
"""M and N of the call that tells which arguments an operator takes."""
INTEGER_RANGES = ((-9, 10), (0, 1000), (0, 100), (0, 10), (0, 2))
"""The least integer, and the one after the largest."""
FEW_CASES = 3
"""Cases on which the values are tried, the smallest."""
TRIES = 400
"""Arguments that are tried."""
CHOICES: Mapping[str, tuple[Any, ...]] = {
    "int": (-1, 1), "SymInt": (-1, 1), "bool": (False,), "float": (0.5,), "number": (0.5, 2), "str": ("none",),
    "List[int]": ([-1], ["N"], ["M", "N"]), "List[SymInt]": (["N"], ["M", "N"], [-1]),
}  # fmt: skip
"""What an argument without a default may be, by its type."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A tensor of a drawn call."""

    axes: tuple[str, ...]
    whole: bool = False
    """True for integers."""


TENSORS = tuple(Drawn(axes) for axes in (("M", "N"), ("N", "M"), ("N",), ("M",)))
INTEGERS = tuple(Drawn(axes, whole=True) for axes in (("M", "N"), ("N",)))


class BackendBench(Problem):
    """An operator's folder."""

    def __init__(self, file: str) -> None:
        """`file` is the folder, and after a colon the file of traces if there is one. Raises UsageError without such an operator."""
        traces = registry.path_of(file)
        folder = Path(file.removesuffix(f":{traces}") if traces else file).name
        self._op = _operator(folder)
        self.solution, self.name = f"{folder}_kernel_impl", str(self._op).removesuffix(".default")
        self.summary = str(self._op._schema)
        self._named = _named(self._op)
        self._samples = _samples(traces, str(self._op)) if traces else []
        if self._samples:
            self.parameters, self.cases = {SAMPLE: 0}, [{SAMPLE: number} for number in range(len(self._samples))]
        else:
            self._arguments = _drawn(self._op)
            self.takes_dtype = not any(isinstance(leaf, Drawn) and leaf.whole for leaf in tree_iter(self._arguments))
            self.parameters, self.cases = {"M": 1024, "N": 1024}, [{"M": 1024, "N": 1024}, {"M": 33, "N": 781}]
        self._choose_values()

    def inputs(self, values: Mapping[str, Value], seed: int, dtype: torch.dtype, device: torch.device) -> Any:
        """The arguments of a trace, or those drawn for M and N."""
        if self._samples:
            if not 0 <= (number := int(values[SAMPLE])) < len(self._samples):
                raise UsageError(f"{SAMPLE}={number}: the traces of {self.name} are 0 to {len(self._samples) - 1}")
            args, named = _read(self._samples[number], self._tensor, device)
        else:
            args, named = _filled(self._arguments, dict(values), lambda one, size: self._tensor(size, torch.int64 if one.whole else dtype))
        return Arguments(list(args), named)

    def reference(self, device: torch.device) -> Callable[..., Any]:
        """The operator of torch."""

        def call(*args: Any, **named: Any) -> Any:
            return self._op(*args, **named)

        kind = Parameter.POSITIONAL_OR_KEYWORD
        call.__signature__ = Signature([Parameter(f"{n}_" if iskeyword(n) else n, kind) for n in self._named])  # type: ignore[attr-defined]
        return call

    def tolerance(self, dtype: str) -> Tolerance | None:
        """That of its evaluator."""
        return TOLERANCE

    def _tensor(self, size: Any, dtype: torch.dtype, stride: Any = None) -> torch.Tensor:
        """A random tensor. Its strides stay if no two elements share memory and none is left out."""
        shape = [1 + sum((axis - 1) * step for axis, step in zip(size, stride, strict=True))] if stride and prod(size) else list(size)
        if dtype.is_floating_point or dtype.is_complex:
            made = torch.randn(shape, dtype=torch.float32 if dtype.itemsize < 4 else dtype).to(dtype)
            made = made if self._normal else torch.rand_like(made)
        elif dtype is torch.bool:
            made = torch.randint(0, 2, shape).bool()
        else:
            made = torch.randint(max(self._integers[0], 0 if dtype is torch.uint8 else -9), self._integers[1], shape).to(dtype)
        return made.as_strided(size, stride).clone() if stride and prod(size) else made

    def _choose_values(self) -> None:
        """Normal values, or those from 0 to 1 if the operator raises for normal ones or loses more of them to NaN and infinities.

        Integers are from -9 to 9. If the operator raises for them, as for indices, they are from 0 up to as much as it takes.
        """
        lost: dict[tuple[tuple[int, int], bool], int] = {}
        for chosen in product(INTEGER_RANGES, (True, False)):
            self._integers, self._normal = chosen
            with suppress(Exception), seeded(0, torch.device("cpu")), torch.no_grad():
                of_cases = [self._lost(case) for case in self.cases[-FEW_CASES:]]
                lost[chosen] = sum(of_cases)
            if lost.get(chosen) == 0:
                return
        self._integers, self._normal = min(lost, key=lambda one: lost[one], default=(INTEGER_RANGES[0], True))

    def _lost(self, case: Mapping[str, Value]) -> int:
        """The elements of the operator's results that are NaN or infinite in a case."""
        try:
            given = self.inputs(case, 0, torch.float32, torch.device("cpu"))
        except UsageError:  # no trace of BackendBench
            return 0
        out = self._op(*given.args, **given.named)
        return sum(int((~one.isfinite()).sum()) for one in tree_iter(out) if isinstance(one, torch.Tensor))


def _operator(folder: str) -> Any:
    """`torch.ops.aten.add.Tensor` of `add__Tensor`; of `add` the default, or the first overload without `out`."""
    base, _, overload = folder.rpartition("__")
    packet = getattr(torch.ops.aten, base or folder, None) or getattr(torch.ops.aten, folder, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        known = [name for name in dir(torch._C._VariableFunctions) if not name.startswith("__")]
        raise UsageError(f"torch.ops.aten has no operator {base or folder}; {did_you_mean(folder, known)}name the folder as in add__Tensor")
    there = packet.overloads()
    if not base or not hasattr(torch.ops.aten, base):
        overload = next((one for one in ("default", "Tensor", *there) if one in there and "out" not in one), there[0])
    if overload not in there:
        raise UsageError(f"torch.ops.aten.{base} has no overload {overload}; it has {', '.join(there)}")
    return getattr(packet, overload)


def _named(op: Any) -> list[str]:
    return [argument.name for argument in op._schema.arguments]


def _samples(file: Path, op: str) -> list[str]:
    """The arguments of an operator in a file of traces, each once and the largest first."""
    found: dict[str, int] = {}
    current = ""
    for line in file.read_text(errors="replace").splitlines():
        if line.startswith("Operator: "):
            current = line.removeprefix("Operator: ").strip()
            current = RENAMED.get(current, current)
            current += "" if current.count(".") > 1 else ".default"
        elif current == op and (match := LINE.match(line)) and (text := match[1].strip()) not in found:
            sizes: list[int] = []

            def sized(size: Any, dtype: torch.dtype, stride: Any = None, into: list[int] = sizes) -> None:
                into.append(prod(size) * dtype.itemsize)

            with suppress(UsageError):  # a case of such a trace is left out, with a note
                _read(text, sized, torch.device("cpu"))
            found[text] = sum(sizes)
    return sorted(found, key=lambda text: -found[text])


def _read(text: str, tensor: Callable[..., Any], device: torch.device) -> tuple[list[Any], dict[str, Any]]:
    """Positional and named arguments of a trace. Raises UsageError for another text."""

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Constant(str(word)):
                return DTYPES.get(word, device if "torch.device" in word or word.partition(":")[0] in ("cuda", "cpu") else word)
            case ast.Constant(constant):
                return constant
            case ast.Tuple(parts):
                return tuple(map(value, parts))
            case ast.List(parts):
                return list(map(value, parts))
            case ast.Dict(keys, values):
                return {value(key): value(one) for key, one in zip(keys, values, strict=True) if key is not None}
            case ast.UnaryOp(ast.USub(), operand):
                return -value(operand)
            case ast.Name(name) if name in NAMES:
                return NAMES[name]
            case ast.Attribute(ast.Name("torch" | "th"), name):
                return getattr(torch, name)
            case ast.Call(ast.Attribute(ast.Name("torch" | "th"), "device")):
                return device
            case ast.Call(ast.Name("T"), [size, dtype, *rest]):
                return tensor(value(size), value(dtype), value(rest[0]) if rest else None)
        raise ValueError(ast.unparse(node))

    try:
        args, named = value(ast.parse(text.strip("'\""), mode="eval").body)
        return list(args), dict(named)
    except (AttributeError, SyntaxError, TypeError, ValueError) as error:
        raise UsageError(f"the trace {text[:80]} is none of BackendBench, which writes ((T([5, 5], f16),), {{}}): {error}") from None


def _drawn(op: Any) -> tuple[list[Any], dict[str, Any]]:
    """Arguments without a default, of which torch accepts a small call; M, N and tensors stand for what is filled in. Raises UsageError."""
    due = [one for one in op._schema.arguments if not one.has_default_value()]
    sizes, last = dict(zip("MN", SMALL, strict=True)), ""
    for integers in (False, True):
        for values in islice(product(*(_choices(str(one.type), integers=integers) for one in due)), TRIES):
            pairs = list(zip(due, values, strict=True))
            found = [value for one, value in pairs if not one.kwarg_only], {one.name: value for one, value in pairs if one.kwarg_only}
            args, named = _filled(found, sizes, lambda one, size: torch.ones(size, dtype=torch.int64 if one.whole else torch.float32))
            try:
                with torch.no_grad():
                    op(*args, **named)
            except Exception as error:  # torch says in many ways that it takes no such arguments
                last = last or str(error).partition("\n")[0]
                continue
            return found
    names = ", ".join(one.name for one in due)
    raise UsageError(
        f"no arguments for {names} of {op!s} of two dimensions are found ({last}); give a file of traces: backendbench:DIR,TRACES.txt"
    )


def _choices(kind: str, *, integers: bool) -> tuple[Any, ...]:
    tensors = INTEGERS if integers else TENSORS
    if kind == "Tensor":
        return (*tensors, *(INTEGERS if not integers else ()))
    return ([tensors[0], tensors[0]],) if kind == "List[Tensor]" else CHOICES.get(kind, (None,))


def _filled(arguments: Any, sizes: Mapping[str, Any], tensor: Callable[[Drawn, list[int]], torch.Tensor]) -> Any:
    """Arguments with numbers for M and N, and tensors for those that stand for one."""
    found = tree_map_only(str, lambda word: int(sizes[word]) if word in sizes else word, arguments)
    return tree_map_only(Drawn, lambda one: tensor(one, [int(sizes[axis]) for axis in one.axes]), found)
