"""The bounds of masked softmax: elementwise bounds on the error against float64, derived from the arithmetic.

The symbols are those of `softbench.ops.masked_softmax.reference` and `softbench.ops.softmax.tolerance`. A sink is one more column of the
row. With t_i = |scale x_i| + |bias_i| + |z_i|, and |s| for the sink:

    forward   that of softmax for any errors of z_i up to 2 u t_i, plus u_o y_i + u y_i (c + 6 (d_i + D)) + eta
    dx        u_o |dx_i| + u S_i (c - 4) + eta,   S_i = scale |y_i| (|dy_i| + sum_j |y_j dy_j|)
    dsink     u sink_share sum_j |y_j dy_j| (c - 4) + smallest normal number

scale x is rounded, the bias is added, and exp may be exp2 of products with log2(e): each rounds at the size of its term. Elements that do
not take part have an error of 0: they must be exactly 0, also in dx. So must those with a z of -inf.

In a row of NaN, what a causal query does not see may be NaN, as in torch, or 0, as in a kernel that reads the lower half only.

`low-precision` is a second class, for backends that round intermediates to 16 bits:

    forward   errors of z_i up to u_x (|scale x_i| + |z_i| + d_i) more, plus u_o y_i (4 + 2 (d_i + D)) + eta
    dx        u_o (2 S_i + 2 |dx_i|) + 2 eta (1 + scale) + scale |y_i| sum_j min(eta, |y_j dy_j|)
    dsink     2 u_o sink_share sum_j |y_j dy_j| + 2 eta

Eager code rounds scale x, then the sum with the bias, then the difference from the maximum: gpt-oss subtracts it before the softmax. A sum
of a whole row in 16 bits would be wrong. Without a sink the sum of such a row of y is 1, as for softmax. In float32 z may have errors of
u |max| more, because of a fused exponent. Products y dy are rounded, and below eta they are lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from softbench.core.case import Case, Direction
from softbench.ops.check_case import Tensors
from softbench.ops.masked_softmax import independent, reference
from softbench.ops.masked_softmax.reference import Rows
from softbench.ops.rowwise.independent import Again, wide
from softbench.ops.rowwise.tolerance import ETA, MAX_EXPONENT, SMALLEST, U_OUT, Bounded, Tolerance, U, summing
from softbench.ops.softmax import scaling
from softbench.ops.softmax.scaling import ScaledBound


@dataclass(frozen=True, slots=True)
class Part(Bounded):
    """The bound of the first columns of a wider row, whose last column is the sink. Where `exact` is True it is 0."""

    whole: ScaledBound | None = None
    exact: torch.Tensor | None = None

    def tightest(self, out: torch.Tensor) -> torch.Tensor:
        assert self.whole is not None
        return self._of(self.whole.tightest(self._widened(out)))

    def loosest(self, out: torch.Tensor) -> torch.Tensor:
        assert self.whole is not None
        return self._of(self.whole.loosest(self._widened(out)))

    def _widened(self, out: torch.Tensor) -> torch.Tensor:
        """The output with the expected share of the sink."""
        assert self.whole is not None
        return torch.cat([out.double(), self.whole.expected[:, out.shape[1] :]], dim=1)

    def _of(self, bound: torch.Tensor) -> torch.Tensor:
        assert self.exact is not None
        return bound[:, : self.expected.shape[1]].masked_fill(self.exact, 0.0)


class MaskedTolerance(Tolerance):
    """The bounds of y, and of dx and dsink."""

    __slots__ = ()

    def bound_forward(self, x: torch.Tensor, case: Case, rows: Rows | None = None) -> Part:
        """The bound on y; `rows` has the inputs beside x."""
        rows, scale = rows or Rows(x), reference.scale_of(case)
        double = Rows(x.double(), None, None if rows.bias is None else rows.bias.double(), rows.mask, rows.sink, rows.seen)
        z = reference.logits(double, scale)
        y = reference.forward(z)
        terms, product = _terms(double, z, scale)
        u_out, eta, high = U_OUT[case.dtype], ETA[case.dtype], z.amax(dim=-1, keepdim=True)
        distance = high - z
        spread = torch.where(y == 0, 0.0, y * distance)
        travelled = spread + y * spread.sum(dim=-1, keepdim=True)
        tight = u_out * y + U * (y * summing(y, scaling.ties(y)) + 6 * travelled) + eta
        loose = tight + (u_out * (4 * y + 2 * travelled) + eta if u_out else 0.0)
        far = torch.where(distance.isfinite(), distance, 0.0)
        more = u_out * (product + z.abs().nan_to_num(0, 0, 0) + far) + ETA[case.dtype]
        if not u_out:
            more = torch.where(high.abs() * math.log2(math.e) < MAX_EXPONENT, U * high.abs(), 0.0)
        sums = scaling.SUM * u_out + 2 * x.shape[-1] * eta if u_out and rows.sink is None else math.inf
        errors, N, floors = 2 * U * terms, x.shape[-1], (eta, 2 * eta if u_out else eta)
        whole = ScaledBound(y, tight, loose, high, z=z, errors=errors, loose_errors=errors + more, floors=floors, sums=sums)
        return Part(y[:, :N], tight[:, :N], loose[:, :N], high, whole=whole, exact=z[:, :N].isneginf())

    def bound_backward(self, dy: torch.Tensor, y: torch.Tensor, case: Case, rows: Rows | None = None) -> Bounded:
        """The bound on dx; `rows` has the inputs beside dy and y."""
        dy, y, unseen = _seen(dy, y, rows)
        u_out, eta, scale = U_OUT[case.dtype], ETA[case.dtype], reference.scale_of(case)
        dx = reference.without(scale * y * (dy - reference.dot(dy, y)), unseen)
        products = (y * dy).abs()
        reach = scale * (dy.abs() + products.sum(dim=-1, keepdim=True))
        size = y.abs() * reach
        tight = u_out * dx.abs() + U * size * (summing(products) - 4) + eta + SMALLEST * (reach + scale)
        flushed = y.abs() * products.clamp_max(eta).sum(dim=-1, keepdim=True)
        loose = tight + (u_out * (2 * size + 2 * dx.abs()) + 2 * eta * (1 + scale) + scale * flushed if u_out else 0.0)
        return Bounded(dx, *(reference.without(bound, unseen) for bound in (tight, torch.as_tensor(loose))))

    def bound_sink(self, dy: torch.Tensor, y: torch.Tensor, case: Case, rows: Rows) -> Bounded:
        """The bound on dsink, (rows, 1)."""
        dy, y, _ = _seen(dy, y, rows)
        assert rows.sink is not None
        share = rows.sink.double()[:, None]
        products = (y * dy).abs()
        size = share * products.sum(dim=-1, keepdim=True)
        tight = U * size * (summing(products) - 4) + SMALLEST * (1 + share * (1 + dy.abs().sum(dim=-1, keepdim=True)))
        u_out = U_OUT[case.dtype]
        return Bounded(-share * reference.dot(dy, y), tight, tight + (2 * u_out * size + 2 * ETA[case.dtype] if u_out else 0.0))

    def bound_both(self, x: torch.Tensor, dy: torch.Tensor, case: Case) -> tuple[Bounded, Bounded]:
        raise NotImplementedError("masked softmax has no pass of both")

    def again_forward(self, x: independent.Array) -> Again:
        return independent.again_forward(x, x.shape[-1], float(abs(x).max()), 0.0)

    def again_backward(self, dy: independent.Array, y: independent.Array) -> Again:
        return independent.again_dx(dy, y, 1.0)

    def rounding(self, case: Case, high: float | None, value: float, expected: float) -> str:
        if U_OUT[case.dtype]:
            return "rounds intermediates, such as scale * x or its sum with the bias, to 16 bits"
        return f"rounds max*log2(e) in its exponent, in a row whose maximum is {high:.3g}" if high is not None else "rounds intermediates"

    def _rows(self, case: Case, inputs: Tensors, outputs: Tensors, rows: slice) -> Iterator[tuple[str, torch.Tensor, Bounded]]:
        given = reference.split(case, [tensor.detach()[rows] for tensor in inputs])
        got = [tensor[rows] for tensor in outputs]
        if case.direction is Direction.FORWARD:
            ahead, unseen = self.bound_forward(given.first, case, given), _unseen(given)
            allowed = unseen & ahead.expected.isnan() & (got[0] == 0)
            yield "y", got[0].masked_fill(allowed, math.nan), ahead
            return
        assert given.y is not None
        back = self.bound_backward(given.first, given.y, case, given)
        allowed = _unseen(given) & back.expected.isnan().any(dim=-1, keepdim=True)
        yield "dx", got[0].masked_fill(allowed & got[0].isnan(), 0.0), back
        if given.sink is not None:
            yield "dsink", got[1][:, None], self.bound_sink(given.first, given.y, case, given)

    def _again(self, case: Case, inputs: Tensors, name: str, row: int) -> Again:
        given = reference.split(case, [tensor.detach()[row : row + 1] for tensor in inputs])
        scale = reference.scale_of(case)
        if name == "y":
            one = Rows(given.first.double(), None, None if given.bias is None else given.bias.double(), given.mask, given.sink, given.seen)
            z = reference.logits(one, scale)
            terms = _terms(one, z, scale)[0]
            return independent.again_forward(wide(z[0]), given.first.shape[1], float(terms.max()), U_OUT[case.dtype])
        assert given.y is not None
        dy, y, unseen = _seen(given.first, given.y, given)
        if name == "dx":
            return independent.again_dx(wide(dy[0]), wide(y[0]), scale, None if unseen is None else unseen[0].cpu().numpy())
        assert given.sink is not None
        return independent.again_dsink(wide(dy[0]), wide(y[0]), wide(given.sink))


def _unseen(rows: Rows) -> torch.Tensor:
    """Where a row of a causal case sees no such key, (rows, N)."""
    found = reference.hidden(Rows(rows.first, seen=rows.seen))
    return torch.zeros_like(rows.first, dtype=torch.bool) if found is None else found


def _seen(dy: torch.Tensor, y: torch.Tensor, rows: Rows | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """dy and y in float64 with zeros where the query sees no such key, and where that is."""
    unseen = None if rows is None else reference.hidden(rows)
    return reference.without(dy.double(), unseen), reference.without(y.double(), unseen), unseen


def _terms(rows: Rows, z: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """t of each column, and |scale x|, both in the shape of z; 0 for elements that do not take part."""
    product = (scale * rows.first).abs()
    bias = torch.zeros_like(product) if rows.bias is None else rows.bias.abs()
    if rows.sink is not None:
        ends = torch.zeros_like(product[:, :1])
        product, bias = torch.cat([product, ends], dim=1), torch.cat([bias, ends], dim=1)
    there = z.isfinite()
    return torch.where(there, product + bias + z.abs(), 0.0), torch.where(there, product, 0.0)


TOLERANCE = MaskedTolerance()
check = TOLERANCE.check
