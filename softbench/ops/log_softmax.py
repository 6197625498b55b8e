"""Log-softmax over the last axis, and its gradient.

The accuracy bound is an elementwise bound on the error against float64, derived from the arithmetic.
u, u_o, eta and c are those of `softbench.ops.softmax`, with another r in c. With p = exp(y), d_i = max(x) - x_i, L = log sum_j
exp(-d_j), D = sum_j p_j d_j, s = sum_j dy_j and A = sum_j |dy_j|:

    forward   B_i = [16-bit: u_o |y_i|] + u (c + 4 D + 4 |y_i|) + eta
    backward  B_i = [16-bit: u_o |dx_i|] + u (|dx_i| + p_i A (c - 8 + 4 |y_i|)) + eta + 2^-126 A + 2^-51 |s|

The first terms are the last rounding. Forward: x_j - max is rounded at d_j. The argument of exp is rounded too, by the product with
log2(e) and by that constant. So a term of the sum is off by at most 4 u d_j of itself, also if a part of the row has a maximum of its
own. With the roundings of the sum, and 16 for exp and log, the sum is off by u (c + 4 D) of itself. The relative error of a sum is the
absolute error of its logarithm. A logarithm computed as log2 times a constant is rounded three times at L. The output is (x_i - max) - L,
rounded at d_i and at |y_i| = d_i + L. These five roundings are at most 4 u |y_i|, as both d_i and L are at most |y_i|, and d_i is in two
of them.

Backward: c - 8 is for A and not for s, because the terms of s may cancel. It covers the roundings of the sum, of exp and of the product.
The argument of exp makes 4 u |y_i|, and the difference makes u |dx_i|. Below 2^-126 exp(y) may be read as 0. In
float64 dx may be (dy_i - s) - s expm1(y_i), which makes four roundings at s.

The error of adding a term depends on its remainder by the spacing of the sum. So equal terms round alike, and so do terms whose distances
are below this spacing. Of k distinct values the mean remainder is about 1 / sqrt(k), and of a density over k spacings at most 1 / k. So r
is the share of equal neighbours, plus the square of the share of neighbours closer than 2 u of the sum. Whole numbers are added without
rounding, and terms below u times the sum are in `lost`, so neither counts.

`both` is checked against float64 from x on. An error of y within the forward bound F changes p by a factor of at most exp(F). So dx has
p_i (exp(F_i) - 1) |s| more, and p_i A becomes p_i A exp(F_i).

`low-precision` is a second class. It adds the roundings of three kinds of kernels:

    forward   B_i + 2 u |max| + [16-bit: u_o (1 + L)]

- x - logsumexp(x) rounds max + L, at |max| + L.
- A fused exponent, exp2(x log2 e - max log2 e), scales a term by at most exp(u |max|), so L is off by u |max|. As for softmax, this and
  the one above hold while |max| log2 e < 2^24.
- torch's 16-bit kernel on the CPU stores the sum in 16 bits, and then its logarithm. The first is off by u_o of itself, which is u_o in
  L. The second is off by u_o L.

Rounding each exp to 16 bits is off by u_o of the sum too, so it is in this class. If the argument of exp is also rounded to 16 bits, L is
off by u_o D more. A sum that is accumulated in 16 bits is off by more with every term. Both are wrong.

Rows with +inf are no kind. torch gives NaN in the whole row, and x - logsumexp(x) gives -inf beside one NaN. `softbench check` has such a
row, and expects what torch gives. Structured rows of this operation show errors that normal rows hide:

- The last column alone: it has nearly all of the sum, or a `dy` that is zero elsewhere. In normal rows it has about 1 / N of the sum.
  Such a loss is below the last rounding of a 16-bit output.
- One element above the rest: all others are d = 8 below it, and a little more. From 8 to 16 the spacing of 16-bit numbers is 16 u_o, and
  d lies just below the middle of two of them. An argument of exp in 16 bits is then off by nearly 8 u_o in all these terms at once. With
  their share p of the sum, L is off by 8 p u_o. The bound of `low-precision` at the largest element is (1 + 2 L) u_o. For 4096 terms p is
  0.58 and L is 0.86; from 2048 terms on 8 p exceeds 1 + 2 L. Errors of normal rows have both signs and cancel.
- Alternating signs of `dy`: the sum is 0 or 1 while that of |dy| is N.

Shared kinds do the rest. Wide rows, one-hot rows, steps and an element of 300 have outputs below -104, where exp is 0 in float32 and the
logarithm of softmax is -inf. A `dy` of one sign has the largest sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial

from softbench.core.case import Case, Direction
from softbench.ops import rowwise
from softbench.ops.check import Worst
from softbench.ops.check_case import CheckCase, Draw, Tensors
from softbench.ops.error_terms import ETA, MAX_EXPONENT, SMALLEST, U_OUT, Bounded, U, alike, summing
from softbench.ops.lazy import numpy, torch
from softbench.ops.rowwise import COLUMNS, NormalValues, RowwiseCases, one_hot
from softbench.ops.second_opinion import FLUSHED, Again, Array, exact
from softbench.ops.structured_rows import LARGE_DY, Change, Kinds, Places, first, of_dy, of_x, put, second

OPERATION = rowwise.declare("log_softmax", "x - log(sum(exp(x))) of each row, and its gradient")
OPERATORS = ("log_softmax",)
"""What the tamper guard protects of torch for the reference."""
ABOVE, FAR = 8.0, -60.0
"""The element above the rest, and elements that add nothing to the sum."""
AROUND = 4096
"""Elements of the rest, about: 4096 exp(-8) is 1.4, so their share p of the sum is 0.58. Shorter rows have fewer."""
BELOW_MIDDLE = {"fp32": 2.0**-5, "fp16": 2.0**-8, "bf16": 2.0**-5}
"""Half of the spacing of 16-bit numbers from 8 to 16; that of bf16 in fp32."""
SMALL_DY = {"fp32": 1e-8, "fp16": 1e-4, "bf16": 1e-8}
HUGE_DY = {"fp32": 1e30, "fp16": 10.0, "bf16": 1e30}
"""`dy` is at most 1.5 times as large. Where y is one-hot, dx has the sum of dy, which must not overflow float16."""
IN_FLOAT64 = 2.0**-51
"""Four roundings in float64."""
WIDE = f"with a dy of size {LARGE_DY:g}"
"""A kind that float16 lacks: in a short row dx has most of the sum of dy, and may overflow."""


def log_softmax(x: torch.Tensor) -> torch.Tensor:
    """log_softmax(x) over the last axis, in x's dtype."""
    return torch.log_softmax(x, dim=-1)


def gradient(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """dy - exp(y) * sum(dy) over the last axis, in their dtype."""
    return dy - torch.exp(y) * dy.sum(dim=-1, keepdim=True)


def forward(x: torch.Tensor) -> torch.Tensor:
    """log_softmax(x) in float64. An element of -inf gives -inf. Rows that hold NaN or +inf, or only -inf, are NaN, as torch's are."""
    return exact(log_softmax, numpy_forward, x)


def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """dy - exp(y) * sum(dy) over the last axis, float64."""
    return exact(gradient, numpy_gradient, dy, y)


def numpy_forward(x: Array) -> Array:
    """log_softmax(x) over the last axis. Rows that hold NaN or +inf, or only -inf, are NaN."""
    with numpy.errstate(all="ignore"):
        below = x - x.max(axis=-1, keepdims=True)
        found: Array = below - numpy.log(numpy.exp(below).sum(axis=-1, keepdims=True))
        return found


def numpy_gradient(dy: Array, y: Array) -> Array:
    """dy - exp(y) * sum(dy) over the last axis."""
    with numpy.errstate(all="ignore"):
        found: Array = dy - numpy.exp(y) * dy.sum(axis=-1, keepdims=True)
        return found


class LogSoftmax(NormalValues):
    """Log-softmax over the last axis of (M, N) tensors, and its gradient."""

    __slots__ = ()

    def draw(self, case: Case, random: Draw) -> Tensors:
        return rowwise.draw(case, random, lambda x, rows: log_softmax(x))

    def reference(self, case: Case, *inputs: torch.Tensor) -> Tensors:
        one, *others = inputs
        if case.direction is Direction.BACKWARD:
            return (gradient(one, *others),)
        y = log_softmax(one)
        return (y, *(gradient(dy, y) for dy in others))

    def bound(self, case: Case, *inputs: torch.Tensor) -> tuple[Bounded, ...]:
        one, *others = inputs
        if case.direction is Direction.FORWARD:
            return (self.bound_forward(one, case),)
        return (
            (self.bound_backward(one, others[0], case),) if case.direction is Direction.BACKWARD else self.bound_both(one, others[0], case)
        )

    def bound_forward(self, x: torch.Tensor, case: Case) -> Bounded:
        u_out, wide = U_OUT[case.dtype], x.double()
        y = forward(wide)
        high = wide.amax(dim=-1, keepdim=True)
        p = torch.exp(y)
        mean = torch.where(p == 0, 0.0, p * (high - wide)).sum(dim=-1, keepdim=True)
        of_sum = summing(p, alike(torch.exp(wide - high))) + 4 * mean
        tight = u_out * y.abs() + U * (of_sum + 4 * y.abs()) + ETA[case.dtype]
        at_once = torch.where(high.abs() * math.log2(math.e) < MAX_EXPONENT, 2 * U * high.abs(), 0.0)
        log_sum = -y.amax(dim=-1, keepdim=True)
        return Bounded(y, tight, tight + (1 + u_out) * (at_once + u_out * (1 + log_sum)), high)

    def bound_backward(self, dy: torch.Tensor, y: torch.Tensor, case: Case) -> Bounded:
        dy, y = dy.double(), y.double()
        dx = backward(dy, y)
        tight = _gradient_bound(dy, y, dx, case)
        return Bounded(dx, tight, tight)

    def bound_both(self, x: torch.Tensor, dy: torch.Tensor, case: Case) -> tuple[Bounded, Bounded]:
        ahead, dy = self.bound_forward(x, case), dy.double()
        dx = backward(dy, ahead.expected)
        tight, loose = (_gradient_bound(dy, ahead.expected, dx, case, error) for error in (ahead.tight, ahead.loose))
        return ahead, Bounded(dx, tight, loose, ahead.high)

    def rounding(self, case: Case, worst: Worst) -> str:
        if worst.high is None:
            return ""  # the backward has one bound
        stored = "stores the sum or its logarithm in 16 bits, or " if U_OUT[case.dtype] else ""
        error = abs(worst.value - worst.expected)
        return f"{stored}rounds max + log(sum) or max*log2(e): error {error:.2g} in a row whose maximum is {worst.high:.3g}"

    def masks_rows(self, case: Case) -> bool:
        return case.direction is not Direction.BACKWARD

    def again(self, case: Case, *inputs: Array) -> tuple[Again, ...]:
        one, *others = inputs
        if case.direction is Direction.BACKWARD:
            return (again_gradient(one, *others),)
        y = numpy_forward(one)
        return Again(y, numpy.abs(y) + 1, FLUSHED), *(again_gradient(dy, y) for dy in others)  # 1 is for the error of the sum

    def structured_rows(self, case: Case) -> Kinds:
        return kinds(case.direction, case.dtype)

    def check_cases(self, op: str) -> list[CheckCase]:
        cases = RowwiseCases(torch.log_softmax, extreme=0.5)  # half of the range: the distance of two elements is an output
        return cases.items(_gradients(cases))


def _gradient_bound(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor, case: Case, error: torch.Tensor | float = 0.0) -> torch.Tensor:
    """The bound on dx, (rows, N) float64, where y has this error."""
    u_out, p, sizes = U_OUT[case.dtype], torch.exp(y), dy.abs()
    size = sizes.sum(dim=-1, keepdim=True)
    grown = torch.where(p == 0, 0.0, p * torch.exp(torch.as_tensor(error)))  # an exact zero stays one, however far away
    steep = torch.where(p == 0, 0.0, grown * (summing(sizes, alike(sizes)) - 8 + 4 * y.abs()))
    total = dy.sum(dim=-1, keepdim=True).abs()
    steps = (1 + u_out) * (grown - p) * total + ETA[case.dtype] + SMALLEST * size + IN_FLOAT64 * total
    return u_out * dx.abs() + U * (dx.abs() + size * steep) + steps


def again_gradient(dy: Array, y: Array) -> Again:
    """A row of dx."""
    with numpy.errstate(all="ignore"):
        p = numpy.exp(y)
        steep = numpy.where(p == 0, 0.0, p * (1 + numpy.abs(y)))
        size = numpy.abs(dy) + steep * numpy.abs(dy).sum(axis=-1, keepdims=True)
    return Again(numpy_gradient(dy, y), size, FLUSHED * (1 + 4 * float(numpy.abs(dy).max())))


def kinds(direction: Direction, dtype: str) -> Kinds:
    """All kinds of a direction."""
    if direction is Direction.FORWARD:
        return _of_x(dtype)
    if direction is Direction.BACKWARD:
        return {name: partial(first, change) for name, change in _of_dy(dtype).items()} | _of_dy_and_y(dtype)
    x_or_dy = [(_of_x(dtype), first), (_of_dy(dtype), second)]
    return {name: partial(one, change) for changes, one in x_or_dy for name, change in changes.items()}


def _of_x(dtype: str) -> dict[str, Change]:
    def one_above(x: torch.Tensor, places: Places) -> None:
        share, chosen = torch.rand((2, *x.shape), generator=places.on_device(), device=x.device)
        x.copy_(torch.where(chosen < AROUND / places.N, -BELOW_MIDDLE[dtype] * (1 - share / 8), FAR))
        put(x, places, ABOVE)

    return {name: change for name, change in of_x(dtype).items() if name != "with one +inf"} | {
        "with 30 in the last column": lambda x, places: x[:, -1].fill_(30),
        "with one element above the rest": one_above,
    }


def _of_dy(dtype: str) -> dict[str, Change]:
    def last(dy: torch.Tensor, places: Places) -> None:
        dy.zero_()
        dy[:, -1] = 1

    def alternating(dy: torch.Tensor, places: Places) -> None:
        dy.fill_(1)
        dy[:, 1::2] = -1

    return {name: change for name, change in of_dy(dtype).items() if dtype != "fp16" or name != WIDE} | {
        "with a dy in the last column alone": last,
        "with a dy of alternating signs": alternating,
    }


def _of_dy_and_y(dtype: str) -> dict[str, Callable[[torch.Tensor, torch.Tensor, Places], object]]:
    """The kinds of rows of dy and y, by name, for the backward alone."""

    def one_hot(y: torch.Tensor, places: Places) -> None:
        y.fill_(-math.inf)
        put(y, places, 0)

    def scaled(dy: torch.Tensor, y: torch.Tensor, places: Places, *, size: float) -> None:
        dy.clamp_(-1.5, 1.5).mul_(size)
        one_hot(y[1::2], places)

    def infinite(dy: torch.Tensor, y: torch.Tensor, places: Places) -> None:
        dy[:, 0] = -math.inf
        dy[:, -1] = math.inf

    def wide(dy: torch.Tensor, y: torch.Tensor, places: Places) -> None:
        y.copy_(torch.log_softmax(30 * torch.randn(y.shape, generator=places.on_device(), device=y.device), dim=-1))

    return {
        "with a one-hot y": lambda dy, y, places: one_hot(y, places),
        f"with a dy of size {SMALL_DY[dtype]:g}": partial(scaled, size=SMALL_DY[dtype]),
        f"with a dy of size {HUGE_DY[dtype]:g}": partial(scaled, size=HUGE_DY[dtype]),
        "with y = -inf first": lambda dy, y, places: y.masked_fill_(places.before(len(y)), -math.inf),
        "with a y of wide rows": wide,
        "with infinities in dy": infinite,
        "with a y of NaN": lambda dy, y, places: y.fill_(math.nan),
    }


def _gradients(cases: RowwiseCases) -> Iterable[CheckCase]:
    yield from cases.gradients_of_dy()
    yield cases.gradient("y saturated", lambda dy, y: (dy, one_hot(y).log()))
    yield cases.gradient("y = -inf where x was", lambda dy, y: (dy, torch.where(y > -math.log(COLUMNS), y, -math.inf)))


NUMERICS = LogSoftmax()
