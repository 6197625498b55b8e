"""A target of the gate: a function of a package with inputs of given shapes. What the reference's version returns is right.

Its file (`*.target`, JSON) is written by the gate. The worker of the reference keeps what its function returns in the check before timing,
and that of the candidate compares its own outputs with that, for the same inputs:

    |out - reference| <= atol + rtol n

n is the size of an element: its value plus the root mean square of its row. Integers and bools must be equal. While calls are timed, each
side is compared with a call of its own that is not timed.

The inputs are written as the arguments of a call: `x[M,N], w:fp32[N], labels:int64[M]<N, eps=1e-6`. A tensor without a dtype has that of
the case. Floating values are drawn from a normal distribution, and integers from 0 to below the bound.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from softbench.core.case import Case, Value
from softbench.core.errors import UsageError
from softbench.core.files import replacing
from softbench.core.outcome import Accuracy, Grade
from softbench.ops.check_case import See, Tensors
from softbench.ops.dtypes import TENSOR_DTYPES
from softbench.plugins.targets import Benchmark, resolve
from softbench.problems.layout import _equal_bits
from softbench.problems.problem import Arguments, Problem, Tolerance
from softbench.problems.values import ProblemValues, _sizes

TOLERANCES: dict[str, Tolerance] = {"fp32": (1e-5, 1e-5), "fp16": (1e-3, 1e-5), "bf16": (1.6e-2, 1e-5)}
"""Those of torch.testing.assert_close; in float32 a larger rtol, as a sum in another order loses more than one rounding."""
DEFAULT_SIZE = 4096
CHUNK = 2**22
"""Bytes that are summed at once."""
CHECKED = 2
"""Checks of a case before it is timed, whose outputs are compared with the reference's."""
_TENSOR = re.compile(r"(?:(?P<key>\w+)=)?(?P<name>[A-Za-z_]\w*)?(?::(?P<dtype>\w+))?\[(?P<dims>[^\]]*)\](?:<(?P<bound>\w+))?")
_CONSTANT = re.compile(r"(?:(?P<key>[A-Za-z_]\w*)\s*=\s*)?(?P<value>.+)", re.DOTALL)
_ALIASES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


class Spec(NamedTuple):
    """An argument: a tensor, or a constant."""

    key: str
    """The name of a named argument; empty for a positional one."""
    name: str
    dims: tuple[str, ...] | None
    """Sizes: numbers, or names of parameters. None for a constant."""
    dtype: str = ""
    """Of a tensor; empty for that of the case."""
    bound: str = ""
    """What integers are below."""
    value: Any = None
    """Of a constant."""


def parse_inputs(text: str) -> list[Spec]:
    """The arguments that a text such as `x[M,N], w[N], eps=1e-6` describes. Raises UsageError."""
    found = []
    for number, part in enumerate(filter(None, map(str.strip, _split(text)))):
        if tensor := _TENSOR.fullmatch(part):
            dtype = _ALIASES.get(tensor["dtype"] or "", tensor["dtype"] or "")
            if dtype and dtype not in TENSOR_DTYPES:
                raise UsageError(f"inputs: {part}: no dtype {dtype}; there are {', '.join(TENSOR_DTYPES)}")
            dims = tuple(one.strip() for one in tensor["dims"].split(",") if one.strip())
            if wrong := next((one for one in dims if not re.fullmatch(r"\w+", one)), ""):
                raise UsageError(f"inputs: {part}: {wrong} is no size; write a number or a name, as in x[M,N]")
            found.append(Spec(tensor["key"] or "", tensor["name"] or tensor["key"] or f"x{number}", dims, dtype, tensor["bound"] or ""))
            continue
        constant = _CONSTANT.fullmatch(part)
        try:
            value = literal_eval(constant["value"]) if constant else None
        except (ValueError, SyntaxError):
            raise UsageError(f"inputs: {part}: write a tensor as x[M,N] or x:int64[M]<N, or a constant as eps=1e-6") from None
        found.append(Spec((constant and constant["key"]) or "", "", None, value=value))
    return found


def _split(text: str) -> Iterator[str]:
    """The parts between commas that are in no bracket."""
    depth, begin = 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and not depth:
            yield text[begin:place]
            begin = place + 1
    yield text[begin:]


def _required(function: Callable[..., Any]) -> list[str]:
    """The parameters that a call must give; none if they are not known, as of a compiled function."""
    try:
        known = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [one.name for one in known if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]


class Target(Problem):
    """A function of a package, with inputs of these shapes."""

    solution = ""
    recorded = True

    def __init__(self, file: Path) -> None:
        """Raises UsageError for a function or inputs that cannot be had."""
        given = json.loads(file.read_text("utf-8"))
        self.file, self.name, self.given = file, given["name"], given
        self.recorder: str = given["recorder"]
        """The name of the backend whose outputs are right."""
        self._function = resolve(given["function"])
        self.benchmark = self._function if isinstance(self._function, Benchmark) else None
        self.specs = [] if self.benchmark else parse_inputs(given["inputs"])
        if not isinstance(self._function, Benchmark) and not self.specs and (needed := _required(self._function)):
            raise UsageError(f"takes ({', '.join(needed)}), but has no inputs; write them: --inputs 'x[M,N], w[N]'")
        self.takes_dtype = any(one.dims is not None and not one.dtype for one in self.specs)
        self.traced = tuple(given["dtypes"] or self.traced)
        self.summary = given["function"]
        names = dict.fromkeys(size for one in self.specs for size in (*(one.dims or ()), one.bound) if size and not size.isdigit())
        self.parameters = self.benchmark.cases[0] if self.benchmark else dict.fromkeys(names, DEFAULT_SIZE)
        self.cases = self.benchmark.cases if self.benchmark else ({},)

    def inputs(self, values: Mapping[str, Value], seed: int, dtype: torch.dtype, device: torch.device) -> Any:
        """The arguments; of a benchmark one tensor, which its call ignores."""
        self._values = values
        if self.benchmark:
            return torch.zeros(1)
        made = [(one.key, one.value if one.dims is None else _drawn(one, values, dtype)) for one in self.specs]
        return Arguments([value for key, value in made if not key], {key: value for key, value in made if key})

    def reference(self, device: torch.device) -> Callable[..., Any]:
        """The function itself, which shows the form of its outputs. A benchmark is that of the case whose inputs were drawn last."""
        return self.called(self.benchmark.make if self.benchmark else self._function, self._values)  # type: ignore[arg-type]

    def called(self, found: Callable[..., Any], values: Mapping[str, Value]) -> Callable[..., Any]:
        """The call of a case: of a benchmark one that ignores its tensor."""
        if not self.benchmark:
            return found
        call = found(values)

        def ignoring(tensor: torch.Tensor) -> Any:
            out = call()
            return out if _has_tensor(out) else torch.empty(1, device=tensor.device)

        return ignoring

    def tolerance(self, dtype: str) -> Tolerance:
        """That of the target, or that of the dtype."""
        own = self.given.get("tolerance")
        return (float(own[0]), float(own[1])) if own else TOLERANCES[dtype]


def _has_tensor(out: Any) -> bool:
    return isinstance(out, torch.Tensor) or (isinstance(out, tuple | list) and any(isinstance(one, torch.Tensor) for one in out))


def _drawn(one: Spec, values: Mapping[str, Value], dtype: torch.dtype) -> torch.Tensor:
    sizes = [int(values.get(size, size)) for size in one.dims or ()]
    kind = TENSOR_DTYPES[one.dtype] if one.dtype else dtype
    if kind.is_floating_point:
        return torch.randn(sizes).to(kind)
    return torch.randint(0, int(values.get(one.bound, one.bound or 2)), sizes).to(kind)


class TargetValues(ProblemValues):
    """Inputs of a target, and the comparison with the outputs of the reference's version."""

    __slots__ = ("calls", "checked", "records")

    problem: Target
    calls: dict[str, Callable[..., Any]]
    """This worker's call, by case."""
    checked: dict[str, int]
    """How often a case was checked."""
    records: dict[str, bool]
    """By case: whether this worker is the reference's."""

    def __init__(self, problem: Target) -> None:
        super().__init__(problem)
        for name in self.__slots__:
            object.__setattr__(self, name, {})

    def adapted(self, case: Case, call: Callable[..., object], backend: object) -> Callable[..., object]:
        layout = self._layout(case)
        found = layout.adapted(self.problem.called(call, self.values(layout.case.extent)))
        self.calls[case.key] = found
        self.checked.setdefault(case.key, 0)
        self.records[case.key] = getattr(backend, "name", "") == self.problem.recorder
        return found

    def accepted(self, case: Case, given: Tensors) -> str:
        return ""

    def check(
        self,
        case: Case,
        inputs: Tensors,
        outputs: Tensors,
        see: See | None = None,
        kinds: Sequence[str] = (),
        numbers: Sequence[int] | None = None,
    ) -> Accuracy:
        if self.problem.benchmark and outputs[0].shape == (1,):
            return Accuracy(Grade.PASS, 0.0, "")  # it returns nothing to compare
        self.checked[case.key] += 1
        if self.checked[case.key] > CHECKED:
            return self._compared(case, outputs, self._again(case, inputs))
        file = self._file(case, inputs)
        if self.records[case.key] and not file.exists():
            with replacing(file) as opened:
                opened.writelines(_written(outputs))
            _accept(file, outputs, 0.0)
        if not file.exists():
            why = "the inputs differ from those of the reference, as two versions of torch draw other numbers"
            return Accuracy(Grade.UNVERIFIED, math.nan, why)
        if (peak := _accepted(file, outputs)) is not None:  # as in another process: the file of a large output takes seconds to read
            return Accuracy(Grade.PASS, peak, "")
        found = self._compared(case, outputs, tuple(tensor.to(outputs[0].device) for tensor in _read(file.read_bytes())))
        if found.grade is Grade.PASS:
            _accept(file, outputs, found.worst)
        return found

    def _compared(self, case: Case, outputs: Tensors, expected: Tensors) -> Accuracy:
        """The outputs against others, by the tolerance."""
        rtol, atol = self.problem.tolerance(case.dtype)
        peak, detail = 0.0, ""
        for name, out, exact in zip(self._layout(case).outputs, outputs, expected, strict=True):
            over, where = _excess(name, out, exact, rtol, atol)
            if over > peak:
                peak, detail = over, where
        if peak > 1:
            return Accuracy(Grade.WRONG, peak, f"{detail}; beyond the tolerance, rtol {rtol:g} and atol {atol:g}")
        return Accuracy(Grade.PASS, peak, "")

    def _again(self, case: Case, inputs: Tensors) -> Tensors:
        with torch.no_grad():
            found = self.calls[case.key](*(tensor.clone() for tensor in inputs))
        return found if isinstance(found, tuple) else (found,)

    def _file(self, case: Case, inputs: Tensors) -> Path:
        """The file of the reference's outputs for these inputs, which its worker writes."""
        return self.problem.file.with_name(f"{_name(case.key, inputs)}.bin")


def _name(key: str, tensors: Tensors) -> str:
    """A name that differs if a tensor differs."""
    return hashlib.sha256(f"{key} {[(tensor.dtype, tensor.shape, _sum(tensor)) for tensor in tensors]}".encode()).hexdigest()[:24]


def _accept(file: Path, outputs: Tensors, peak: float) -> None:
    """Note that these outputs are within the tolerance of those in the file, and their largest error."""
    with replacing(file.with_name(f"{_name(file.stem, outputs)}.ok")) as opened:  # another process may read it at any time
        opened.write(repr(peak).encode())


def _accepted(file: Path, outputs: Tensors) -> float | None:
    """The error that `_accept` noted of the same outputs; None if there is none."""
    noted = file.with_name(f"{_name(file.stem, outputs)}.ok")
    return float(noted.read_text("utf-8")) if noted.exists() else None


def _written(tensors: Tensors) -> Iterator[Any]:
    """Dtypes and shapes as a line of JSON, and the elements: a pickle of another process could run code."""
    yield json.dumps([[str(part.dtype).removeprefix("torch."), [*part.shape]] for part in tensors]).encode() + b"\n"
    for part in tensors:
        yield part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _read(text: bytes) -> Iterator[torch.Tensor]:
    """The tensors of `_written`."""
    head, _, elements = text.partition(b"\n")
    memory, place = torch.frombuffer(bytearray(elements or b"-"), dtype=torch.uint8), 0
    for name, shape in json.loads(head):
        dtype: torch.dtype = getattr(torch, name)
        size = math.prod(shape) * dtype.itemsize
        yield memory[place : place + size].clone().view(dtype).view(shape)  # clone aligns it
        place += size


def _sum(tensor: torch.Tensor) -> int:
    """A number that differs if an element differs, or two change places."""
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    found = torch.zeros((), dtype=torch.int64, device=data.device)
    for number, part in enumerate(data.split(CHUNK)):
        weights = torch.arange(1, part.numel() + 1, device=data.device)
        found += (part * weights).sum() * (number + 1)
    return int(found.item())


def _excess(name: str, out: torch.Tensor, exact: torch.Tensor, rtol: float, atol: float) -> tuple[float, str]:
    """The largest error in units of the tolerance, and where it is."""
    if out.shape != exact.shape or out.dtype != exact.dtype:
        return math.inf, f"{name} is {out.dtype} {tuple(out.shape)}, and {exact.dtype} {tuple(exact.shape)} in the reference"
    if not out.numel() or _equal_bits(out, exact):
        return 0.0, ""
    if not exact.is_floating_point():
        over = torch.where(out == exact, 0.0, math.inf)
    else:
        wide, expected = out.double(), exact.double()
        same = (wide == expected) | (wide.isnan() & expected.isnan())
        apart = (wide - expected).abs() / (atol + rtol * _sizes(expected[None])[0]).clamp_min(1e-300)
        over = torch.where(same, 0.0, apart.nan_to_num(nan=math.inf, posinf=math.inf))
    peak = over.max().item()
    if peak <= 1:
        return peak, ""
    flat = int(over.argmax().item())
    place = ", ".join(str(int(one)) for one in torch.unravel_index(torch.tensor(flat), out.shape))
    return (
        peak,
        f"{name}{place and f'[{place}]'} is {out.reshape(-1)[flat].item():.6g}, and {exact.reshape(-1)[flat].item():.6g} in the reference",
    )


Target.of_values = TargetValues
