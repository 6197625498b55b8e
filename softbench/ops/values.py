"""The values of a user's operation: four methods to write, from which the other parts of `softbench.ops.numerics` follow."""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial

import torch

from softbench.core.case import Case, Direction
from softbench.core.outcome import Accuracy, Grade
from softbench.ops import registry
from softbench.ops.check_case import CheckCase, Draw, See, Tensors
from softbench.ops.dtypes import TENSOR_DTYPES
from softbench.ops.operation import TensorSpec
from softbench.ops.rows import row_chunks
from softbench.ops.rowwise import independent
from softbench.ops.rowwise.independent import Again, Array
from softbench.ops.rowwise.tolerance import OVERRIDDEN, excess

SHAPES = ((1, 1), (1, 7), (3, 1000), (64, 781), (5, 4097), (300, 64), (2, 20000))
"""M and N of the check cases: odd and even, one row, and rows longer than a block."""
Change = Callable[..., object]
"""Changes some rows of the inputs in place. Inputs without rows come whole and stay as they are."""


class Values(ABC):
    """Inputs, float64 reference and error bound of an operation. `softbench run --op FILE` reads an instance named NUMERICS."""

    def __setattr__(self, name: str, value: object) -> None:
        """An attribute of the instance would replace a method that the tamper guard protects."""
        raise AttributeError(f"{name} is read-only; make it an attribute of the class")

    @abstractmethod
    def draw(self, case: Case, random: Draw) -> Sequence[torch.Tensor]:
        """The inputs of a case, in the order of its pass; `random.normal(M, N)` is standard normal in the case's dtype."""

    @abstractmethod
    def reference(self, case: Case, *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        """The outputs for these inputs. Floating inputs come in float64, and `case.M` is the number of their rows."""

    @abstractmethod
    def bound(self, case: Case, *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        """The largest error of each element of the outputs that right arithmetic makes; the inputs are those of `reference`."""

    @abstractmethod
    def structured_rows(self, case: Case) -> Mapping[str, Change]:
        """Rows on which wrong kernels differ from right ones, by name: constant, large, tiny, one element far from the others."""

    def make(self, case: Case, seed: int, device: torch.device) -> Tensors:
        """The inputs of a case. See `Numerics.make`.

        Raises:
            TypeError: `draw` returns other tensors than those of the pass.
        """
        generator = torch.Generator(device)
        generator.manual_seed(zlib.crc32(f"{seed} {case.key}".encode()))
        drawn = self.draw(case, Draw(generator, case.dtype, device, None))
        if not isinstance(drawn, tuple | list) or not all(isinstance(tensor, torch.Tensor) for tensor in drawn):
            raise TypeError(f"draw of {case.op} returns {type(drawn).__name__}; give a tuple of tensors, those of the pass in order")
        given = tuple(drawn)
        expected = tuple(registry.operation(case.op).inputs(case))
        _compare_forms("draw", case, given, expected, [TENSOR_DTYPES[spec.dtype_of(case)] for spec in expected])
        if case.direction is Direction.BOTH:
            given[0].requires_grad_()
        return given

    def refill(self, given: Tensors, case: Case, seed: int) -> None:
        """Write the values of another seed into the memory of `given`."""
        with torch.no_grad():
            for tensor, values in zip(given, self.make(case, seed, given[0].device), strict=True):
                tensor.copy_(values)

    def drawn(self, given: Tensors) -> bool:
        """True: softbench does not know what the inputs should be."""
        return True

    def kinds(self, case: Case) -> Sequence[str]:
        """The names of the kinds of structured rows."""
        return list(self.structured_rows(case))

    def make_structured(self, given: Tensors, case: Case, seed: int) -> list[str]:
        """Change normal rows into structured rows, in place; row i is of kind i modulo their number."""
        changes = self.structured_rows(case)
        with torch.no_grad():
            for kind, change in enumerate(changes.values()):
                rows = slice(kind, None, len(changes))
                change(*(tensor[rows] if tensor_has_rows else tensor for tensor, tensor_has_rows in self._marked(case, given)))
        return list(changes)

    def estimate(self, case: Case, given: Tensors) -> Tensors:
        """The outputs in float32."""
        return tuple(self.reference(case, *(tensor.detach().float() if tensor.is_floating_point() else tensor for tensor in given)))

    def low_precision(self, case: Case, *inputs: torch.Tensor) -> Sequence[torch.Tensor] | None:
        """The largest errors of the class `low-precision`; None if the operation has no such class. Arguments as in `bound`."""
        return None

    def rounding(self, case: Case, output: str) -> str:
        """What an output of low precision rounds, in words."""
        return "rounds intermediates"

    def check(
        self,
        case: Case,
        inputs: Tensors,
        outputs: Tensors,
        see: See | None = None,
        kinds: Sequence[str] = (),
        numbers: Sequence[int] | None = None,
    ) -> Accuracy:
        """The verdict on outputs: each element within its bound. See `Numerics.check`.

        If `again` of the operation shows that operators of torch were replaced, its results are the reference.
        """
        numbers, witnesses = range(case.M) if numbers is None else numbers, independent.chosen(case.M)
        for by_numpy in (False, True):
            with suppress(independent.OverriddenError):
                return self._check(case, inputs, outputs, see, _Verdict(numbers, kinds), witnesses, by_numpy=by_numpy)
        return Accuracy(Grade.UNVERIFIED, math.nan, OVERRIDDEN)

    def _check(
        self, case: Case, inputs: Tensors, outputs: Tensors, see: See | None, verdict: _Verdict, witnesses: Set[int], *, by_numpy: bool
    ) -> Accuracy:
        names = list(registry.operation(case.op).outputs(case))
        for rows in row_chunks(case):
            part = replace(case, M=rows.stop - rows.start)
            given = [_wide(tensor[rows] if has_rows else tensor) for tensor, has_rows in self._marked(case, inputs)]
            expected, bounds = tuple(self.reference(part, *given)), tuple(self.bound(part, *given))
            if by_numpy:
                expected = tuple(torch.from_numpy(one.expected).to(given[0].device) for one in self._again(part, given) or ())
            if not len(expected) == len(bounds) == len(names):
                raise TypeError(f"reference gives {len(expected)} tensors and bound {len(bounds)}; the pass has {len(names)}")
            loose: Sequence[torch.Tensor] | None = None
            for place, (name, output, exact, bound) in enumerate(zip(names, outputs, expected, bounds, strict=True)):
                got = output.detach()[rows]
                _compare_shapes(name, got, exact, bound)
                if see is not None:
                    see(got.reshape(part.M, -1), exact.reshape(part.M, -1))
                lost = _lost_to_masks(given[0], got, exact)
                over = within = excess(got, exact, bound).masked_fill(lost, 0)
                if over.numel() and not over.amax().item() <= 1:
                    loose = loose or self.low_precision(part, *given)
                    if loose is not None:
                        bound, within = loose[place], excess(got, exact, loose[place]).masked_fill(lost, 0)
                for row in (number - rows.start for number in witnesses if rows.start <= number < rows.stop):
                    self._witness(case, given, row, place, (got, exact, bound, within.masked_fill(lost, math.inf)))
                over, within = (ratio.reshape(part.M, -1) for ratio in (over, within))
                verdict.add(rows.start, name, got, exact, over, within, masked=bool(lost.any()))
        return verdict.found(partial(self.rounding, case))

    def again(self, case: Case, *inputs: Array) -> Sequence[Again] | None:
        """The outputs by numpy, which no operator of torch reaches; None without such a check. All inputs come in float64."""
        return None

    def _again(self, case: Case, given: Sequence[torch.Tensor]) -> Sequence[Again] | None:
        return self.again(case, *map(independent.wide, given))

    def _witness(self, case: Case, given: Sequence[torch.Tensor], row: int, place: int, found: Tensors) -> None:
        """Compare a row of an output, the reference, the bound and the error over it with numpy. Raises an OverriddenError."""
        specs = registry.operation(case.op).inputs(case)
        one = [tensor[row : row + 1] if spec.has_rows else tensor for tensor, spec in zip(given, specs, strict=True)]
        if (again := self._again(replace(case, M=1), one)) is not None:
            independent.compare(again[place], *(independent.wide(tensor[row : row + 1]) for tensor in found))

    def check_cases(self, op: str) -> list[CheckCase]:
        """A check case of each shape for each pass: normal values, and structured rows."""
        found = []
        for M, N in SHAPES:
            for direction in registry.operation(op).directions:
                shape = partial(self._of_shape, op, direction, M, N)
                found += [CheckCase(f"normal {M}x{N}", direction, partial(shape, structured=False))]
                found += [CheckCase(f"structured {M}x{N}", direction, partial(shape, structured=True))]
        return found

    def _of_shape(self, op: str, direction: Direction, M: int, N: int, random: Draw, *, structured: bool) -> Tensors:
        case = Case(random.rows(M, N), N, random.dtype, direction, random.device.type, op)
        given = tuple(self.draw(case, random))
        if structured:
            self.make_structured(given, case, 0)
        return given

    def _marked(self, case: Case, given: Tensors) -> list[tuple[torch.Tensor, bool]]:
        """The inputs, each with True if element i belongs to row i."""
        return [(tensor.detach(), spec.has_rows) for tensor, spec in zip(given, registry.operation(case.op).inputs(case), strict=True)]


class _Verdict:
    """The verdict on outputs, whose rows come in chunks."""

    def __init__(self, numbers: Sequence[int], kinds: Sequence[str]) -> None:
        self.numbers, self.kinds = numbers, kinds
        self.worst = self.loosest = 0.0
        self.name = self.where = ""
        self.masked = False
        self.wrong: set[int] = set()
        """Kinds of structured rows that are wrong, by their place."""

    def add(
        self, start: int, name: str, got: torch.Tensor, exact: torch.Tensor, over: torch.Tensor, within: torch.Tensor, *, masked: bool
    ) -> None:
        """Rows of an output from number `start` on: error over bound, and over the bound of `low-precision`, both (rows, elements)."""
        self.masked |= masked
        if not over.numel():
            return
        self.loosest = max(self.loosest, within.amax().item())
        if self.kinds:
            wrong = (within.amax(dim=1) > 1).nonzero()[:, 0].tolist()
            self.wrong |= {self.numbers[start + row] % len(self.kinds) for row in wrong}
        peaks = over.amax(dim=1)
        if peaks.max().item() <= self.worst:
            return
        self.worst, row = peaks.max().item(), int(peaks.argmax().item())
        column, number = int(over[row].argmax().item()), self.numbers[start + row]
        value, right = got.reshape(over.shape)[row, column].item(), exact.reshape(over.shape)[row, column].item()
        place = f"{number}, {column}" if got.dim() > 1 else f"{number}"
        self.name, self.where = name, f"{name}[{place}] is {value:.6g} where float64 gives {right:.6g}: {self.worst:.3g} x the bound"

    def found(self, rounding: Callable[[str], str]) -> Accuracy:
        """The class of all rows."""
        if self.loosest > 1:
            told = f" (structured rows: {', '.join(self.kinds[kind] for kind in sorted(self.wrong))})" if self.wrong else ""
            return Accuracy(Grade.WRONG, self.worst, self.where + told)
        precise = self.worst <= 1
        if self.masked:
            others = "is right in all others" if precise else f"in others {rounding(self.name)}: {self.where}"
            return Accuracy(Grade.FINITE_ONLY, self.worst, f"gives NaN in rows that hold -inf, and {others}")
        return (
            Accuracy(Grade.PASS, self.worst, "")
            if precise
            else Accuracy(Grade.LOW_PRECISION, self.worst, f"{rounding(self.name)}: {self.where}")
        )


def _lost_to_masks(first: torch.Tensor, got: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Where an output is NaN and should not be, in rows whose first input holds -inf: an online sum computes -inf - -inf there."""
    lost = got.isnan() & ~exact.isnan()
    if not lost.any():
        return lost
    masked = first.isneginf().any(dim=-1)
    return lost & masked.view(-1, *[1] * (lost.dim() - 1))


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _compare_forms(method: str, case: Case, tensors: Tensors, specs: Sequence[TensorSpec], dtypes: Sequence[torch.dtype]) -> None:
    found = [(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
    expected = [(spec.shape(case), dtype) for spec, dtype in zip(specs, dtypes, strict=True)]
    if found != expected:
        raise TypeError(f"{method} of {case.op} returns {found}; its pass has {expected}")


def _compare_shapes(name: str, got: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> None:
    if not got.shape == exact.shape == bound.shape:
        raise TypeError(
            f"{name} has shape {tuple(got.shape)}, reference {tuple(exact.shape)} and bound {tuple(bound.shape)}; make them equal"
        )
