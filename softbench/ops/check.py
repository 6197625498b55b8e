"""The check of outputs: float64 reference, elementwise bounds, verdict. All operations use it, those of users too.

NaN and infinities must be exactly where the reference has them, and every comparison is written so that a NaN fails it. numpy computes some
rows again (`softbench.ops.second_opinion`): if it gets other results, a plugin has replaced operators of torch. Then numpy's results are
the reference, and if the comparison is replaced too, the outputs are unverified.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING

from softbench.core.case import Case
from softbench.core.outcome import Accuracy, Grade
from softbench.core.text import few
from softbench.ops import second_opinion
from softbench.ops.check_case import See, Tensors
from softbench.ops.error_terms import Bounded
from softbench.ops.lazy import torch
from softbench.ops.registry import is_whole, of_rows, operation, rows as rows_in

if TYPE_CHECKING:
    from softbench.ops.values import Values

OVERRIDDEN = "torch computes the check otherwise than numpy: the plugin replaced operators that the check needs"
OVERFLOWS = 11.0
"""exp of a larger number may exceed the largest of fp16; that of fp32 is exp(88.7)."""
MOST_NAMED = 3
"""Numbers of wrong rows in a message."""
MOST_KINDS = 4
"""Names of kinds of wrong rows in a message."""
CHUNK_BYTES = {"cuda": 512 * 2**20, "cpu": 32 * 2**20}
"""Bytes of all float64 temporaries of one chunk of rows. On the CPU each stays below malloc's mmap threshold, because larger ones fault in
their pages each time and made the check of a 4096 x 4096 case many times slower."""
FLOAT64_TEMPORARIES = 12
"""How many (rows, N) float64 tensors the check holds at once, at most."""


@dataclass(frozen=True, slots=True)
class Worst:
    """The element of the outputs that is furthest over its bound."""

    output: str
    """The name of the output."""
    value: float
    expected: float
    high: float | None
    """The maximum of its row of x, if the bound knows it."""
    where: str
    """Place, value and reference, in words."""


@dataclass(frozen=True, slots=True)
class Declared(Bounded):
    """The bound of an operation whose methods `bound` and `low_precision` give tensors."""

    low_precision: Callable[[], torch.Tensor | None] | None = None
    """The bound of `low-precision`; it is computed only where the first one is exceeded."""

    def loosest(self, out: torch.Tensor) -> torch.Tensor:
        found = self.low_precision() if self.low_precision else None
        return self.tight if found is None else found


def excess(out: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """|out - expected| / bound, elementwise; inf where NaN or infinities are not exactly where they belong.

    It is also inf where the bound is negative or NaN, or infinite for a finite value. It is 0 where both are equal.
    """
    out, expected = out.double(), expected.double()
    bound = torch.where((bound >= 0) & bound.isfinite(), bound, math.nan)
    ratio = ((out - expected).abs() / bound).nan_to_num(nan=math.inf, posinf=math.inf)
    same = (out == expected) | (out.isnan() & expected.isnan())
    return torch.where(expected.isfinite() & ~same, ratio, torch.where(same, 0.0, math.inf))


def _with_peak(out: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor) -> tuple[torch.Tensor, float]:
    """`excess` and its maximum, in a third of the time where all values are within finite, positive bounds. Python reads one number then.

    A comparison finds NaN, because a plugin may replace `amax` by a kernel that drops it.
    """
    ratio = (out.double() - expected.double()).abs() / bound
    within = (ratio <= 1).all() & (bound.amin() > 0) & (bound.amax() < math.inf)
    peak = torch.where(within, ratio.amax(), math.nan).item()
    if peak <= 1:
        return ratio, peak
    ratio = excess(out, expected, bound)
    return ratio, ratio.max().item()


def row_chunks(case: Case) -> Iterator[slice]:
    """Slices of the case's rows, small enough that their float64 temporaries stay within CHUNK_BYTES (a single row may exceed it)."""
    rows, count = max(1, CHUNK_BYTES[case.device] // (FLOAT64_TEMPORARIES * 8 * case.N)), rows_in(case)
    for start in range(0, count, rows):
        yield slice(start, min(start + rows, count))


def check(
    values: Values,
    case: Case,
    inputs: Tensors,
    outputs: Tensors,
    see: See | None = None,
    kinds: Sequence[str] = (),
    numbers: Sequence[int] | None = None,
) -> Accuracy:
    """The verdict on outputs of the right form. For the arguments see `Values.check`."""
    there = rows_in(case)
    numbers = range(there) if numbers is None else numbers
    witnesses = second_opinion.chosen(0 if is_whole(case) else there)
    for reference_of in (nullcontext, second_opinion.by_numpy):
        with suppress(second_opinion.OverriddenError), reference_of():
            return _Comparison(values, case, inputs, outputs, see, kinds, numbers, witnesses).accuracy()
    return Accuracy(Grade.UNVERIFIED, math.nan, OVERRIDDEN)


@dataclass(slots=True)
class _Comparison:
    """One comparison of outputs with their reference, whose rows come in chunks."""

    values: Values
    case: Case
    inputs: Tensors
    outputs: Tensors
    see: See | None
    kinds: Sequence[str]
    numbers: Sequence[int]
    witnesses: frozenset[int]
    peak: float = 0.0
    """The largest error over the bound."""
    loosest: float = 0.0
    """The largest error over the bound of `low-precision`, where the first bound is exceeded."""
    worst: Worst | None = None
    masked: bool = False
    """True if outputs are NaN in rows that hold -inf, and should not be."""
    highest: list[tuple[bool, bool, float]] = field(default_factory=list)
    """Of each row of a chunk where some are so: whether it is, whether it holds -inf, and its maximum."""
    wrong: set[int] = field(default_factory=set)
    """The numbers of structured rows that are wrong."""

    def accuracy(self) -> Accuracy:
        """The class of all rows."""
        for rows in row_chunks(self.case):
            self._chunk(rows)
        if self.loosest > 1:
            return Accuracy(Grade.WRONG, self.peak, self._where() + _told(self.kinds, self.wrong, self.numbers))
        if self.masked:
            others = "is right in all others" if self.peak <= 1 else f"in others {self._rounding()}: {self._where()}"
            return Accuracy(Grade.FINITE_ONLY, self.peak, f"gives NaN in rows {self._lost_rows()}, and {others}")
        if self.peak <= 1:
            return Accuracy(self.values.passing(self.case), self.peak, "")
        return Accuracy(self.values.looser(self.case), self.peak, f"{self._rounding()}: {self._where()}")

    def _lost_rows(self) -> str:
        """What the rows of NaN have in common: -inf, or large values where a row of small ones that holds -inf is not NaN."""
        least = min((top for lost, _, top in self.highest if lost), default=0.0)
        others = [(holds, top) for lost, holds, top in self.highest if not lost and math.isfinite(top)]
        large = least > OVERFLOWS and len(self.highest) == rows_in(self.case) and all(top < least for _, top in others)
        if not large:
            return "that hold -inf"
        holds = "" if any(holds for holds, _ in others) else "that hold -inf and "
        return f"{holds}whose maximum is {least:.3g} or more"

    def _where(self) -> str:
        return self.worst.where if self.worst else ""

    def _rounding(self) -> str:
        return self.values.rounding(self.case, self.worst) if self.worst else ""

    def _chunk(self, rows: slice) -> None:
        op, count = operation(self.case.op), rows.stop - rows.start
        part = of_rows(self.case, count)
        has_rows = [spec.has_rows for spec in op.inputs(self.case)]
        raw = [tensor.detach()[rows] if own else tensor.detach() for tensor, own in zip(self.inputs, has_rows, strict=True)]
        found = zip(op.outputs(self.case), self.outputs, bounds(self.values, part, raw), strict=True)
        for place, (name, output, bounded) in enumerate(found):
            got = bounded.counted(output.detach()[None] if is_whole(self.case) else output.detach()[rows])
            _compare_shapes(name, got, bounded)
            if self.see is not None and got.numel() and got.is_floating_point() and got.element_size() > 1:
                self.see(got.reshape(count, -1), bounded.expected.reshape(count, -1))
            for row, compared in self._output(rows.start, name, raw[0], got, bounded):
                one = [tensor[row : row + 1] if own else tensor for tensor, own in zip(raw, has_rows, strict=True)]
                again = self.values.again(of_rows(self.case, 1), *map(second_opinion.wide, one))
                if again is not None:
                    second_opinion.compare(again[place], *(second_opinion.wide(tensor[row : row + 1]) for tensor in compared))

    def _output(
        self, start: int, name: str, first: torch.Tensor, got: torch.Tensor, bounded: Bounded
    ) -> Iterator[tuple[int, tuple[torch.Tensor, ...]]]:
        """Add rows of an output, from number `start` on. Gives the rows that numpy computes, with output, reference, bound and excess."""
        bound, lost = bounded.tightest(got), None
        if not got.numel():
            return
        over, peak = _with_peak(got, bounded.expected, bound)
        if not peak <= 1:
            lost = self._lost_to_masks(first, got, bounded.expected)
            self.masked |= lost is not None
            over = _filled(over, lost, 0)
            peak = over.max().item()
        within = over
        if not peak <= 1:
            bound = bounded.loosest(got)
            within = _filled(excess(got, bounded.expected, bound), lost, 0)
            self.loosest = max(self.loosest, within.max().item())
            if self.kinds:
                bad = (within > 1).reshape(len(within), -1).any(dim=-1).nonzero()[:, 0].tolist()
                self.wrong.update(self.numbers[start + row] for row in bad)
        for row in sorted(number - start for number in self.witnesses if start <= number < start + len(got)):
            yield row, (got, bounded.expected, bound, _filled(within, lost, math.inf))
        if peak > max(self.peak, 1):  # reading a number waits for the GPU, and no message names the place of a right value
            self.worst = self._place(start, name, got, bounded, over, peak)
        self.peak = max(self.peak, peak)

    def _place(self, start: int, name: str, got: torch.Tensor, bounded: Bounded, over: torch.Tensor, peak: float) -> Worst:
        row, column = divmod(int(over.argmax().item()), over[0].numel())
        value, expected = (tensor.reshape(len(got), -1)[row, column].item() for tensor in (got, bounded.expected))
        number = self.numbers[start + row]
        within = _index(column, got.shape[1:])
        places = within if is_whole(self.case) else [number, *within]
        place = f"{name}[{', '.join(map(str, places))}]" if places else name
        where = f"{place} is {value:.6g} and should be {expected:.6g}{f': {peak:.3g} x the bound' if peak < math.inf else ''}"
        return Worst(name, value, expected, None if bounded.high is None else bounded.high[row].item(), where)

    def _lost_to_masks(self, first: torch.Tensor, got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor | None:
        """Where an output is NaN and should not be, in rows whose first input holds -inf, or None.

        An online sum computes -inf - -inf there.
        """
        if not self.values.masks_rows(self.case):
            return None
        lost = got.isnan() & ~expected.isnan()
        if not lost.any():
            return None
        holding = first.isneginf().any(dim=-1)
        if len(holding) != len(lost):  # a pass over all rows
            holding = holding.any().view(1)
        lost &= holding.view(-1, *[1] * (lost.dim() - 1))
        if not lost.any():
            return None
        if len(holding) == len(first):
            rows = lost.reshape(len(lost), -1).any(dim=-1)
            tops = first.reshape(len(first), -1).amax(dim=-1)
            self.highest += zip(rows.tolist(), holding.reshape(len(first), -1).any(dim=-1).tolist(), tops.tolist(), strict=True)
        return lost


def _index(place: int, shape: Sequence[int]) -> list[int]:
    """The index of an element of a tensor, from its number."""
    found: list[int] = []
    for size in reversed(shape):
        place, last = divmod(place, size)
        found.insert(0, last)
    return found


def bounds(values: Values, case: Case, inputs: Sequence[torch.Tensor]) -> Sequence[Bounded]:
    """The bounds of each output of a pass, for these rows; they have the reference."""
    given = [tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs]
    all_found, count = tuple(values.bound(case, *given)), len(operation(case.op).outputs(case))
    bounded = [one for one in all_found if isinstance(one, Bounded)]
    if len(bounded) == len(all_found) > 0:
        return bounded
    found = [one for one in all_found if not isinstance(one, Bounded)]
    if second_opinion.uses_numpy():
        again = values.again(case, *map(second_opinion.wide, inputs)) or ()
        expected = tuple(torch.from_numpy(one.expected).to(inputs[0].device) for one in again)
    else:
        expected = tuple(values.reference(case, *given))
    if not len(expected) == len(found) == count:
        raise TypeError(f"reference gives {len(expected)} tensors and bound {len(found)}; the pass has {count}")
    loose = cache(lambda: values.low_precision(case, *given))

    def loose_of(place: int) -> torch.Tensor | None:
        return None if (all_loose := loose()) is None else all_loose[place][batch]

    batch = None if is_whole(case) else ...  # one part
    pairs = enumerate(zip(expected, found, strict=True))
    return [Declared(exact[batch], one[batch], one[batch], low_precision=partial(loose_of, place)) for place, (exact, one) in pairs]


def _filled(values: torch.Tensor, lost: torch.Tensor | None, value: float) -> torch.Tensor:
    """The values, with this one where an output is lost."""
    return values if lost is None else values.masked_fill(lost, value)


def _compare_shapes(name: str, got: torch.Tensor, bounded: Bounded) -> None:
    exact, bound = bounded.expected, bounded.tight
    if not got.shape == exact.shape == bound.shape:
        raise TypeError(
            f"{name} has shape {tuple(got.shape)}, reference {tuple(exact.shape)} and bound {tuple(bound.shape)}; make them equal"
        )


def _told(kinds: Sequence[str], wrong: set[int], numbers: Sequence[int]) -> str:
    """Which structured rows are wrong, in words: their kinds, and their numbers unless all rows of these kinds are wrong.

    A row's kind is the remainder of its number. `numbers` are those of all rows that were compared.
    """
    if not kinds:
        return ""
    bad, there = ({kinds[number % len(kinds)] for number in some} for some in (wrong, numbers))
    named = few([kind for kind in dict.fromkeys(kinds) if kind in bad], MOST_KINDS)
    if len(wrong) < sum(kinds[number % len(kinds)] in bad for number in numbers):
        first = sorted(wrong)[:MOST_NAMED]
        places = ", ".join(map(str, first)) + (f" and {len(wrong) - len(first)} others" if len(wrong) > len(first) else "")
        told = f" (wrong structured rows: {len(wrong)} of {len(numbers)}, {'row' if len(wrong) == 1 else 'rows'} {places}"
        return told + (f"; kinds: {named})" if len(bad) < len(there) else ")")
    if len(bad) == len(there) > 1:
        return f" (wrong structured rows: all {len(bad)} kinds)"
    return f" (wrong structured rows: those {named}" + ("; the others are right)" if len(there) > 1 else ")")
