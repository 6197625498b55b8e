"""Softmax over the last axis, and its gradient.

The accuracy bound is an elementwise bound on the error against float64, derived from the arithmetic.
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

With a scale s, z = x s stands for x. A product is rounded, and exp may be of x (s log2 e): each z has an error of up to 2 u |z|. The
factor of d_i + D is 6, because s itself is rounded, or is 1 / T. The bounds of y are those for any such errors (`bounds.extreme`), plus
the terms above. Where x has 16 bits, `low-precision` has errors of u_x |z|: torch rounds x * s and x / T to the dtype of x. A scale that
is rounded to 16 bits is within it too, and so is no scale where x * s rounds to x. Such a row still has the sum 1. In float32 `low-
precision` adds u |max| to the error of each z, as above. The backward is that of softmax times s, with 4 u S more, and its `low-
precision` has one more rounding, of dx before the product.

With out_dtype=fp32, u_o and eta of y are those of float32. With either parameter, r is counted (`bounds.ties`): elements of 16
bits are often equal, and so are those of narrow rows, nearly.

Common tolerances are vacuous here: with rtol = atol = 1e-2 a bf16 output of zeros passes on normal rows of N = 16384.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from softbench.core.case import Case, Direction
from softbench.ops import rowwise
from softbench.ops.check import Worst
from softbench.ops.check_case import CheckCase, Draw, Tensors
from softbench.ops.error_terms import ETA, MAX_EXPONENT, SMALLEST, SUM, U_OUT, Bounded, ScaledBound, U, summing, ties
from softbench.ops.lazy import numpy, torch
from softbench.ops.operation import CASE_DTYPE, TensorSpec
from softbench.ops.parameters import Parameter
from softbench.ops.registry import operation
from softbench.ops.rowwise import COLUMNS, NormalValues, RowwiseCases, one_hot
from softbench.ops.second_opinion import FLUSHED, MAX_WIDER, WIDEST, Again, Array, exact
from softbench.ops.structured_rows import (
    LARGE_DY,
    LONG_ROWS,
    ZEROS,
    Kinds,
    Places,
    first,
    fit,
    make_structured,
    of_dy,
    of_x,
    put,
    second,
    shrink,
)

Scale: TypeAlias = "float | torch.Tensor | None"
"""A number, one number a row as float64 of shape (rows, 1), or None for softmax without scale."""

ROW = "row"
SCALE = Parameter(
    "scale",
    "number",
    1.0,
    "softmax(x * scale); 1 / temperature. row: each row's own, in a float32 tensor of shape (M,)",
    choices=(ROW,),
    least=1e-4,
    most=1e4,
)
OUT_DTYPE = Parameter(
    "out_dtype",
    "choice",
    CASE_DTYPE,
    "fp32: y and dy are float32, x and dx have 16 bits",
    choices=(CASE_DTYPE, "fp32"),
    dtypes=("fp16", "bf16"),
)
OPERATION = rowwise.declare(
    "softmax",
    "exp(x) / sum(exp(x)) of each row, and its gradient",
    result=TensorSpec(("M", "N"), OUT_DTYPE.name),
    others={"scale": TensorSpec(("M",), "fp32", (SCALE.name, ROW))},
    parameters=(SCALE, OUT_DTYPE),
)
OPERATORS = ("softmax",)
"""What the tamper guard protects of torch for the reference."""
LARGEST, LEAST = 2.0**3, 2.0**-3
"""The ends of the scales of rows. Two rows in a hundred have scales that are closer than 8 %."""
NEAR_ZERO = "1000 times as narrow"
"""Its products with a scale are small, and so are their errors: y has no error but its own rounding."""
SMALL_DY = {"fp32": 1e-8, "fp16": 1e-4, "bf16": 1e-8}
FLAT = (
    *("constant", ZEROS, "stepping up", "stepping down", LONG_ROWS[0], "all below -100"),
    *("with a dy of mean 5", "with a dy of ones", NEAR_ZERO),
)
"""Kinds that `both` lacks in float16. There an eager gradient divides twice by the sum, and on flat rows the quotient is subnormal."""
HUGE_DY = {"fp32": 1e30, "fp16": LARGE_DY, "bf16": 1e30}


def softmax(x: torch.Tensor) -> torch.Tensor:
    """softmax(x) over the last axis, in x's dtype."""
    return torch.softmax(x, dim=-1)


def gradient(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """y * (dy - sum(y * dy)) over the last axis, in their dtype."""
    return y * (dy - (y * dy).sum(dim=-1, keepdim=True))


def forward(x: torch.Tensor) -> torch.Tensor:
    """softmax(x) over the last axis, float64; any dtype and shape. Rows that hold NaN or +inf, or only -inf, are NaN."""
    return exact(softmax, numpy_forward, x)


def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """y * (dy - sum(y * dy)) over the last axis, float64."""
    return exact(gradient, numpy_gradient, dy, y)


def numpy_forward(x: Array) -> Array:
    """softmax(x) over the last axis. Rows that hold NaN or +inf, or only -inf, are NaN."""
    with numpy.errstate(all="ignore"):
        e = numpy.exp(x - x.max(axis=-1, keepdims=True))
        found: Array = e / e.sum(axis=-1, keepdims=True)
        return found


def numpy_gradient(dy: Array, y: Array) -> Array:
    """As `backward`, by numpy."""
    with numpy.errstate(all="ignore"):
        found: Array = y * (dy - (y * dy).sum(axis=-1, keepdims=True))
        return found


def result_dtype(case: Case) -> str:
    """The name of the dtype of y and dy."""
    return operation(case.op).tensors["y"].dtype_of(case)


def per_row(case: Case) -> bool:
    """True if the last input is the scale of each row."""
    return case.parameters.get(SCALE.name) == ROW


def split(case: Case, given: Sequence[torch.Tensor]) -> tuple[Sequence[torch.Tensor], Scale]:
    """The inputs without the scale, and the scale."""
    if per_row(case):
        return given[:-1], given[-1].detach().double()[:, None]
    value = case.parameters.get(SCALE.name)
    return given, None if value is None else float(value)


def draw_scales(M: int, generator: torch.Generator, device: torch.device) -> torch.Tensor:
    """The scales of M rows: their logarithms are uniform, so that the scale of another row is wrong."""
    span = math.log2(LARGEST / LEAST)
    return torch.exp2(span * torch.rand(M, generator=generator, device=device) - span / 2)


def times(x: torch.Tensor, scale: Scale) -> torch.Tensor:
    """x * scale in x's dtype."""
    if scale is None:
        return x
    return x * (scale.to(x.dtype) if isinstance(scale, torch.Tensor) else scale)


@dataclass(frozen=True, slots=True)
class FusedExponent(Bounded):
    """The bound of an output that a fused exponent may compute."""

    exponent: torch.Tensor | None = None
    """h of the fused exponent, (rows, 1); None if this output has no such part. `loose` is without it."""

    def loosest(self, out: torch.Tensor) -> torch.Tensor:
        if self.exponent is None:
            return self.loose
        apart = torch.where(out.double() < self.expected, -torch.expm1(-self.exponent), torch.expm1(self.exponent))
        return self.loose + apart * self.expected

    def largest(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Both bounds for an output on either side of the reference."""
        return self.tight, self.loose if self.exponent is None else self.loose + torch.expm1(self.exponent) * self.expected


class Softmax(NormalValues):
    """Softmax over the last axis of (M, N) tensors, and its gradient."""

    __slots__ = ()

    def draw(self, case: Case, random: Draw) -> Tensors:
        """As `rowwise.draw`, and the scale of each row if the case has it."""
        more = (draw_scales(case.M, random.generator, random.device),) if per_row(case) else ()

        def of(x: torch.Tensor, rows: slice) -> torch.Tensor:
            (x, *_), scale = split(case, (x, *(tensor[rows] for tensor in more)))
            return softmax(times(x, scale))

        return *rowwise.draw(case, random, of, result_dtype(case)), *more

    def reference(self, case: Case, *inputs: torch.Tensor) -> Tensors:
        (one, *others), scale = split(case, inputs)
        if case.direction is Direction.BACKWARD:
            return (times(gradient(one, *others), scale),)
        y = softmax(times(one, scale))
        return (y, *(times(gradient(dy, y), scale) for dy in others))

    def bound(self, case: Case, *inputs: torch.Tensor) -> tuple[Bounded, ...]:
        (one, *others), scale = split(case, inputs)
        if case.direction is Direction.FORWARD:
            return (self.bound_forward(one, case, scale),)
        return (
            (self.bound_backward(one, others[0], case, scale),)
            if case.direction is Direction.BACKWARD
            else self.bound_both(one, others[0], case, scale)
        )

    def bound_forward(self, x: torch.Tensor, case: Case, scale: Scale = None) -> FusedExponent | ScaledBound:
        out = result_dtype(case)
        u_out, eta, u_x = U_OUT[out], ETA[out], U_OUT[case.dtype]
        z = times(x.double(), scale)
        y = forward(z)
        high = z.amax(dim=-1, keepdim=True)
        distance = high - z
        spread = torch.where(y == 0, 0.0, y * distance)  # an exact zero is exactly representable, however far away
        mean = spread.sum(dim=-1, keepdim=True)
        travelled = spread + y * mean  # y * (d + D)
        equal = ties(y) if case.parameters else (U * high.abs()).clamp_max(1)
        tight = u_out * y + U * (y * summing(y, equal) + (4 if scale is None else 6) * travelled) + eta
        loose = tight + u_out * (4 * y + 2 * travelled) + eta if u_out else tight
        exponent = torch.where(high.abs() * math.log2(math.e) < MAX_EXPONENT, 2 * U * high.abs(), 0.0)
        if scale is None:
            return FusedExponent(y, tight, loose, high, None if u_out else exponent)
        size = torch.where(z.isfinite(), z.abs(), 0.0)
        rounded = (u_x * size + ETA[case.dtype]) if u_x else exponent / 2
        sums = SUM * u_x + 2 * x.shape[-1] * eta if u_x else math.inf
        floors = eta, 2 * eta if u_out else eta
        return ScaledBound(y, tight, loose, high, z=z, errors=2 * U * size, loose_errors=2 * U * size + rounded, floors=floors, sums=sums)

    def bound_backward(self, dy: torch.Tensor, y: torch.Tensor, case: Case, scale: Scale = None) -> Bounded:
        u_out, eta = U_OUT[case.dtype], ETA[case.dtype]
        dy, y = dy.double(), y.double()
        dx = times(backward(dy, y), scale)
        products = (y * dy).abs()
        reach = times(dy.abs() + products.sum(dim=-1, keepdim=True), scale)
        size = y.abs() * reach
        c, again, floor = summing(products) - 8, 0, torch.zeros(())
        if scale is not None:  # a rounding more, of values that may be below the smallest numbers
            c, again, floor = c + 4, 1, torch.as_tensor(scale)
        tight = u_out * dx.abs() + U * size * c + eta + SMALLEST * (reach + floor)
        return Bounded(dx, tight, tight + (u_out * (2 * size + (1 + again) * dx.abs()) + 2 * eta * (1 + floor) if u_out else 0.0))

    def bound_both(self, x: torch.Tensor, dy: torch.Tensor, case: Case, scale: Scale = None) -> tuple[Bounded, Bounded]:
        ahead = self.bound_forward(x, case, scale)
        y, dy = ahead.expected, dy.double()
        back = self.bound_backward(dy, y, case, scale)
        reach = dy.abs() + (y * dy).sum(dim=-1, keepdim=True).abs()

        def carried(error: torch.Tensor) -> torch.Tensor:
            return times(error * reach + y * (error * dy.abs()).sum(dim=-1, keepdim=True), scale)

        tight, loose = ahead.largest()
        return ahead, Bounded(back.expected, back.tight + carried(tight), back.loose + carried(loose), ahead.high)

    def rounding(self, case: Case, worst: Worst) -> str:
        scaled = SCALE.name in case.parameters
        if U_OUT[case.dtype] and scaled:
            return "rounds x * scale, or dx before its product with scale, to 16 bits"
        if U_OUT[result_dtype(case)] or worst.high is None:
            return "rounds intermediates to 16 bits"
        relative = abs(worst.value - worst.expected) / abs(worst.expected) if worst.expected else math.inf
        return f"rounds max*log2(e) in its exponent: relative error {relative:.2g} in a row whose maximum is {worst.high:.3g}"

    def masks_rows(self, case: Case) -> bool:
        return case.direction is not Direction.BACKWARD

    def again(self, case: Case, *inputs: Array) -> tuple[Again, ...]:
        one, *others = inputs
        given = others.pop() if per_row(case) else case.parameters.get(SCALE.name)
        scale = None if given is None else numpy.asarray(given, dtype=numpy.float64).reshape(-1, 1)
        z = one if scale is None or case.direction is Direction.BACKWARD else one * scale
        widest = _widest(z, U_OUT[case.dtype]) if scale is not None and z is not one else WIDEST
        if case.direction is Direction.BACKWARD:
            return (_scaled(again_gradient(one, others[0]), scale, widest),)
        y = numpy_forward(z)
        return Again(y, y, FLUSHED, widest), *(_scaled(again_gradient(dy, y), scale, widest) for dy in others)

    def structured_rows(self, case: Case) -> Kinds:
        return kinds(case)

    def make_structured(self, given: Tensors, case: Case, seed: int, order: Sequence[str] = ()) -> list[str]:
        """With a scale above 1, x * scale has the kinds of x."""
        rows, scale = split(case, given)
        names = make_structured(tuple(rows), case, seed, kinds(case), order)
        if case.direction is not Direction.BACKWARD:
            shrink(rows[0], scale)
        if case.direction is not Direction.FORWARD and case.dtype == "fp16":
            fit(rows[0 if case.direction is Direction.BACKWARD else 1], scale)
        return names

    def check_cases(self, op: str) -> list[CheckCase]:
        """All check cases of softmax with the parameters of `op`.

        The scale of each row goes with rows, and a function over `dim` does not know the dtype of x in a backward: no such cases.
        """
        cases = RowwiseCases(torch.softmax)
        plain = cases.items(_gradients(cases))
        case = Case(1, 1, "fp16", Direction.FORWARD, op=op)
        if not case.parameters:
            return plain
        rows, narrow = per_row(case), result_dtype(case) != case.dtype
        return [
            replace(item, make=partial(_with_parameters, item, case))
            for item in plain
            if item.dim is None or not (rows or (narrow and item.direction is Direction.BACKWARD))
        ]


def again_gradient(dy: Array, y: Array) -> Again:
    """A row of dx."""
    with numpy.errstate(all="ignore"):
        size = numpy.abs(y) * (numpy.abs(dy) + numpy.abs(y * dy).sum(axis=-1, keepdims=True))
    return Again(numpy_gradient(dy, y), size, FLUSHED * (1 + 4 * float(numpy.abs(dy).max())))


def _widest(z: Array, u_x: float) -> float:
    """The largest bound of y in units of y, where logits have errors. `u_x` is the rounding of the dtype of x; 0 for float32."""
    finite = z[numpy.isfinite(z)]
    high = float(numpy.abs(finite).max()) if finite.size else 0.0
    return WIDEST * float(numpy.exp(min(4 * max(u_x, 2.0**-22) * high, MAX_WIDER)))


def _scaled(found: Again, scale: Array | None, widest: float) -> Again:
    """A row of dx of softmax with a scale, from that without it."""
    if scale is None:
        return found
    floor = found.floor * max(1.0, float(scale.max()))
    return Again(found.expected * scale, found.size * scale, floor, widest)


def of_dy_and_y(dtype: str) -> dict[str, Callable[[torch.Tensor, torch.Tensor, Places], object]]:
    """The kinds of rows of dy and y, by name, for the backward alone."""

    def one_hot(y: torch.Tensor, places: Places) -> None:
        y.zero_()
        put(y, places, 1)

    def scaled(dy: torch.Tensor, y: torch.Tensor, places: Places, *, size: float) -> None:
        dy.clamp_(-1.5, 1.5).mul_(size)
        one_hot(y[1::2], places)

    def infinite(dy: torch.Tensor, y: torch.Tensor, places: Places) -> None:
        """+inf and -inf, or an infinity where y is 0: NaN either way."""
        dy[:, 0] = -math.inf
        dy[:, -1] = math.inf
        if places.N > 2:
            one_hot(y[1::2], Places(places.generator, places.N - 1, places.device))

    def wide(dy: torch.Tensor, y: torch.Tensor, places: Places) -> None:
        y.copy_(torch.softmax(30 * torch.randn(y.shape, generator=places.on_device(), device=y.device), dim=-1))

    both = {name: partial(first, change) for name, change in of_dy(dtype).items()}
    return both | {
        "with a one-hot y": lambda dy, y, places: one_hot(y, places),
        f"with a dy of size {SMALL_DY[dtype]:g}": partial(scaled, size=SMALL_DY[dtype]),
        "with a large dy and a one-hot y": partial(scaled, size=HUGE_DY[dtype]),
        "with a y of zeros": lambda dy, y, places: y.zero_(),
        "with y = 0 first": lambda dy, y, places: y.masked_fill_(places.before(len(y)), 0),
        "with a y of wide rows": wide,
        "with infinities in dy": infinite,
        "with a y of NaN": lambda dy, y, places: y.fill_(math.nan),
    }


def kinds(case: Case) -> Kinds:
    """All kinds of a case."""
    dtype, changes = case.dtype, of_x(case.dtype)
    if case.parameters:
        changes |= {NEAR_ZERO: lambda x, places: x.mul_(1e-3)}
    if case.direction is Direction.FORWARD:
        return dict(changes)
    if case.direction is Direction.BACKWARD:
        return dict(of_dy_and_y(dtype))
    of_both: dict[str, Callable[..., object]] = {name: partial(first, change) for name, change in changes.items()}
    of_both |= {name: partial(second, change) for name, change in of_dy(dtype).items()}
    return {name: change for name, change in of_both.items() if dtype != "fp16" or name not in FLAT}


def _gradients(cases: RowwiseCases) -> Iterable[CheckCase]:
    yield from cases.gradients_of_dy()
    yield cases.gradient("y saturated", lambda dy, y: (dy, one_hot(y)))
    yield cases.gradient("y = 0 where x was -inf", lambda dy, y: (dy, torch.where(y > 1 / COLUMNS, y, torch.zeros_like(y))))


def _with_parameters(item: CheckCase, case: Case, draw: Draw) -> Tensors:
    """The arguments of a check case with a scale of each row, and y and dy in their dtype. Products with the scale overflow no dtype."""
    result = result_dtype(replace(case, dtype=draw.dtype))
    make: Callable[[Draw], Tensors] = item.make
    given = list(make(replace(draw, dtype=result) if item.direction is Direction.BACKWARD else draw))
    if item.direction is Direction.BOTH and result != draw.dtype:
        given[1] = replace(draw, dtype=result).normal(*given[1].shape)
    if per_row(case):
        given.append(draw_scales(len(given[0]), draw.generator, draw.device))
    if item.direction is Direction.FORWARD and item.dim is None and item.repeat in ("", "twice", "stream"):
        shrink(given[0], split(case, tuple(given))[1])
    return tuple(given)


NUMERICS = Softmax()
