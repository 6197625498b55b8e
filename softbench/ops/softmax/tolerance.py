"""The accuracy bound: an elementwise bound on the error against float64, derived from the arithmetic.

With u = 2^-24, u_o = 2^-11 (fp16) or 2^-8 (bf16), d_i = max(x) - x_i, D = sum_j y_j d_j, eta = 2^-25 (fp16) or 2^-126 (else), and
c = 16 + 2 log2 N + sqrt(N + r N^2) + lost:

    forward   B_i = [16-bit: u_o y_i] + u y_i (c + 4 (d_i + D)) + eta
    backward  B_i = [16-bit: u_o |dx_i|] + u S_i (c - 8) + eta,  S_i = |y_i| (|dy_i| + sum_j |y_j dy_j|)

The last two terms of c are for a sum of one float32 term after the other, as torch's is over another axis. Its N roundings are independent
if the terms differ: they add up to 0.3 sqrt(N) u of the result (one standard deviation). Equal terms round alike, so their errors add up:
r is the probability that two elements are equal. Near the maximum float32 has a spacing of at most 2 u |max|, so r is about u |max|, at
most 1, where a row's standard deviation is one. The backward does not know x, and takes 0. Terms below u times the sum may be lost whole:
`lost` is their sum, in units of u times the whole sum.

The relative error of exp grows with |x - max|, and the error of sums and dots with their depth. Terms of dx cancel, so its scale is S and
not dx. The term eta covers flush-to-zero. The backward also has 2^-126 (|dy_i| + sum_j |y_j dy_j|), because a y below 2^-126 may be
read as 0. `low-precision` is a second class, for backends that round intermediates to 16 bits:

    forward   B_i + u_o y_i (4 + 2 (d_i + D)) + eta
    backward  B_i + u_o (2 S_i + |dx_i|) + 2 eta

The forward's second eta is for the numerator: in fp16 exp(x - max) may be subnormal, and is rounded before the division rounds again.
Eager naive on randn of scale 10 needs it.

A float32 softmax may compute exp(x - max) as exp2(x log2 e - max log2 e), with one fused multiply-add. The rounded product max log2 e is
off by u |max| log2 e, so a term is off by a factor of exp(+-u |max|). If the parts of a row have maxima of their own, these factors differ
between an element and the sum. With h = 2 u |max| the error is at most y (exp(h) - 1) above y and y (1 - exp(-h)) below it. A maximum of a
part is at most d_i further from zero, which 4 (d_i + D) covers. This is `low-precision` too, while |max| log2 e < 2^24; beyond that the
product has no fraction.

`both` is checked against float64 from x on, so a backend's own y counts. With dx = y (dy - s) and s = sum_j y_j dy_j, an error of y within
the forward bound F moves dx. It moves by at most F_i (|dy_i| + |s|) + |y_i| sum_j F_j |dy_j|, which is added to the backward bound.

NaN and infinities must be exactly where the reference has them, and every comparison is written so that a NaN fails it.
Common tolerances are vacuous here: with rtol = atol = 1e-2 a bf16 output of zeros passes on normal rows of N = 16384.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from softbench.core.case import Case, Direction
from softbench.core.outcome import Accuracy, Grade
from softbench.ops.check_case import See
from softbench.ops.rows import row_chunks
from softbench.ops.softmax import independent, reference

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
    """The bound of `low-precision`, without `exponent`."""
    high: torch.Tensor | None = None
    """The maxima of the rows of x, (rows, 1); None where x is not known."""
    exponent: torch.Tensor | None = None
    """h of the fused exponent, (rows, 1); None if this output has no such part."""

    def loosest(self, out: torch.Tensor) -> torch.Tensor:
        """The bound of `low-precision` for this output."""
        if self.exponent is None:
            return self.loose
        apart = torch.where(out.double() < self.expected, -torch.expm1(-self.exponent), torch.expm1(self.exponent))
        return self.loose + apart * self.expected


def summing(terms: torch.Tensor, repeated: torch.Tensor | float = 0.0) -> torch.Tensor:
    """c of some rows, (rows, 1): the error of the sum of `terms`, which are (rows, N) and not negative, in units of u times that sum.

    `repeated` is the probability that two terms of a row are equal.
    """
    N = terms.shape[-1]
    total = terms.sum(dim=-1, keepdim=True)
    lost = torch.where(terms < U * total, terms, 0.0).sum(dim=-1, keepdim=True) / (U * total)
    serial = torch.sqrt(torch.as_tensor(N + N * N * repeated, dtype=total.dtype, device=total.device))
    return 16 + 2 * math.log2(max(N, 1)) + serial + torch.where(total > 0, lost, 0.0)


def bound_forward(x: torch.Tensor, case: Case) -> Bounded:
    """The forward bound on some rows; `x` is (rows, N) in the case's dtype."""
    u_out, eta = U_OUT[case.dtype], ETA[case.dtype]
    wide = x.double()
    y = reference.forward(wide)
    high = wide.amax(dim=-1, keepdim=True)
    distance = high - wide
    spread = torch.where(y == 0, 0.0, y * distance)  # an exact zero is exactly representable, however far away
    mean = spread.sum(dim=-1, keepdim=True)
    travelled = spread + y * mean  # y * (d + D)
    tight = u_out * y + U * (y * summing(y, (U * high.abs()).clamp_max(1)) + 4 * travelled) + eta
    if not u_out:
        exponent = torch.where(high.abs() * math.log2(math.e) < MAX_EXPONENT, 2 * U * high.abs(), 0.0)
        return Bounded(y, tight, tight, high, exponent)
    return Bounded(y, tight, tight + u_out * (4 * y + 2 * travelled) + eta, high)


def bound_backward(dy: torch.Tensor, y: torch.Tensor, case: Case) -> Bounded:
    """The backward bound on some rows; `dy` and `y` are (rows, N), in any dtype."""
    u_out, eta = U_OUT[case.dtype], ETA[case.dtype]
    dy, y = dy.double(), y.double()
    dx = reference.backward(dy, y)
    products = (y * dy).abs()
    reach = dy.abs() + products.sum(dim=-1, keepdim=True)
    scale = y.abs() * reach
    tight = u_out * dx.abs() + U * scale * (summing(products) - 8) + eta + SMALLEST * reach
    return Bounded(dx, tight, tight + (u_out * (2 * scale + dx.abs()) + 2 * eta if u_out else 0.0))


def bound_both(x: torch.Tensor, dy: torch.Tensor, case: Case) -> tuple[Bounded, Bounded]:
    """The bounds on y and on dx where both come from x; arguments as above."""
    ahead = bound_forward(x, case)
    y, dy = ahead.expected, dy.double()
    back = bound_backward(dy, y, case)
    reach = dy.abs() + (y * dy).sum(dim=-1, keepdim=True).abs()

    def carried(error: torch.Tensor) -> torch.Tensor:
        return error * reach + y * (error * dy.abs()).sum(dim=-1, keepdim=True)

    loose = ahead.loose if ahead.exponent is None else ahead.loose + torch.expm1(ahead.exponent) * y
    return ahead, Bounded(back.expected, back.tight + carried(ahead.tight), back.loose + carried(loose), ahead.high)


def excess(out: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """|out - expected| / bound, elementwise; inf where NaN or infinities are not exactly where they belong, or the bound is NaN."""
    out = out.double()
    ratio = ((out - expected).abs() / bound).nan_to_num(nan=math.inf, posinf=math.inf)
    same = (out == expected) | (out.isnan() & expected.isnan())
    return torch.where(expected.isfinite(), ratio, torch.where(same, 0.0, math.inf))


def check(
    case: Case,
    inputs: tuple[torch.Tensor, ...],
    outputs: tuple[torch.Tensor, ...],
    see: See | None = None,
    kinds: Sequence[str] = (),
    numbers: Sequence[int] | None = None,
) -> Accuracy:
    """The verdict on what a backend made of `inputs` (see `softbench.ops.softmax.inputs.make`): `outputs` is (y,), (dx,) or (y, dx).

    `kinds` are the names that `softbench.ops.softmax.structured_rows.make_structured` gave to rows; what is wrong says which of them are.
    `numbers` are the rows' numbers where the tensors are a sample of rows.
    If a plugin has replaced operators of torch, the reference is computed with numpy; `unverified` if the comparison is replaced too.
    """
    witnesses, numbers = independent.chosen(case.M), range(case.M) if numbers is None else numbers
    try:
        return _check(case, inputs, outputs, see, kinds, numbers, witnesses)
    except independent.OverriddenError:
        pass
    try:
        with reference.by_numpy():
            return _check(case, inputs, outputs, see, kinds, numbers, witnesses)
    except independent.OverriddenError:
        return Accuracy(Grade.UNVERIFIED, math.nan, OVERRIDDEN)


def _check(
    case: Case,
    inputs: tuple[torch.Tensor, ...],
    outputs: tuple[torch.Tensor, ...],
    see: See | None,
    kinds: Sequence[str],
    numbers: Sequence[int],
    witnesses: frozenset[int],
) -> Accuracy:
    worst, loosest, where, rounding, masked = 0.0, 0.0, "", "", False
    wrong_kinds: set[int] = set()
    for rows in row_chunks(case):
        for name, got, bounded in _rows(case, inputs, outputs, rows):
            if see is not None:
                see(got, bounded.expected)
            lost = _lost_to_masks(case, inputs, rows, got, bounded.expected)
            masked |= bool(lost.any())
            over = excess(got, bounded.expected, bounded.tight).masked_fill(lost, 0)
            peak = over.max().item()
            bound, loose = bounded.tight, over
            if not peak <= 1:
                bound = bounded.loosest(got)
                loose = excess(got, bounded.expected, bound).masked_fill(lost, 0)
                loosest = max(loosest, loose.max().item())
                if kinds:
                    bad = (loose > 1).any(dim=-1).nonzero()[:, 0].tolist()
                    wrong_kinds.update(numbers[rows.start + row] % len(kinds) for row in bad)
            for row in sorted(row for row in witnesses if rows.start <= row < rows.stop):
                arrays = [
                    independent.wide(tensor[row - rows.start])
                    for tensor in (got, bounded.expected, bound, loose.masked_fill(lost, math.inf))
                ]
                independent.compare(_given(case, inputs, name, row), *arrays)
            if peak > worst:
                worst = peak
                row, column = divmod(int(over.argmax().item()), case.N)
                value, expected = got[row, column].item(), bounded.expected[row, column].item()
                number = numbers[rows.start + row]
                where = f"{name}[{number}, {column}] is {value:.6g} where float64 gives {expected:.6g}: {peak:.3g} x the bound"
                rounding = _rounding(case, bounded.high, row, abs(value - expected) / abs(expected) if expected else math.inf)
    if masked and loosest <= 1:
        others = "is right in all others" if worst <= 1 else f"in others {rounding}: {where}"
        return Accuracy(Grade.FINITE_ONLY, worst, f"gives NaN in rows that hold -inf, and {others}")
    if worst <= 1:
        return Accuracy(Grade.PASS, worst, "")
    if loosest <= 1:
        return Accuracy(Grade.LOW_PRECISION, worst, f"{rounding}: {where}")
    return Accuracy(Grade.WRONG, worst, where + _told(kinds, wrong_kinds, case.M))


def _lost_to_masks(case: Case, inputs: tuple[torch.Tensor, ...], rows: slice, got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Where an output is NaN and should not be, in rows of x that hold -inf: an online softmax computes -inf - -inf there."""
    lost = got.isnan() & ~expected.isnan()
    if case.direction is Direction.BACKWARD or not lost.any():
        return torch.zeros_like(lost)
    return lost & inputs[0].detach()[rows].isneginf().any(dim=-1, keepdim=True)


def _given(case: Case, inputs: tuple[torch.Tensor, ...], name: str, row: int) -> tuple[independent.Array, ...]:
    """What an output of one row is computed from: (x,) for y, (dy, y) for dx."""
    first, *rest = (independent.wide(tensor[row]) for tensor in inputs)
    if name == "y":
        return (first,)
    return (first, rest[0]) if case.direction is Direction.BACKWARD else (rest[0], independent.forward(first))


def _rounding(case: Case, high: torch.Tensor | None, row: int, relative: float) -> str:
    """What an output of low precision rounds, and in float32 how far off it is at which maximum."""
    if U_OUT[case.dtype] or high is None:
        return "rounds intermediates to 16 bits"
    return f"rounds max*log2(e) in its exponent: relative error {relative:.2g} in a row whose maximum is {high[row].item():.3g}"


def _told(kinds: Sequence[str], wrong: set[int], M: int) -> str:
    """Which of the kinds of rows that a case of M rows has are wrong, in words."""
    if not kinds:
        return ""
    there = min(M, len(kinds))
    if there > 1 and len(wrong) == there:
        return f" (structured rows: all {there} kinds)"
    named = ", ".join(kinds[kind] for kind in sorted(wrong))
    return f" (structured rows: those {named}" + ("; the others are right)" if there > 1 else ")")


def _rows(
    case: Case, inputs: tuple[torch.Tensor, ...], outputs: tuple[torch.Tensor, ...], rows: slice
) -> Iterator[tuple[str, torch.Tensor, Bounded]]:
    first, *rest = (tensor.detach()[rows] for tensor in inputs)
    got = [tensor[rows] for tensor in outputs]
    if case.direction is Direction.FORWARD:
        yield "y", got[0], bound_forward(first, case)
    elif case.direction is Direction.BACKWARD:
        yield "dx", got[0], bound_backward(first, rest[0], case)
    else:
        ahead, back = bound_both(first, rest[0], case)
        yield "y", got[0], ahead
        yield "dx", got[1], back


def check_yardstick(case: Case, inputs: tuple[torch.Tensor, ...], outputs: tuple[torch.Tensor, ...]) -> Accuracy:
    """The yardstick's verdict: bit by bit what a copy (x), an add (dy + y) or the two of them (x, dy + x) leave behind."""
    first, *rest = (tensor.detach() for tensor in inputs)
    for rows in row_chunks(case):
        copied = [] if case.direction is Direction.BACKWARD else [first[rows]]
        added = [first[rows] + rest[0][rows]] if rest else []
        pairs = [(got[rows], want) for got, want in zip(outputs, copied + added, strict=True)]
        if not all(torch.equal(got, want) or ((got == want) | (got.isnan() & want.isnan())).all() for got, want in pairs):
            return Accuracy(Grade.WRONG, math.inf, "the yardstick did not move what it should have moved")
    return Accuracy(Grade.YARDSTICK, 0.0, "")
