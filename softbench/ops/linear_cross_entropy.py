"""Mean cross entropy of logits that are a product of hidden states and a weight, with the gradients of both.

With the logits z = x w^T, or softcap * tanh(x w^T / softcap), the loss of each row and its gradient G by z as in
`softbench.ops.cross_entropy`, and n for the number of rows whose target is not ignore_index:

    loss = sum_i loss_i / n
    dx   = G w / n
    dw   = G^T x / n

No call needs all of z at once, which is what implementations differ in. The reference computes some rows at a time.

The bounds are derived from the arithmetic. u, u_o, eta and c are those of `softbench.ops.error_terms`. Errors of the terms of a sum are
independent roundings, so they add up as a random walk: W(t) = min(5, sqrt K) sqrt(sum t^2) of K terms of sizes t, which for few terms is
the sum of the sizes. A rounding has a deviation of .58 of its size, and the largest of 10^9 normal numbers is 6.2 deviations: 3.6 sizes. A
partial sum of a random sum is within |sum| + W of its terms. With P(a b) = u c |sum a b| + W(u c a b) for the sum of K products in float32,
where c = 16 + 2 log2 K + sqrt K as in `softbench.ops.matmul`:

    z       u_o |z| + P(x w), times the slope of the softcap, whose own error `cross_entropy` has
    G       B: that of dx of `cross_entropy` for these errors of z; it has the rounding of G to the dtype of the case
    loss    (W(e_i) + u (c + 4) sum loss_i) / n for errors e_i of the loss of rows
    dx      u_o |dx| + P(G w) + W(B w) + eta
    dw      u_o |dw| + P(G x) + W(B x) + eta

So logits and their gradients may be rounded to 16 bits once each, as `torch.nn.functional.linear` and its gradient do.

`low-precision` is a second class, beside that of `cross_entropy`:

- in float32 products of TF32, W(2 * 2^-11 a b);
- parts of a sum that are rounded to 16 bits, such as dw of parts of the rows, 5 u_o |sum| + W(u_o a b); a loss in 16 bits, u_o |loss|;
- elements of G / n that float16 flushes to 0, eta sum |w| or eta sum |x|.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from types import MappingProxyType

from softbench.core.case import Case, Direction
from softbench.ops import cross_entropy
from softbench.ops.check import Declared, Worst
from softbench.ops.check_case import CheckCase, Draw, Tensors
from softbench.ops.cross_entropy import IGNORE_INDEX, LABEL_SMOOTHING, SOFTCAP, Z_LOSS, Rounded, Settings, capped
from softbench.ops.error_terms import ETA, U_OUT, U, alike, log_sum, summing
from softbench.ops.lazy import torch
from softbench.ops.matmul import TF32
from softbench.ops.operation import Operation, Pass, Preset, TensorSpec
from softbench.ops.parameters import Parameter
from softbench.ops.registry import operation
from softbench.ops.targets import draw_target
from softbench.ops.values import Change, Values

HIDDEN = Parameter("hidden", "whole", 4096, "columns of the hidden states and of the weight", least=1)
WALK = 5
SPREAD = 2.0
"""The standard deviation of logits."""
COARSE = 2**-6
"""The error of sums of products of bfloat16 numbers that are not negative, with the roundings of the factors and of the result."""
FEWEST_ROWS = 64
"""Rows whose reference is computed at a time, at least."""
SHAPES = ((1, 1, 1), (3, 7, 5), (64, 33, 257), (37, 65, 1000), (304, 16, 136))
"""M, hidden and N of the check cases. The last ones are multiples of 8, which some kernels need."""
MANY = (4104, 64, 262144)
"""M, hidden and N of a check case whose logits take gigabytes, so that implementations take parts of the rows."""
SHIFT = 100.0
"""What is added to the logits of the shifted check case: exp of them is infinite in float32, and exp of the negative ones is 0."""
GIVEN = ("x", "w", "target")
SIZES = ("M", HIDDEN.name, "N")
OPERATION = Operation(
    name="linear_cross_entropy",
    summary="mean cross entropy of the logits x @ w.T of (M, hidden) and (N, hidden), which no call stores; fused gives dx and dw too",
    tensors=MappingProxyType(
        {
            **dict.fromkeys(("x", "dx"), TensorSpec(("M", HIDDEN.name))),
            **dict.fromkeys(("w", "dw"), TensorSpec(("N", HIDDEN.name))),
            "target": TensorSpec(("M",), "int64"),
            "loss": TensorSpec((), "fp32"),
        }
    ),
    passes=MappingProxyType(
        {
            Direction.FORWARD: Pass(GIVEN, ("loss",), GIVEN, whole=True, multiply_adds=SIZES, products_alone=True),
            Direction.FUSED: Pass(GIVEN, ("loss", "dx", "dw"), GIVEN, whole=True, multiply_adds=(3, *SIZES), products_alone=True),
        }
    ),
    presets=MappingProxyType({"llama": Preset(("8192x32000", "8192x128256"), "Llama 2 7B and Llama 3 8B, 8192 tokens")}),
    parameters=(HIDDEN, IGNORE_INDEX, LABEL_SMOOTHING, Z_LOSS, SOFTCAP),
)
OPERATORS = ("matmul",)
"""What the tamper guard protects of torch for the reference, beside that of cross entropy."""


def settings(case: Case) -> Settings:
    """The values of a case's parameters; of rows, not of their mean."""
    values = operation(case.op).parameter_values
    smoothing, z_loss, cap = (float(values[parameter.name]) for parameter in (LABEL_SMOOTHING, Z_LOSS, SOFTCAP))
    return Settings(int(values[IGNORE_INDEX.name]), smoothing, z_loss, cap, mean=False)


class LinearCrossEntropy(Values):
    """Hidden states and a weight whose logits are normal, some rows four times as large, with two columns of ones.

    dx of the weight's column of ones is the sum of the gradients of the row's logits, and dw of that of the states the sum over rows.
    """

    __slots__ = ()

    def draw(self, case: Case, random: Draw) -> Tensors:
        size, ignore_index = int(operation(case.op).parameter_values[HIDDEN.name]), settings(case).ignore_index
        x, w = random.normal(case.M, size), random.normal(case.N, size).mul_(SPREAD / math.sqrt(size))
        x[3::16] *= 4
        w[:, 0] = 1
        x[:, size - 1] = 1
        target = draw_target(case, random, ignore_index)
        counted = min(int(ignore_index == 0), case.N - 1)  # the mean of no row is NaN
        return x, w, torch.where((target == ignore_index).all(), counted, target)

    def reference(self, case: Case, *inputs: torch.Tensor) -> Tensors:
        x, w, target = inputs
        given, total, found = settings(case), x.new_zeros(()), _Gradients()
        n = given.counted(target)
        for rows in chunks(case):
            z = capped(x[rows] @ w.T, given.cap)
            lse = torch.logsumexp(z, dim=-1)
            total = total + cross_entropy.loss(z, target[rows], lse, given).sum()
            if case.direction is Direction.FUSED:
                found.add(cross_entropy.gradient(z, target[rows], lse, 1 / n, given), x[rows], w)
        loss = total / n
        return (loss,) if case.direction is Direction.FORWARD else (loss, *found.both)

    def bound(self, case: Case, *inputs: torch.Tensor) -> Sequence[Declared]:
        exact, tight = self._compared(case, *inputs, loose=False)
        loose = cache(lambda: self._compared(case, *inputs, loose=True)[1])
        of_each = ((lambda place=place: loose()[place][None]) for place in range(len(exact)))
        pairs = zip(exact, tight, of_each, strict=True)
        return [Declared(one[None], bound[None], bound[None], low_precision=later) for one, bound, later in pairs]

    def _compared(self, case: Case, x: torch.Tensor, w: torch.Tensor, target: torch.Tensor, *, loose: bool) -> tuple[Tensors, Tensors]:
        """The outputs and their bounds. Sizes of errors have no digits to lose, so their products have few (`_of_squares`)."""
        given, sums = settings(case), _Sums.of(case, loose=loose)
        n, u_out, eta = given.counted(target), sums.u_out, ETA[case.dtype]
        losses, errors = [], []
        found, of_dx, of_dw = _Gradients(), [], torch.zeros(w.shape, device=w.device)
        squares = _squares(w)
        for rows in chunks(case):
            part = replace(case, M=rows.stop - rows.start)
            exact = x[rows] @ w.T
            z = capped(exact, given.cap)
            error = u_out * exact.abs() + sums.product(exact, _of_squares(_squares(x[rows]), squares.T))
            own = cross_entropy.of_cap(z, case, given, loose=loose)
            error = error if own is None else error * (1 - (z / given.cap).square()) + own
            one = Rounded(part, given, loose, z, target[rows], log_sum(z), error)
            losses.append(cross_entropy.loss(z, target[rows], one.of_z.lse, given))
            errors.append(cross_entropy.of_loss(one))
            if case.direction is Direction.FORWARD:
                continue
            extra = torch.expm1(one.of_z.at_maximum) if loose else 0.0
            each = (1 / n).double().expand(part.M)
            g = cross_entropy.gradient(z, target[rows], one.of_z.lse, 1 / n, given)
            b = cross_entropy.of_gradient(one, one.of_z.lse, each, one.of_z.log_error + extra, one.of_z.error, one.carried)
            found.add(g, x[rows], w)
            of_dx.append(_walk(case.N, _of_squares(_squares(sums.terms(b, g, case.N)), squares)))
            of_dw += _of_squares(_squares(sums.terms(b, g, case.M)).T, _squares(x[rows]))
        of_rows = torch.cat(losses)[None].abs()
        c = summing(of_rows, alike(of_rows, whole=False))[0, 0]
        loss = torch.cat(losses).sum() / n
        of_loss = (_walk(case.M, torch.cat(errors).square().sum()) + U * (c + 4) * of_rows.sum()) / n + loose * u_out * loss
        if case.direction is Direction.FORWARD:
            return (loss,), (of_loss,)
        dx, dw = found.both
        flushed = [eta * (1 + loose * one.abs().sum(dim=0)) for one in (w, x)] if case.dtype == "fp16" else [eta, eta]
        bound_x = torch.cat(of_dx).add_(dx.abs(), alpha=sums.rounded(case.N)).add_(flushed[0])
        # In float32 and in place: a weight may take a gigabyte, and each of its temporaries in float64 four.
        bound_w = _walk(case.M, of_dw).add_(dw.float().abs_(), alpha=sums.rounded(case.M)).add_(flushed[1])
        return (loss, dx, dw), (of_loss, bound_x, bound_w)

    def low_precision(self, case: Case, *inputs: torch.Tensor) -> Tensors:
        return self._compared(case, *inputs, loose=True)[1]

    def rounding(self, case: Case, worst: Worst) -> str:
        return "rounds parts of sums or the loss to 16 bits" if U_OUT[case.dtype] else "rounds factors to TF32, or lse at the maximum"

    def masks_rows(self, case: Case) -> bool:
        return False

    def structured_rows(self, case: Case) -> Mapping[str, Change]:
        return {}

    def check_cases(self, op: str) -> list[CheckCase]:
        """A draw of each shape, another of the last one, and without a softcap rows of the third that are shifted up and down in turn."""
        given = dict(operation(op).parameter_values)
        found = []
        draws = [("normal", shape, self.draw) for shape in SHAPES]
        draws.append(("other values", SHAPES[-1], self.draw))  # right after the same pass: a result of the call before is wrong
        draws.append(("several parts", MANY, self.draw))
        if not given[SOFTCAP.name]:
            draws.append(("shifted", SHAPES[2], self._shifted))
        for name, (M, size, N), draw in draws:
            text = replace(operation(op), parameter_values=given | {HIDDEN.name: size}).text
            for direction in OPERATION.directions[:: -1 if name == "other values" else 1]:
                case = Case(M, N, "fp32", direction, "cpu", text)
                one = CheckCase(f"{name} {M}x{size}x{N}", direction, partial(draw, case), case=case)
                found.append(replace(one, gpu_only="its logits take gigabytes", free_bytes=24 * M * N) if (M, size, N) == MANY else one)
        return found

    def _shifted(self, case: Case, random: Draw) -> Tensors:
        """The first column of the weight is ones, so that of the states is added to all logits of a row."""
        x, w, target = self.draw(case, random)
        x[0::2, 0], x[1::2, 0] = SHIFT, -SHIFT
        return x, w, target


class _Gradients:
    """dx and dw of rows that come in parts."""

    def __init__(self) -> None:
        self._dx: list[torch.Tensor] = []
        self._dw: torch.Tensor | None = None

    def add(self, g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> None:
        """`g` is the gradient of the logits of some rows."""
        self._dx.append(g @ w)
        self._dw = g.T @ x if self._dw is None else self._dw.addmm_(g.T, x)

    @property
    def both(self) -> Tensors:
        assert self._dw is not None
        return torch.cat(self._dx), self._dw


@dataclass(frozen=True, slots=True)
class _Sums:
    """The errors of sums of one of the two classes."""

    u_out: float
    parts: float
    """The rounding of partial sums, or 0."""
    factors: float
    """The rounding of factors, or 0."""
    hidden: int

    @classmethod
    def of(cls, case: Case, *, loose: bool) -> _Sums:
        u_out = U_OUT[case.dtype]
        return cls(u_out, loose * u_out, 0.0 if u_out else loose * 2 * TF32, int(operation(case.op).parameter_values[HIDDEN.name]))

    def product(self, exact: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
        """The error of logits; `squares` are the sums of the squares of their terms."""
        c = U * _roundings(self.hidden)
        return c * exact.abs() + (c + self.parts + self.factors) * _walk(self.hidden, squares)

    def terms(self, error: torch.Tensor, g: torch.Tensor, terms: int) -> torch.Tensor:
        """The error of each factor g of a sum of so many products, with what the sum and the other factors add."""
        return error + (U * _roundings(terms) + self.parts + self.factors) * g.abs()

    def rounded(self, terms: int) -> float:
        """The roundings of a sum of so many products that are as large as it is, over its size."""
        return self.u_out + U * _roundings(terms) + WALK * self.parts


def chunks(case: Case) -> Iterator[slice]:
    """Rows whose reference is computed at a time: a temporary of their logits takes a tenth of the weight."""
    rows = max(FEWEST_ROWS, int(operation(case.op).parameter_values[HIDDEN.name]) // 32 * 3)  # of 4096 columns whole tiles of a product
    for start in range(0, case.M, rows):
        yield slice(start, min(start + rows, case.M))


def _walk(terms: int, squares: torch.Tensor) -> torch.Tensor:
    """W, of the sum of the squares of the errors of so many terms, in the dtype and the memory of the squares."""
    return squares.sqrt_().mul_(min(WALK, math.sqrt(terms)))


def _squares(sizes: torch.Tensor) -> torch.Tensor:
    """The squares of sizes of errors: on a GPU in bfloat16, whose products take a fiftieth of the time of float32's, else in float32."""
    return sizes.float().square_().to(torch.bfloat16 if sizes.is_cuda else torch.float32)


def _of_squares(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The product of two matrices of `_squares`, in float32, and at least as large as the exact one."""
    return (one @ other).float().mul_(1 + COARSE)


def _roundings(terms: int) -> float:
    """c."""
    return 16 + 2 * math.log2(terms) + math.sqrt(terms)


NUMERICS = LinearCrossEntropy()
