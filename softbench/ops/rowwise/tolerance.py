"""Compares outputs with a float64 reference and its bounds, elementwise. An operation derives the bounds in its module `tolerance`.

NaN and infinities must be exactly where the reference has them, and every comparison is written so that a NaN fails it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from softbench.core.case import Case, Direction
from softbench.core.outcome import Accuracy, Grade
from softbench.ops.check_case import See, Tensors
from softbench.ops.rows import row_chunks
from softbench.ops.rowwise import independent
from softbench.ops.rowwise.reference import by_numpy

U = 2.0**-24
U_OUT = {"fp32": 0.0, "fp16": 2.0**-11, "bf16": 2.0**-8}
ETA = {"fp32": 2.0**-126, "fp16": 2.0**-25, "bf16": 2.0**-126}
SMALLEST = 2.0**-126
"""The smallest normal float32."""
MAX_EXPONENT = 2.0**24
"""A float32 of this size and more has no fraction."""
OVERRIDDEN = "torch computes the check otherwise than numpy: the plugin replaced operators that the check needs"


@dataclass(frozen=True, slots=True)
class Bounded:
    """Some rows of one output: float64 reference and the two bounds, all (rows, N)."""

    expected: torch.Tensor
    tight: torch.Tensor
    loose: torch.Tensor
    """The bound of `low-precision`."""
    high: torch.Tensor | None = None
    """The maxima of the rows of x, (rows, 1); None where x is not known."""

    def tightest(self, out: torch.Tensor) -> torch.Tensor:
        """The bound of `pass` for this output."""
        return self.tight

    def loosest(self, out: torch.Tensor) -> torch.Tensor:
        """The bound of `low-precision` for this output."""
        return self.loose


def summing(terms: torch.Tensor, repeated: torch.Tensor | float = 0.0) -> torch.Tensor:
    """c of some rows, (rows, 1): the error of the sum of `terms`, which are (rows, N) and not negative, in units of u times that sum.

    `repeated` is the probability that two terms of a row are equal.
    """
    N = terms.shape[-1]
    total = terms.sum(dim=-1, keepdim=True)
    lost = torch.where(terms < U * total, terms, 0.0).sum(dim=-1, keepdim=True) / (U * total)
    serial = torch.sqrt(torch.as_tensor(N + N * N * repeated, dtype=total.dtype, device=total.device))
    return 16 + 2 * math.log2(max(N, 1)) + serial + torch.where(total > 0, lost, 0.0)


def alike(terms: torch.Tensor) -> torch.Tensor:
    """The share of terms that round alike in a sum, (rows, 1), for terms that are (rows, N) and not negative: `repeated` of `summing`.

    `softbench.ops.log_softmax.tolerance` derives it.
    """
    apart, total = (terms - terms.roll(1, dims=-1)).abs(), terms.sum(dim=-1, keepdim=True)
    rounded = (terms != terms.round()) & (terms >= U * total)
    near = (rounded & (apart < 2 * U * total)).double().mean(dim=-1, keepdim=True)
    return (rounded & (apart == 0)).double().mean(dim=-1, keepdim=True) + near.square()


def excess(out: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """|out - expected| / bound, elementwise; inf where NaN or infinities are not exactly where they belong.

    It is also inf where the bound is negative or NaN, or infinite for a finite value. It is 0 where both are equal.
    """
    out, expected = out.double(), expected.double()
    bound = torch.where((bound >= 0) & bound.isfinite(), bound, math.nan)
    ratio = ((out - expected).abs() / bound).nan_to_num(nan=math.inf, posinf=math.inf)
    same = (out == expected) | (out.isnan() & expected.isnan())
    return torch.where(expected.isfinite() & ~same, ratio, torch.where(same, 0.0, math.inf))


MOST_NAMED = 3
"""Numbers of wrong rows in a message."""


class Tolerance(ABC):
    """The bounds of an operation over rows, and the check that uses them."""

    __slots__ = ()  # an attribute of the instance would replace a method that the tamper guard protects

    @abstractmethod
    def bound_forward(self, x: torch.Tensor, case: Case) -> Bounded:
        """The bound on y of some rows; `x` is (rows, N) in the case's dtype."""

    @abstractmethod
    def bound_backward(self, dy: torch.Tensor, y: torch.Tensor, case: Case) -> Bounded:
        """The bound on dx of some rows; `dy` and `y` are (rows, N), in any dtype."""

    @abstractmethod
    def bound_both(self, x: torch.Tensor, dy: torch.Tensor, case: Case) -> tuple[Bounded, Bounded]:
        """The bounds on y and on dx where both come from x; arguments as above."""

    @abstractmethod
    def again_forward(self, x: independent.Array) -> independent.Again:
        """A row of y by numpy; `x` is (N,)."""

    @abstractmethod
    def again_backward(self, dy: independent.Array, y: independent.Array) -> independent.Again:
        """A row of dx by numpy; `dy` and `y` are (N,)."""

    @abstractmethod
    def rounding(self, case: Case, high: float | None, value: float, expected: float) -> str:
        """What an output of low precision rounds, from its worst value; `high` is the maximum of that row of x, if x is known."""

    def check(
        self,
        case: Case,
        inputs: Tensors,
        outputs: Tensors,
        see: See | None = None,
        kinds: Sequence[str] = (),
        numbers: Sequence[int] | None = None,
    ) -> Accuracy:
        """The verdict on what a backend made of `inputs`: `outputs` is (y,), (dx,) or (y, dx).

        `kinds` are the names that `make_structured` gave to rows; what is wrong says which of them are. `numbers` are the rows' numbers
        where the tensors are a sample of rows.
        If a plugin has replaced operators of torch, the reference is computed with numpy; `unverified` if the comparison is replaced too.
        """
        witnesses, numbers = independent.chosen(case.M), range(case.M) if numbers is None else numbers
        try:
            return self._check(case, inputs, outputs, see, kinds, numbers, witnesses)
        except independent.OverriddenError:
            pass
        try:
            with by_numpy():
                return self._check(case, inputs, outputs, see, kinds, numbers, witnesses)
        except independent.OverriddenError:
            return Accuracy(Grade.UNVERIFIED, math.nan, OVERRIDDEN)

    def _check(
        self,
        case: Case,
        inputs: Tensors,
        outputs: Tensors,
        see: See | None,
        kinds: Sequence[str],
        numbers: Sequence[int],
        witnesses: frozenset[int],
    ) -> Accuracy:
        worst, loosest, where, rounding, masked = 0.0, 0.0, "", "", False
        wrong: set[int] = set()
        for rows in row_chunks(case):
            for name, got, bounded in self._rows(case, inputs, outputs, rows):
                if see is not None:
                    see(got, bounded.expected)
                lost = _lost_to_masks(case, inputs, rows, got, bounded.expected)
                masked |= lost is not None and bool(lost.any())
                bound = bounded.tightest(got)
                over = _filled(excess(got, bounded.expected, bound), lost, 0)
                peak, loose = over.max().item(), over
                if not peak <= 1:
                    bound = bounded.loosest(got)
                    loose = _filled(excess(got, bounded.expected, bound), lost, 0)
                    loosest = max(loosest, loose.max().item())
                    if kinds:
                        bad = (loose > 1).any(dim=-1).nonzero()[:, 0].tolist()
                        wrong.update(numbers[rows.start + row] for row in bad)
                for row in sorted(row for row in witnesses if rows.start <= row < rows.stop):
                    arrays = [
                        independent.wide(tensor[row - rows.start])
                        for tensor in (got, bounded.expected, bound, _filled(loose, lost, math.inf))
                    ]
                    independent.compare(self._again(case, inputs, name, row), *arrays)
                if peak > max(worst, 1):  # reading a number waits for the GPU, and no message names the place of a right value
                    row, column = divmod(int(over.argmax().item()), over.shape[-1])
                    value, expected = got[row, column].item(), bounded.expected[row, column].item()
                    number = numbers[rows.start + row]
                    where = f"{name}[{number}, {column}] is {value:.6g} where float64 gives {expected:.6g}: {peak:.3g} x the bound"
                    high = None if bounded.high is None else bounded.high[row].item()
                    rounding = self.rounding(case, high, value, expected)
                worst = max(worst, peak)
        if masked and loosest <= 1:
            others = "is right in all others" if worst <= 1 else f"in others {rounding}: {where}"
            return Accuracy(Grade.FINITE_ONLY, worst, f"gives NaN in rows that hold -inf, and {others}")
        if worst <= 1:
            return Accuracy(Grade.PASS, worst, "")
        if loosest <= 1:
            return Accuracy(Grade.LOW_PRECISION, worst, f"{rounding}: {where}")
        return Accuracy(Grade.WRONG, worst, where + _told(kinds, wrong, numbers))

    def _again(self, case: Case, inputs: Tensors, name: str, row: int) -> independent.Again:
        """A row of an output by numpy."""
        first, *rest = (independent.wide(tensor[row]) for tensor in inputs)
        if name == "y":
            return self.again_forward(first)
        if case.direction is Direction.BACKWARD:
            return self.again_backward(first, rest[0])
        return self.again_backward(rest[0], self.again_forward(first).expected)

    def _rows(self, case: Case, inputs: Tensors, outputs: Tensors, rows: slice) -> Iterator[tuple[str, torch.Tensor, Bounded]]:
        """The outputs of some rows: name, values and bound."""
        first, *rest = (tensor.detach()[rows] for tensor in inputs)
        got = [tensor[rows] for tensor in outputs]
        if case.direction is Direction.FORWARD:
            yield "y", got[0], self.bound_forward(first, case)
        elif case.direction is Direction.BACKWARD:
            yield "dx", got[0], self.bound_backward(first, rest[0], case)
        else:
            ahead, back = self.bound_both(first, rest[0], case)
            yield "y", got[0], ahead
            yield "dx", got[1], back


def _lost_to_masks(case: Case, inputs: Tensors, rows: slice, got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor | None:
    """Where an output is NaN and should not be, in rows of x that hold -inf, or None. An online softmax computes -inf - -inf there."""
    if case.direction is Direction.BACKWARD:
        return None
    lost = got.isnan() & ~expected.isnan()
    return lost & inputs[0].detach()[rows].isneginf().any(dim=-1, keepdim=True) if lost.any() else None


def _filled(values: torch.Tensor, lost: torch.Tensor | None, value: float) -> torch.Tensor:
    """The values, with this one where an output is lost."""
    return values if lost is None else values.masked_fill(lost, value)


def _told(kinds: Sequence[str], wrong: set[int], numbers: Sequence[int]) -> str:
    """Which structured rows are wrong, in words: their kinds, and their numbers unless all rows of these kinds are wrong.

    A row's kind is the remainder of its number. `numbers` are those of all rows that were compared.
    """
    if not kinds:
        return ""
    bad, there = ({number % len(kinds) for number in some} for some in (wrong, numbers))
    named = ", ".join(kinds[kind] for kind in sorted(bad))
    if len(wrong) < sum(number % len(kinds) in bad for number in numbers):
        first = sorted(wrong)[:MOST_NAMED]
        places = ", ".join(map(str, first)) + (f" and {len(wrong) - len(first)} others" if len(wrong) > len(first) else "")
        told = f" (structured rows: {len(wrong)} of {len(numbers)} wrong, {'row' if len(wrong) == 1 else 'rows'} {places}"
        return told + (f"; kinds: {named})" if len(bad) < len(there) else ")")
    if len(bad) == len(there) > 1:
        return f" (structured rows: all {len(bad)} kinds)"
    return f" (structured rows: those {named}" + ("; the others are right)" if len(there) > 1 else ")")
