"""The values of a problem: its inputs, the reference replayed in float64, and a bound sampled from what the reference itself loses.

The reference runs twice: in the case's dtypes, and in float64. An element's error is measured in units of its size n, which is its float64
value plus the root mean square of its row, or of the whole output if a row is one element. At most FEW elements may all cancel, so these
have at least the size that they had in one of the SEEDS draws. The largest error in these draws is what the reference loses. Another right
kernel may lose FACTOR times as much, and always what one float32 sum in any order loses:

    |out - exact| <= FACTOR loss n + u (16 + 2 log2 R + sqrt R) n + u_o |exact| + eta

R is the number of terms of an element, u that of float32, u_o and eta those of the output's dtype. Integers and bools must be equal, to
the reference in either precision. An output in this bound is `sampled`; one that only the problem's own tolerance accepts is `tolerance`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from softbench.core.case import MAX_CELLS, Case, Direction, Value, op_text, parse_op
from softbench.core.errors import UsageError
from softbench.core.outcome import Grade
from softbench.core.text import one_line
from softbench.ops.check import Worst, excess
from softbench.ops.check_case import CheckCase, Draw, Tensors
from softbench.ops.dtypes import DTYPES, TENSOR_DTYPES
from softbench.ops.error_terms import Bounded, U
from softbench.ops.operation import Extent, WholeCase
from softbench.ops.values import Change, Values
from softbench.plugins.traits import is_yardstick
from softbench.problems.layout import Layout, layout_of, op_of
from softbench.problems.problem import SIZES, Problem, Tolerance, drawn
from softbench.problems.replay import in_float64, wide_module

BASELINES = "softbench.problems.baselines"
"""The module of the reference backends, which return their outputs always."""
FACTOR = 4.0
"""How much more than the reference another right kernel may lose."""
SEEDS = (2**30, 2**30 + 1)
"""The draws that tell what the reference loses."""
REFUSING = 2**16
"""Elements that are compared first with outputs that nothing computed: one outside the bound refuses these."""
FEW = 8
"""An output of more elements is a measure of its own size."""
SHOWN = 200
"""Characters of the reason why a case is left out."""
FAR = 1e-3
"""The least size of an element, in units of the root mean square of the whole output."""


class ProblemValues(Values):
    """Inputs, reference and bound of a problem."""

    __slots__ = ("layouts", "losses", "problem", "references", "trusted", "written")

    problem: Problem
    layouts: dict[Extent, Layout]
    losses: dict[tuple[str, str], list[tuple[float, float]]]
    references: dict[tuple[str, bool], Callable[..., Any]]
    trusted: dict[tuple[str, str], bool]
    """By case and device: whether the problem's own tolerance counts."""
    written: dict[str, tuple[int, ...]]
    """By case: the inputs that the reference writes and does not read."""

    def __init__(self, problem: Problem) -> None:
        for name, value in (("problem", problem), ("layouts", {}), ("losses", {}), ("references", {}), ("written", {}), ("trusted", {})):
            object.__setattr__(self, name, value)

    def declare(self, values: Mapping[str, Value]) -> Layout:
        """The layout of the case with these values of the parameters. Raises as `layout_of`."""
        found = layout_of(self.problem, op_of(self.problem, values), values)
        return self.layouts.setdefault(found.case.extent, found)

    def declare_all(self, cases: Sequence[Mapping[str, Value]], most: int) -> list[str]:
        """Declare cases until so many can run; returns a line for each that raises. Raises what the first does if none can."""
        lost: dict[str, Exception] = {}
        for values in cases:
            if len(self.layouts) == most:
                break
            try:
                self.declare(values)
            except Exception as error:  # of the problem's own code
                lost[op_text(self.problem.name, values)] = error
        if lost and not self.layouts:
            raise next(iter(lost.values()))
        return [f"{op} is left out: {one_line(f'{type(error).__name__}: {error}', SHOWN)}" for op, error in lost.items()]

    def layout(self, extent: Extent) -> Layout:
        """The layout of a case. Raises KeyError if the problem has no such case."""
        if extent not in self.layouts:
            self.declare(self.values(extent))
        return self.layouts[extent]

    def values(self, extent: Extent) -> dict[str, Value]:
        """The values of the parameters of a case."""
        op, M, N, _ = extent
        sizes = {name: size for name, size in zip(SIZES, (M, N), strict=True) if name in self.problem.parameters}
        return {**self.problem.parameters, **parse_op(op)[1], **sizes}

    def _layout(self, case: Case) -> Layout:
        return self.layout((case.op, case.M, case.N, case.shape))

    def adapted(self, case: Case, call: Callable[..., object], backend: object) -> Callable[..., object]:
        if is_yardstick(backend):
            return call
        layout, found = self._layout(case), self.problem.ready(call, torch.device(case.device))
        if self.problem.destination and type(backend).__module__ != BASELINES:
            return layout.writing(found, case)
        return layout.adapted(found)

    def make(self, case: Case, seed: int, device: torch.device) -> Tensors:
        number = zlib.crc32(f"{seed} {case.key}".encode())
        layout = self._layout(case)
        tree = drawn(self.problem, self.values(layout.case.extent), number, DTYPES[case.dtype], device)
        found = tuple(tensor.to(device) for tensor in layout.tensors(tree))
        for place in self._destinations(case, found):
            _fill(found[place], math.nan)  # stale memory may hold the right output of another call
        for name, tensor in zip(layout.inputs, found, strict=True):
            if (now := tuple(tensor.shape)) != (before := layout.shape(name)):
                raise TypeError(f"inputs returns a {name} of shape {now} for one seed and {before} for another")
        return found

    def _destinations(self, case: Case, inputs: Tensors) -> tuple[int, ...]:
        """The inputs that the reference writes and does not read."""
        layout = self._layout(case)
        if case.key not in self.written:
            found = []
            for place in layout.in_place:
                outs = []
                for fill in (partial(_fill, value=0), _scatter, partial(_fill, value=math.nan)):
                    given = [tensor.clone() for tensor in inputs]
                    fill(given[place])
                    with torch.no_grad():
                        outs.append([out.double() for out in layout.results(layout.called(self.callable(case.device), given), given)])
                if all(
                    torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(), other.nan_to_num())
                    for changed in outs[1:]
                    for one, other in zip(outs[0], changed, strict=True)
                ):
                    found.append(place)
            self.written[case.key] = tuple(found)
        return self.written[case.key]

    def draw(self, case: Case, random: Draw) -> Sequence[torch.Tensor]:
        return self._drawn(case, random)

    def structured_rows(self, case: Case) -> Mapping[str, Change]:
        return {}

    def masks_rows(self, case: Case) -> bool:
        return False

    def passing(self, case: Case) -> Grade:
        return Grade.SAMPLED

    def looser(self, case: Case) -> Grade:
        return Grade.TOLERANCE

    def rounding(self, case: Case, worst: Worst) -> str:
        rtol, atol = self.problem.tolerance(case.dtype) or (0.0, 0.0)
        return f"within the problem's own tolerance (rtol {rtol:g}, atol {atol:g}) only"

    def callable(self, device: str, *, wide: bool = False) -> Callable[..., Any]:
        """The reference on a device, with float64 parameters if it is `wide`."""
        if (device, wide) not in self.references:
            found = wide_module(self.callable(device)) if wide else self.problem.reference(torch.device(device))
            if isinstance(found, torch.nn.Module):
                found.requires_grad_(False)
            self.references[device, wide] = found
        return self.references[device, wide]

    def reference(self, case: Case, *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        """The outputs in float64, as a batch of one."""
        self.callable(case.device, wide=True)  # made here, since weights are other random numbers in float64
        with in_float64():
            return [out[None].double() if out.is_floating_point() else out[None] for out in self._called(case, inputs, wide=True)]

    def _called(self, case: Case, inputs: Sequence[torch.Tensor], *, wide: bool) -> Tensors:
        layout = self._layout(case)
        given = [tensor.clone() for tensor in inputs] if layout.in_place else inputs
        with torch.no_grad():
            return layout.results(layout.called(self.callable(case.device, wide=wide), given), given)

    def bound(self, case: Case, *inputs: torch.Tensor) -> Sequence[torch.Tensor | Bounded]:
        return list(self._bounds(case, inputs, self.reference(case, *inputs), self._tolerance(case)))

    def _tolerance(self, case: Case) -> Tolerance | None:
        """The problem's own tolerance, unless it accepts an output that nothing computed."""
        own, key = self.problem.tolerance(case.dtype), (case.key, case.device)
        if own is not None and key not in self.trusted:
            self.trusted[key] = not self._accepted(case, self.make(case, SEEDS[0], torch.device(case.device)), own)
        return own if own is not None and self.trusted[key] else None

    def _bounds(
        self, case: Case, inputs: Sequence[torch.Tensor], all_exact: Sequence[torch.Tensor], own: Tolerance | None
    ) -> Iterator[Bounded]:
        layout = self._layout(case)
        narrow: Tensors = ()
        for place, (name, exact, (loss, size)) in enumerate(zip(layout.outputs, all_exact, self._losses(case), strict=True)):
            if not exact.is_floating_point():
                narrow = narrow or self._called(case, self._narrow(case, inputs), wide=False)
                none = torch.zeros_like(exact, dtype=torch.float64)
                yield Either(exact, none, none, narrow=narrow[place][None])
                continue
            u_out, eta, largest = _rounding(layout.case.tensors[name].dtype_of(case))
            rounded = torch.where(exact.abs() > largest, exact.sign() * math.inf, exact)
            tight = (FACTOR * loss + _summing(layout, exact)) * _sizes(exact, size) + u_out * exact.abs() + eta
            loose = tight if own is None else torch.maximum(tight, own[1] + own[0] * exact.abs())
            yield Bounded(rounded, tight, loose)

    def _narrow(self, case: Case, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Inputs in float64 in their own dtypes."""
        layout = self._layout(case)
        return [
            tensor.to(TENSOR_DTYPES[layout.case.tensors[name].dtype_of(case)]) for name, tensor in zip(layout.inputs, inputs, strict=True)
        ]

    def _losses(self, case: Case) -> list[tuple[float, float]]:
        """What the reference loses in each output, in units of its elements' sizes, and the least size of an output of few elements."""
        key = case.key, case.device
        if key not in self.losses:
            draws = [self._errors(case, self.make(case, seed, torch.device(case.device))) for seed in SEEDS]
            self.losses[key] = [(max(errors) / (size or 1.0), size) for errors, size in map(_joined, zip(*draws, strict=True))]
        return self.losses[key]

    def _errors(self, case: Case, inputs: Tensors) -> list[tuple[float, float]]:
        """The largest error of each output with its size: of few elements both as they are, else the error in units of the sizes, and 0."""
        narrow = self._called(case, inputs, wide=False)
        again = self._called(case, inputs, wide=False)
        for name, one, other in zip(self._layout(case).outputs, narrow, again, strict=True):
            if not torch.allclose(one.double(), other.double(), rtol=1e-2, atol=1e-6, equal_nan=True):
                raise UsageError(f"the reference gives another {name} for the same inputs; draw random numbers in inputs")
        exact = self.reference(case, *(tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs))
        return [_error(got[None], want) for got, want in zip(narrow, exact, strict=True)]

    def check_cases(self, op: str) -> list[CheckCase]:
        """Two draws of each case, in the order of the cases. An op with parameters is one case."""
        if given := parse_op(op)[1]:
            self.declare({**self.problem.parameters, **given})
        else:
            self.declare_all([{**self.problem.parameters, **case} for case in self.problem.cases], most=MAX_CELLS)
        cases = [Case(M, N, "fp32", Direction.FORWARD, "cpu", text, shape) for text, M, N, shape in self.layouts if not given or text == op]
        return [
            CheckCase(f"{draw} draw {case.op.partition('(')[2].rstrip(')')} {case.identity.size}".replace("  ", " "), case.direction,
                      partial(self._drawn, case), case=case, dtype=self._layout(case).case.dtype)
            for case in cases for draw in ("first", "second")
        ]  # fmt: skip

    def _drawn(self, case: Case, random: Draw) -> Tensors:
        return self.make(replace(case, dtype=random.dtype), random.generator.initial_seed(), random.device)

    def accepted(self, case: Case, given: Tensors) -> str:
        return self._accepted(case, given, self._tolerance(case))

    def _accepted(self, case: Case, given: Tensors, own: Tolerance | None) -> str:
        wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in given]
        all_exact = self.reference(case, *wide)
        for name, exact, bounded in zip(self._layout(case).outputs, all_exact, self._bounds(case, wide, all_exact, own), strict=True):
            if not exact.is_floating_point() or not exact.numel():
                continue
            if exact.isnan().all():
                return f"all of {name} is NaN, which tells no right output from a wrong one"
            expected, loose = bounded.expected.reshape(-1), bounded.loose.reshape(-1)
            read = [one for place, one in enumerate(wide) if place not in self._destinations(case, given)]
            for what, made in _uncomputed(exact, read):
                for part in (slice(REFUSING), slice(None))[: 1 + (exact.numel() > REFUSING)]:
                    if (excess(made(part), expected[part], loose[part]) > 1).any():
                        break
                else:
                    return f"the bound of {name} accepts {what}, so it cannot tell right from wrong"
        return ""


def _uncomputed(exact: torch.Tensor, inputs: Sequence[torch.Tensor]) -> Iterator[tuple[str, Callable[[slice], torch.Tensor]]]:
    """Outputs that nothing computed, each as a function of a part of the elements."""
    flat = exact.reshape(-1)
    yield "zeros", lambda part: torch.zeros_like(flat[part])
    if flat.numel() > 1:
        values = flat.nan_to_num(0, 0, 0)
        mean, deviation = values.mean(), values.std()
        yield "its mean", lambda part: mean.expand(flat[part].shape)
        yield "noise of its mean and deviation", lambda part: torch.randn_like(flat[part]) * deviation + mean
    for one in inputs:
        if one.shape == exact.shape[1:] and one.is_floating_point():
            yield "an input", one.reshape(-1).__getitem__


@dataclass(frozen=True, slots=True)
class Either(Bounded):
    """Integers, which are those of the reference in float64 or in the case's dtype: of two that are close, either may be the largest."""

    narrow: torch.Tensor | None = None

    def counted(self, out: torch.Tensor) -> torch.Tensor:
        return out if self.narrow is None or self.narrow.shape != out.shape else torch.where(out == self.narrow, self.expected, out)


class Cases(Mapping[Extent, WholeCase]):
    """The cases of a problem in a worker, which follows shapes when a case is first asked for."""

    def __init__(self, values: ProblemValues) -> None:
        self.of = values

    def __getitem__(self, extent: Extent) -> WholeCase:
        return self.of.layout(extent).case

    def __iter__(self) -> Iterator[Extent]:
        return iter(self.of.layouts)

    def __len__(self) -> int:
        return len(self.of.layouts)


def _fill(tensor: torch.Tensor, value: float) -> None:
    """Fill a tensor; an integer one with its least value in place of NaN."""
    if math.isnan(value) and not tensor.is_floating_point():
        value = 0 if tensor.dtype is torch.bool else torch.iinfo(tensor.dtype).min
    tensor.copy_(torch.full((), value, dtype=torch.float64 if tensor.is_floating_point() else torch.int64))


def _scatter(tensor: torch.Tensor) -> None:
    """Fill a tensor with numbers that differ from each other: what reads it may not see by how much all of it is shifted."""
    places = torch.arange(tensor.numel(), device=tensor.device).reshape(tensor.shape)
    tensor.copy_((places * 7 % 13 < 6).to(torch.float64 if tensor.is_floating_point() else torch.int64))


def _rounding(dtype: str) -> tuple[float, float, float]:
    """u_o, eta and the largest number of a dtype."""
    about = torch.finfo(TENSOR_DTYPES[dtype])
    return about.eps / 2, about.tiny * about.eps / 2, about.max


def _summing(layout: Layout, exact: torch.Tensor) -> float:
    """What a float32 sum of the terms of an element loses, in units of the element's size."""
    elements = max(1, exact.numel())
    most = max(math.prod(layout.shape(name)) for name in layout.inputs)
    terms = max(1.0, most / elements, layout.case.flops / 2 / elements)
    return U * (16 + 2 * math.log2(terms) + math.sqrt(terms))


def _sizes(exact: torch.Tensor, least: float = 0.0) -> torch.Tensor:
    """The sizes of the elements of an output, a batch of one. `least`: what is added to an element's value at least."""
    finite = torch.where(exact.isfinite(), exact, 0.0)
    if not finite.numel():
        return finite
    rows = finite if finite.dim() > 2 and finite.shape[-1] > 1 else finite.reshape(1, -1)  # a sum that cancels is no measure of itself
    of_rows = rows.square().mean(dim=-1, keepdim=True).sqrt().clamp_min(max(least, FAR * finite.square().mean().sqrt().item()))
    return finite.abs() + (of_rows if rows is finite else of_rows.reshape([1] * finite.dim()))


def _error(got: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
    """The largest error of the reference in units of the sizes, and 0. Of few elements: as it is, and their root mean square."""
    if not exact.is_floating_point() or not exact.numel():
        return 0.0, 0.0
    few = exact.numel() <= FEW
    size = torch.where(exact.isfinite(), exact, 0.0).square().mean().sqrt().item() if few else 0.0
    apart = (got.double() - exact).abs() / (1.0 if size else _sizes(exact))
    return apart.nan_to_num(0, 0, 0).max().item(), size


def _joined(draws: Sequence[tuple[float, float]]) -> tuple[list[float], float]:
    """The errors of an output in all draws, in one unit, and the largest of its sizes."""
    size = max(of for _, of in draws)
    return [error for error, of in draws if of or not size], size
