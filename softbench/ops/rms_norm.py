"""RMSNorm of each row with a weight, and its gradient to x. The gradient of the weight is a sum over rows, which no row can be checked by.

    rstd = 1 / sqrt(mean_j x_j^2 + eps)
    y_i  = w_i x_i rstd
    dx_i = rstd (w_i dy_i - h_i mean_j(w_j dy_j h_j)),  h_i = x_i rstd

Source: Zhang and Sennrich, https://arxiv.org/abs/1910.07467. The backward gets rstd, which models save in the forward.

The bounds are elementwise bounds on the error against float64, derived from the arithmetic. u, u_o, eta and c are those of
`softbench.ops.error_terms`. c is that of the sum of x_j^2 in the forward, and c' that of the sum of |w_j dy_j x_j|:

    y         u_o |y_i| + u (c / 2 + 12) |y_i| + eta
    dx        u_o |dx_i| + u c' S_i + eta,  S_i = rstd |w_i dy_i| + rstd |h_i| mean_j |w_j dy_j h_j|

y: no term of the mean is negative, so the sum is off by u c of itself, and its root by half of that. The quotient, eps, the root and its
reciprocal are rounded, where a GPU's approximate instruction is off by up to 4 u, and so are two products.

dx: the terms of the mean may cancel, so c' is for the sum of their sizes. Up to eight products and the difference are rounded; c' has 16.
Products below 2^-126 may be lost, which rstd makes larger: 2^-126 (1 + rstd (1 + |h_i| (1 + rstd))).

`low-precision` is a second class, for code that rounds to 16 bits in between, as the RMSNorm of Llama in Transformers does:

    y         u_o |y_i| + eta |w_i| more: h is rounded before its product with w
    dx        u_o (2 S_i + |dx_i|) + eta (1 + rstd (1 + |h_i| mean_j |h_j|)) more: w dy and h are rounded too

A mean of squares in 16 bits is wrong in each class.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from softbench.core.case import Case, Direction
from softbench.ops.check_case import Tensors
from softbench.ops.error_terms import ETA, SMALLEST, U_OUT, U, alike, summing
from softbench.ops.lazy import numpy, torch
from softbench.ops.norms import COLUMN, EACH, PRESETS, ROWS, Norm, eps_of, rstd_of
from softbench.ops.operation import Operation, Pass
from softbench.ops.parameters import Parameter
from softbench.ops.second_opinion import FLUSHED, Again, Array

EPS = Parameter("eps", "number", 1e-6, "the number added to the mean of the squares", least=1e-12, most=1)
OPERATION = Operation(
    name="rms_norm",
    summary="x / sqrt(mean(x^2) + eps) * w of each row, and its gradient to x",
    tensors=MappingProxyType(
        {"x": ROWS, "w": COLUMN, "y": ROWS, "dy": ROWS, "rstd": EACH, "dx": ROWS},
    ),
    passes=MappingProxyType(
        {
            Direction.FORWARD: Pass(("x", "w"), ("y",), ("x", "w")),
            Direction.BACKWARD: Pass(("dy", "x", "w", "rstd"), ("dx",), ("dy", "x", "w", "rstd")),
        }
    ),
    presets=PRESETS,
    parameters=(EPS,),
)
OPERATORS = ("rsqrt", "Tensor.square", "Tensor.mean")
"""What the tamper guard protects of torch for the reference."""


class RmsNorm(Norm):
    """y of each row, and dx."""

    __slots__ = ()

    def statistics(self, case: Case, x: torch.Tensor) -> Mapping[str, torch.Tensor]:
        return {"rstd": rstd_of(x, eps_of(case))}

    def reference(self, case: Case, *inputs: torch.Tensor) -> Tensors:
        if case.direction is Direction.FORWARD:
            x, w = inputs
            return (x * rstd_of(x, eps_of(case)) * w,)
        dy, x, w, rstd = inputs
        weighted, h = w * dy, x * rstd[:, None]
        return (rstd[:, None] * (weighted - h * (weighted * h).mean(dim=-1, keepdim=True)),)

    def bound(self, case: Case, *inputs: torch.Tensor) -> Tensors:
        (exact,), u_out = self.reference(case, *inputs), U_OUT[case.dtype]
        if case.direction is Direction.FORWARD:
            squares = inputs[0].square()
            return ((u_out + U * (summing(squares, alike(squares, whole=False)) / 2 + 12)) * exact.abs() + ETA[case.dtype],)
        terms, sizes = sizes_of(*inputs)
        _, x, _, rstd = inputs
        r, h = rstd[:, None], (x * rstd[:, None]).abs()
        lost = SMALLEST * (1 + r * (1 + h * (1 + r)))
        return (u_out * exact.abs() + U * summing(terms, alike(terms, whole=False)) * sizes + ETA[case.dtype] + lost,)

    def low_precision(self, case: Case, *inputs: torch.Tensor) -> Tensors | None:
        u_out, eta = U_OUT[case.dtype], ETA[case.dtype]
        if not u_out:
            return None
        (exact,), (tight,) = self.reference(case, *inputs), self.bound(case, *inputs)
        if case.direction is Direction.FORWARD:
            return (tight + u_out * exact.abs() + eta * inputs[1].abs(),)
        _, x, _, rstd = inputs
        h = (x * rstd[:, None]).abs()
        lost = eta * (1 + rstd[:, None] * (1 + h * h.mean(dim=-1, keepdim=True)))
        return (tight + u_out * (2 * sizes_of(*inputs)[1] + exact.abs()) + lost,)

    def again(self, case: Case, *inputs: Array) -> tuple[Again, ...]:
        with numpy.errstate(all="ignore"):
            if case.direction is Direction.FORWARD:
                x, w = inputs
                y = x / numpy.sqrt((x**2).mean(axis=-1, keepdims=True) + eps_of(case)) * w
                return (Again(y, numpy.abs(y), FLUSHED),)
            dy, x, w, rstd = inputs
            r = rstd[:, None]
            weighted, h = w * dy, x * r
            dx = r * (weighted - h * (weighted * h).mean(axis=-1, keepdims=True))
            size = r * (numpy.abs(weighted) + numpy.abs(h) * numpy.abs(weighted * h).mean(axis=-1, keepdims=True))
            enlarged = float(numpy.nan_to_num(r * (1 + numpy.abs(h))).max(initial=0.0))
            return (Again(dx, size, FLUSHED * (1 + 4 * float(numpy.abs(dy).max(initial=0.0))) * (1 + enlarged)),)


def sizes_of(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, rstd: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sizes of the terms of the mean, and S."""
    r, terms = rstd[:, None], (w * dy * x).abs()
    return terms, r * (w * dy).abs() + r**3 * x.abs() * terms.mean(dim=-1, keepdim=True)


NUMERICS = RmsNorm()
