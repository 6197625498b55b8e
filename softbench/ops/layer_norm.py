"""LayerNorm of each row with a weight and a bias, and its gradients to x, weight and bias.

    m    = mean_j x_j,  rstd = 1 / sqrt(mean_j (x_j - m)^2 + eps)
    y_i  = w_i h_i + b_i,  h_i = (x_i - m) rstd
    dx_i = rstd (g_i - mean_j g_j - h_i mean_j(g_j h_j)),  g_i = w_i dy_i
    dw_i = the sum over rows of dy_i h_i, and db_i that of dy_i

Source: Ba, Kiros and Hinton, https://arxiv.org/abs/1607.06450. The backward gets m and rstd, which the forward saves.

The bounds are elementwise bounds on the error against float64, derived from the arithmetic. u, u_o, eta and c are those of
`softbench.ops.error_terms`; c is that of the sum of the named terms. k = 1 + rstd sqrt(mean x^2) is the condition of the variance:

    mean   M + eta,  M = u (c mean|x| + max|x| / 4): torch's mean of two parts may begin at that of the smaller part, and cancel
    rstd   R rstd,  R = u (c k / 2 + 12)
    y      u_o |y_i| + |w_i| H_i + 2 u (|w_i h_i| + |b_i|) + eta,  H_i = rstd (M + 3 u |x_i| + 3 u |m|) + R |h_i|
    dx     u_o |dx_i| + u c S_i + rstd (H_i mean|g h| + |h_i| mean(|g| H)) + R |dx_i| + eta + lost
    dw     u_o |dw_i| + u (c + 4) sum|dy_i h_i| + sum |dy_i| H_i + eta;  db has no H

S_i = rstd (|g_i| + mean|g| + |h_i| mean|g h|). Where m and rstd are given, H_i = 3 u rstd (|x_i| + |m|), and R is 0 in dx.

R: the variance of Welford's updates has the relative error u c k. In one pass, as mean(x^2) - m^2, it has u c k^2, which no bound here
accepts. Source: Chan, Golub and LeVeque, "Algorithms for computing the sample variance", The American Statistician 37 (1983), who have the
number of terms for c. The second mean of two passes has no digits lost.

`low-precision` is a second class, for code that rounds h, its product with w, or a term of a sum to 16 bits: 2 u_o |w_i h_i|, 2 u_o S_i,
and for sums over rows 8 u_o sqrt(sum term^2), a random walk, or more where terms round alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from softbench.core.case import Case, Direction
from softbench.ops.check_case import Tensors
from softbench.ops.error_terms import ETA, SMALLEST, U_OUT, U, alike, summing
from softbench.ops.lazy import numpy, torch
from softbench.ops.norms import COLUMN, EACH, PRESETS, ROWS, SAVED, Norm, eps_of, is_saved, mean, of_column_sums, rounded_terms, rstd_of
from softbench.ops.operation import Operation, Pass, TensorSpec
from softbench.ops.parameters import Parameter
from softbench.ops.second_opinion import FLUSHED, Again, Array
from softbench.ops.structured_rows import Kinds

EPS = Parameter("eps", "number", 1e-5, "the number added to the variance", least=1e-12, most=1)
LEFT_OUT = ("inf", "below", "shifted", "stepping")
"""Words of the kinds of rows that an operation without a mean has in addition."""
STATISTIC = TensorSpec(EACH.axes, EACH.dtype, when=(SAVED.name, True))
GIVEN = ("dy", "x", "w", "mean", "rstd")
OPERATION = Operation(
    name="layer_norm",
    summary="(x - mean(x)) / sqrt(var(x) + eps) * w + b of each row, and its gradients to x, w and b",
    tensors=MappingProxyType(
        {
            **dict.fromkeys(("x", "y", "dy", "dx"), ROWS),
            **dict.fromkeys(("w", "b", "dw", "db"), COLUMN),
            **dict.fromkeys(("mean", "rstd"), STATISTIC),
        }
    ),
    passes=MappingProxyType(
        {
            Direction.FORWARD: Pass(("x", "w", "b"), ("y", "mean", "rstd"), ("x", "w", "b")),
            Direction.BACKWARD: Pass(GIVEN, ("dx", "dw", "db"), GIVEN, whole=True),
        }
    ),
    presets=PRESETS,
    parameters=(EPS, SAVED),
)
OPERATORS = ("rsqrt", "Tensor.square", "Tensor.mean", "Tensor.sum")
"""What the tamper guard protects of torch for the reference."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What rows of x in float64 give; (rows, N) or (rows, 1)."""

    m: torch.Tensor
    rstd: torch.Tensor
    h: torch.Tensor
    of_m: torch.Tensor
    """The error of m."""
    of_rstd: torch.Tensor
    """R."""
    of_h: torch.Tensor
    """H."""


def rows_of(case: Case, x: torch.Tensor, *saved: torch.Tensor) -> Rows:
    """`saved`: m and rstd, (rows,), if the pass gets them."""
    if saved:
        m, rstd = (one[:, None] for one in saved)
        return Rows(m, rstd, (x - m) * rstd, torch.zeros_like(m), torch.zeros_like(m), 3 * U * rstd * (x.abs() + m.abs()))
    m = mean(x)
    below = x - m
    rstd = rstd_of(below, eps_of(case))
    sizes, squares = x.abs(), below.square()
    of_m = U * (summing(sizes, alike(sizes, whole=False)) * mean(sizes) + sizes.amax(dim=-1, keepdim=True) / 4)
    condition = 1 + rstd * mean(x.square()).sqrt()
    of_rstd = U * (summing(squares, alike(squares, whole=False)) * condition / 2 + 12)
    h = below * rstd
    return Rows(m, rstd, h, of_m, of_rstd, rstd * (of_m + 3 * U * (sizes + m.abs())) + of_rstd * h.abs())


class LayerNorm(Norm):
    """y of each row and its statistics, and the gradients."""

    __slots__ = ()

    def statistics(self, case: Case, x: torch.Tensor) -> Mapping[str, torch.Tensor]:
        m = mean(x)
        return {"mean": m, "rstd": rstd_of(x - m, eps_of(case))}

    def reference(self, case: Case, *inputs: torch.Tensor) -> Tensors:
        if case.direction is Direction.FORWARD:
            x, w, b = inputs
            found = self.statistics(case, x)
            y = w * ((x - found["mean"]) * found["rstd"]) + b
            return (y, *(one[:, 0] for one in found.values())) if is_saved(case) else (y,)
        dy, x, w, *saved = inputs
        one, g = rows_of(case, x, *saved), w * dy
        dx = one.rstd * (g - mean(g) - one.h * mean(g * one.h))
        return dx, (dy * one.h).sum(dim=0), dy.sum(dim=0)

    def bound(self, case: Case, *inputs: torch.Tensor) -> Tensors:
        exact, u_out, eta = self.reference(case, *inputs), U_OUT[case.dtype], ETA[case.dtype]
        if case.direction is Direction.FORWARD:
            x, w, b = inputs
            one = rows_of(case, x)
            of_y = u_out * exact[0].abs() + w.abs() * one.of_h + 2 * U * ((w * one.h).abs() + b.abs()) + eta
            return (of_y, (one.of_m + ETA["fp32"])[:, 0], (one.of_rstd * one.rstd)[:, 0])[: len(exact)]
        dy, x, w, *saved = inputs
        one, g = rows_of(case, x, *saved), (w * dy).abs()
        h, gh = one.h.abs(), g * one.h.abs()
        c = torch.maximum(summing(g, alike(g, whole=False)), summing(gh, alike(gh, whole=False)))
        lost = SMALLEST * (1 + one.rstd * (1 + h * (1 + one.rstd)))
        carried = one.rstd * (one.of_h * mean(gh) + h * mean(g * one.of_h)) + one.of_rstd * exact[0].abs()
        of_dx = u_out * exact[0].abs() + U * c * _sizes(one, g) + carried + eta + lost
        of_dw = of_column_sums(case.dtype, exact[1], dy * one.h, dy.abs() * one.of_h)
        return of_dx, of_dw, of_column_sums(case.dtype, exact[2], dy)

    def low_precision(self, case: Case, *inputs: torch.Tensor) -> Tensors | None:
        u_out, eta = U_OUT[case.dtype], ETA[case.dtype]
        if not u_out:
            return None
        exact, tight = self.reference(case, *inputs), self.bound(case, *inputs)
        if case.direction is Direction.FORWARD:
            _, w, b = inputs
            return tight[0] + 2 * u_out * (exact[0] - b).abs() + eta * (1 + w.abs()), *tight[1:]
        dy, x, w, *saved = inputs
        one = rows_of(case, x, *saved)
        h = one.h.abs()
        lost = eta * (1 + one.rstd * (1 + h * (1 + mean(h))))
        of_dx = tight[0] + u_out * (2 * _sizes(one, (w * dy).abs()) + exact[0].abs()) + lost
        return of_dx, tight[1] + rounded_terms(case.dtype, dy * one.h) + len(dy) * eta, tight[2] + rounded_terms(case.dtype, dy)

    def structured_rows(self, case: Case) -> Kinds:
        """Without +inf, where Welford's updates make the mean NaN. Rows are far from 0 in the forward only: torch's dx cancels on a CPU."""
        found = {name: change for name, change in super().structured_rows(case).items() if not any(word in name for word in LEFT_OUT)}
        return found if case.direction is Direction.BACKWARD else found | {"far from 0": lambda x, places: x.add_(100)}

    def again(self, case: Case, *inputs: Array) -> tuple[Again, ...]:
        """Of the forward; the backward is whole."""
        x, w, b = inputs
        with numpy.errstate(all="ignore"):
            m = x.mean(axis=-1, keepdims=True)
            r = 1 / numpy.sqrt(((x - m) ** 2).mean(axis=-1, keepdims=True) + eps_of(case))
            size = numpy.abs(w) * r * (numpy.abs(x) + numpy.abs(x).mean(axis=-1, keepdims=True)) + numpy.abs(b)
            k = 1 + r * numpy.sqrt((x**2).mean(axis=-1, keepdims=True))
            y = Again(w * (x - m) * r + b, size * k, FLUSHED)
            found = y, Again(m[:, 0], numpy.abs(x).mean(axis=-1), FLUSHED), Again(r[:, 0], (r * k)[:, 0], FLUSHED)
            return found if is_saved(case) else found[:1]


def _sizes(one: Rows, g: torch.Tensor) -> torch.Tensor:
    """S."""
    return one.rstd * (g + mean(g) + one.h.abs() * mean(g * one.h.abs()))


NUMERICS = LayerNorm()
