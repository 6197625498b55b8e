"""RMSNorm of a sum: a layer's output x is added to the residual stream, and the sum is normalized. Its gradients are to both and w.

    s    = x + residual
    y_i  = w_i s_i rstd,  rstd = 1 / sqrt(mean_j s_j^2 + eps)
    dx_i = ds_i + the dx of RMSNorm at s, which is the gradient to the residual too
    dw_i = the sum over rows of dy_i s_i rstd

The forward returns y, s and rstd, and the backward gets dy, ds, s, w and rstd. `softbench.ops.rms_norm` has the source of the norm, and its
bounds; these add:

    s      u_o |s_i| + u |s_i| + eta
    rstd   u (c / 2 + 12) rstd + u_o rstd
    y      2 u_o |y_i| more
    dx     u (|ds_i| + |dx_i|) more, and the last rounding is that of the whole dx
    dw     u_o |dw_i| + u (c + 4) sum|dy_i h_i| + eta

y, rstd: kernels normalize the sum in float32, or the s that they store in 16 bits. This moves an element by u_o of itself, and the root of
the mean by no more.

`low-precision`, beside that of RMSNorm: the norm's dx is rounded to 16 bits before ds is added, or the terms of dw are.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from softbench.core.case import Case, Direction
from softbench.ops import rms_norm
from softbench.ops.check_case import Tensors
from softbench.ops.error_terms import ETA, SMALLEST, U_OUT, U, alike, summing
from softbench.ops.lazy import numpy, torch
from softbench.ops.norms import COLUMN, EACH, PRESETS, ROWS, SAVED, Norm, eps_of, is_saved, mean, of_column_sums, rounded_terms, rstd_of
from softbench.ops.operation import Operation, Pass, TensorSpec
from softbench.ops.second_opinion import FLUSHED, Again, Array

GIVEN = ("dy", "ds", "s", "w", "rstd")
OPERATION = Operation(
    name="add_rms_norm",
    summary="s = x + residual and s / sqrt(mean(s^2) + eps) * w of each row, and the gradients to x (and residual) and w",
    tensors=MappingProxyType(
        {
            **dict.fromkeys(("x", "residual", "y", "s", "dy", "ds", "dx"), ROWS),
            **dict.fromkeys(("w", "dw"), COLUMN),
            "rstd": TensorSpec(EACH.axes, EACH.dtype, when=(SAVED.name, True)),
        }
    ),
    passes=MappingProxyType(
        {
            Direction.FORWARD: Pass(("x", "residual", "w"), ("y", "s", "rstd"), ("x", "residual", "w")),
            Direction.BACKWARD: Pass(GIVEN, ("dx", "dw"), GIVEN, whole=True),
        }
    ),
    presets=PRESETS,
    parameters=(rms_norm.EPS, SAVED),
)
OPERATORS = (*rms_norm.OPERATORS, "Tensor.sum")
"""What the tamper guard protects of torch for the reference."""


class AddRmsNorm(Norm):
    """y and the sum of each row, and the gradients."""

    __slots__ = ()

    def statistics(self, case: Case, x: torch.Tensor) -> Mapping[str, torch.Tensor]:
        return {"rstd": rstd_of(x, eps_of(case))}

    def _given(self, case: Case, *inputs: torch.Tensor) -> Tensors:
        """dy, ds, s, w and rstd (rows, 1)."""
        dy, ds, s, w, *saved = inputs
        return dy, ds, s, w, saved[0][:, None] if saved else rstd_of(s, eps_of(case))

    def reference(self, case: Case, *inputs: torch.Tensor) -> Tensors:
        if case.direction is Direction.FORWARD:
            x, residual, w = inputs
            s = x + residual
            rstd = rstd_of(s, eps_of(case))
            return (s * rstd * w, s, rstd[:, 0]) if is_saved(case) else (s * rstd * w, s)
        dy, ds, s, w, r = self._given(case, *inputs)
        g, h = w * dy, s * r
        return ds + r * (g - h * mean(g * h)), (dy * h).sum(dim=0)

    def bound(self, case: Case, *inputs: torch.Tensor) -> Tensors:
        exact, u_out, eta = self.reference(case, *inputs), U_OUT[case.dtype], ETA[case.dtype]
        if case.direction is Direction.FORWARD:
            squares = exact[1].square()
            of_rstd = U * (summing(squares, alike(squares, whole=False)) / 2 + 12)
            of_y = (3 * u_out + of_rstd) * exact[0].abs() + eta * (1 + rstd_of(exact[1], eps_of(case)) * inputs[2].abs())
            return of_y, (u_out + U) * exact[1].abs() + eta, *((of_rstd[:, 0] + u_out) * one for one in exact[2:])
        dy, ds, s, w, r = self._given(case, *inputs)
        h = (s * r).abs()
        terms, sizes = rms_norm.sizes_of(dy, s, w, r[:, 0])
        lost = SMALLEST * (1 + r * (1 + h * (1 + r)))
        squares = s.square()
        of_rstd = U * (summing(squares, alike(squares, whole=False)) / 2 + 12) * (len(inputs) < len(GIVEN))
        of_norm = (U * summing(terms, alike(terms, whole=False)) + of_rstd) * sizes
        of_dx = (u_out + U) * exact[0].abs() + of_norm + U * ds.abs() + eta + lost
        return of_dx, of_column_sums(case.dtype, exact[1], dy * h, of_rstd * (dy * h).abs())

    def low_precision(self, case: Case, *inputs: torch.Tensor) -> Tensors | None:
        u_out, eta = U_OUT[case.dtype], ETA[case.dtype]
        if not u_out:
            return None
        exact, tight = self.reference(case, *inputs), self.bound(case, *inputs)
        if case.direction is Direction.FORWARD:
            return tight[0] + u_out * exact[0].abs() + eta * inputs[2].abs(), *tight[1:]
        dy, ds, s, w, r = self._given(case, *inputs)
        h = (s * r).abs()
        sizes = rms_norm.sizes_of(dy, s, w, r[:, 0])[1]
        lost = eta * (1 + r * (1 + h * mean(h)))
        of_dx = tight[0] + u_out * (2 * sizes + (exact[0] - ds).abs()) + lost
        return of_dx, tight[1] + rounded_terms(case.dtype, dy * h) + len(dy) * eta

    def again(self, case: Case, *inputs: Array) -> tuple[Again, ...]:
        """Of the forward; the backward is whole."""
        x, residual, w = inputs
        with numpy.errstate(all="ignore"):
            s = x + residual
            r = 1 / numpy.sqrt((s**2).mean(axis=-1) + eps_of(case))
            y = s * r[:, None] * w
            size = numpy.abs(x) + numpy.abs(residual)
            floor = FLUSHED * (1 + float(numpy.nan_to_num(r).max(initial=0.0) * numpy.abs(w).max(initial=0.0)))
            found = Again(y, size * r[:, None] * numpy.abs(w), floor), Again(s, size, FLUSHED), Again(r, r, FLUSHED)
            return found if is_saved(case) else found[:2]


NUMERICS = AddRmsNorm()
