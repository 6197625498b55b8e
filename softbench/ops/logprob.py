"""The log-probability of a target and the entropy of each row, with their gradient.

With y = x - lse, p = exp(y) and the target t:

    logprob  = y_t
    entropy  = -sum_j p_j y_j
    dx_i     = dlogprob ([i = t] - p_i) - dentropy p_i (y_i + entropy)

An element of -inf has p = 0 and adds nothing to the entropy or the gradient.

The bounds are elementwise bounds on the error against float64, derived from the arithmetic.
u, u_o, eta, c and L are those of `softbench.ops.error_terms`. F(L) is the error of L there, H the entropy,
Q = sum_j p_j y_j^2, and d_j = max(x) - x_j:

    logprob   F(L) + 4 u |y_t| + eta
    entropy   F(L) (1 + H) + u ((c' + 8) H + 4 Q) + eta
    dx        u_o |dx_i| + ((8 + 4 |y_i|) u p_i + 2^-126) (|a| + |b| (|y_i| + |H|)) + 4 u T_i + 2 u |dx_i| + eta

logprob: (x_t - max) - L is rounded as the output of log-softmax is.

entropy: H is L + sum_j p_j d_j, or the sum of p_j |y_j|. No term of either is negative, so nothing cancels. p_j is off by F(L) + 4 u |y_j|
of itself, and so is y_j in absolute terms. This gives F(L) H + 4 u Q and F(L) + 4 u H. The sum has N terms, with a c' of its own.

dx: a is dlogprob and b is dentropy. T_i = |a| ([i = t] + p_i) + |b| p_i (|y_i| + |H|) is the size of the terms, which cancel. p_i has the
relative error (8 + 4 |y_i|) u. A p below 2^-126 may be 0: the exponential of a GPU has no smaller numbers. Then all of dx is lost, and
that is more than 2^-126, because |y_i| is at least 87.

`low-precision` is a second class, of four kinds of kernels:

    logprob   A + [16-bit: u_o (1 + L + 2 |y_t|)], with A = 7 u |max|
    entropy   A + (F(L) + u (c'' + 8)) sum_j p_j |x_j| + [16-bit: u_o ((1 + L) (1 + H) + 4 H + Q)]
    dx        (exp(2 u |lse|) - 1) W_i + 8 u |b| p_i |lse| + [16-bit: u_o ((2 |y_i| + 3) W_i + 2 T_i)]

W_i is |a| p_i + |b| p_i (|y_i| + |H|).

- x_t - lse with an lse that was rounded at the maximum: A.
- H = lse - sum_j p_j x_j. Both are of the size of the maximum, so they cancel in rows that are shifted. c'' is that of the sum.
- The gradient as p (E - x) with E = lse - H, or with one fused multiply-add in the exponent.
- Log-probabilities in 16 bits, and results that are stored in 16 bits, as torch has them without `.float()`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from softbench.core.case import Case, Direction
from softbench.ops.check import Worst, row_chunks
from softbench.ops.check_case import Draw, Tensors
from softbench.ops.error_terms import ETA, SMALLEST, U_OUT, LogSum, U, alike, log_sum, summing, weighted
from softbench.ops.lazy import numpy, torch
from softbench.ops.operation import Operation, Pass, TensorSpec
from softbench.ops.rowwise import PRESETS
from softbench.ops.second_opinion import FLUSHED, Again, Array, moved, numpy_log_sum
from softbench.ops.targets import TargetValues, draw_target

ROWS, EACH = TensorSpec(("M", "N")), TensorSpec(("M",), "fp32")
OF_BACKWARD = ("x", "target", "lse", "entropy", "dlogprob", "dentropy")
OPERATION = Operation(
    name="logprob",
    summary="log_softmax(x)[target] and the entropy of each row, and their gradient",
    tensors=MappingProxyType(
        {
            "x": ROWS,
            "target": TensorSpec(("M",), "int64"),
            "logprob": EACH,
            "entropy": EACH,
            "lse": EACH,
            "dlogprob": EACH,
            "dentropy": EACH,
            "dx": ROWS,
        }
    ),
    passes=MappingProxyType(
        {
            Direction.FORWARD: Pass(("x", "target"), ("logprob", "entropy"), ("x", "target")),
            Direction.BACKWARD: Pass(OF_BACKWARD, ("dx",), OF_BACKWARD),
        }
    ),
    presets=MappingProxyType({"vocabularies": PRESETS["vocabularies"]}),
)
OPERATORS = ("logsumexp", "exp", "Tensor.gather", "Tensor.scatter_add_")
"""What the tamper guard protects of torch for the reference."""
UPSTREAM: Mapping[str, Callable[..., object]] = {
    "with a dlogprob of 0": lambda x, target, lse, entropy, dlogprob, dentropy, places: dlogprob.zero_(),
    "with a dentropy of 0": lambda x, target, lse, entropy, dlogprob, dentropy, places: dentropy.zero_(),
    "with a dentropy of -100": lambda x, target, lse, entropy, dlogprob, dentropy, places: dentropy.fill_(-100),
}


def of_target(rows: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The element of each row at its target."""
    return rows.gather(1, target[:, None])[:, 0]


def forward(x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """logprob and entropy."""
    y = x - torch.logsumexp(x, dim=-1, keepdim=True)
    return of_target(y, target), entropy_of(y)


def entropy_of(y: torch.Tensor) -> torch.Tensor:
    """The entropy of rows of log-probabilities."""
    return weighted(torch.exp(y), -y)


def backward(
    x: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, entropy: torch.Tensor, dlogprob: torch.Tensor, dentropy: torch.Tensor
) -> torch.Tensor:
    """dx; lse and entropy are those of the row, as the forward rounded them."""
    y = x - lse[:, None]
    p = torch.exp(y)
    dx = -p * dlogprob[:, None] - torch.where(p == 0, 0.0, p * (y + entropy[:, None])) * dentropy[:, None]
    return dx.scatter_add_(1, target[:, None], dlogprob[:, None])


class LogProb(TargetValues):
    """logprob and entropy of each row, and the gradient of both."""

    __slots__ = ()

    def ignore_index(self, case: Case) -> None:
        return None

    def draw(self, case: Case, random: Draw) -> Tensors:
        x, target = random.normal(case.M, case.N), draw_target(case, random, None)
        if case.direction is Direction.FORWARD:
            return x, target
        dlogprob, dentropy = (torch.randn(case.M, generator=random.generator, device=random.device) for _ in range(2))
        given = x, target, torch.empty_like(dlogprob), torch.empty_like(dlogprob), dlogprob, dentropy
        self.derived(case, given)
        return given

    def derived(self, case: Case, given: Tensors) -> None:
        if case.direction is Direction.BACKWARD:
            for rows in row_chunks(case):
                x = given[0].data[rows].double()
                lse = torch.logsumexp(x, dim=-1)
                given[2].data[rows], given[3].data[rows] = lse.float(), entropy_of(x - lse[:, None]).float()

    def upstream(self, case: Case) -> Mapping[str, Callable[..., object]]:
        return UPSTREAM if case.direction is Direction.BACKWARD else {}

    def reference(self, case: Case, *inputs: torch.Tensor) -> Tensors:
        return forward(*inputs) if case.direction is Direction.FORWARD else (backward(*inputs),)

    def bound(self, case: Case, *inputs: torch.Tensor) -> Tensors:
        return bounds(case, inputs, loose=False)

    def low_precision(self, case: Case, *inputs: torch.Tensor) -> Tensors:
        return bounds(case, inputs, loose=True)

    def rounding(self, case: Case, worst: Worst) -> str:
        stored = ", or rounds terms to 16 bits" if U_OUT[case.dtype] else ""
        return f"computes {worst.output} from sums of the size of the row's maximum, which cancel{stored}"

    def again(self, case: Case, *inputs: Array) -> tuple[Again, ...]:
        x, target, *rest = inputs
        places = target.astype(numpy.int64)[:, None]
        with numpy.errstate(all="ignore"):
            if case.direction is Direction.BACKWARD:
                return (_numpy_gradient(x, places, *rest),)
            lse, high = numpy_log_sum(x)
            y = x - lse[:, None]
            p = numpy.exp(y)
            logprob = numpy.take_along_axis(y, places, 1)[:, 0]
            entropy, square, mean = (numpy.where(p == 0, 0.0, p * of).sum(axis=-1) for of in (-y, y**2, numpy.abs(x)))
            size = 1 + numpy.abs(lse) + numpy.abs(high)
            return Again(logprob, size + numpy.abs(logprob), FLUSHED), Again(entropy, (size + mean) * (1 + entropy) + square, FLUSHED)


def bounds(case: Case, inputs: Tensors, *, loose: bool) -> Tensors:
    """The bounds of the outputs of a pass; the floating inputs are float64."""
    x, target, *rest = inputs
    if case.direction is Direction.BACKWARD:
        lse, entropy, dlogprob, dentropy = rest
        return (_of_gradient(case, x, target, lse, entropy, dlogprob, dentropy, loose=loose),)
    return _of_results(case, x, target, log_sum(x), loose=loose)


def _of_results(case: Case, x: torch.Tensor, target: torch.Tensor, of_x: LogSum, *, loose: bool) -> Tensors:
    """The bounds on logprob and entropy, (rows,)."""
    below = of_x.lse[:, None] - x
    sizes = torch.where(of_x.p == 0, 0.0, of_x.p * below)
    entropy, square = sizes.sum(dim=-1), weighted(of_x.p, below.square())
    apart = of_target(below, target)
    of_logprob = of_x.log_error + 4 * U * apart
    of_sum = summing(sizes, alike(sizes))[:, 0]
    of_entropy = of_x.log_error * (1 + entropy) + U * ((of_sum + 8) * entropy + 4 * square)
    if loose:
        u_out, log = U_OUT[case.dtype], of_x.lse - x.amax(dim=-1)
        terms = torch.where(of_x.p == 0, 0.0, of_x.p * x.abs())
        size = terms.sum(dim=-1)
        of_logprob = of_logprob + of_x.at_maximum + u_out * (1 + log + 2 * apart)
        cancelled = (of_x.log_error + U * (summing(terms, alike(terms))[:, 0] + 8)) * size
        rounded = u_out * ((1 + log) * (1 + entropy) + 4 * entropy + square)
        of_entropy = of_entropy + of_x.at_maximum + cancelled + rounded
    return of_logprob + ETA["fp32"], of_entropy + ETA["fp32"]


def _of_gradient(
    case: Case,
    x: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor,
    entropy: torch.Tensor,
    dlogprob: torch.Tensor,
    dentropy: torch.Tensor,
    *,
    loose: bool,
) -> torch.Tensor:
    """The bound on dx, (rows, N)."""
    u_out, a, b = U_OUT[case.dtype], dlogprob.abs()[:, None], dentropy.abs()[:, None]
    y = x - lse[:, None]
    p = torch.exp(y)
    far = torch.where(p == 0, 0.0, y.abs())
    factor = a + b * (far + entropy.abs()[:, None])
    weight = p * factor
    terms = weight.scatter_add(1, target[:, None], a)
    bound = U * (8 + 4 * far) * weight + 4 * U * terms + SMALLEST * factor
    if loose:
        bound = bound + torch.expm1(2 * U * lse.abs())[:, None] * weight + 8 * U * b * p * lse.abs()[:, None]
        bound = bound + u_out * ((2 * far + 3) * weight + 2 * terms) + ETA[case.dtype]
    exact = backward(x, target, lse, entropy, dlogprob, dentropy).abs()
    return bound + (u_out + 2 * U) * exact + ETA[case.dtype]


def _numpy_gradient(
    x: Array, places: numpy.typing.NDArray[numpy.int64], lse: Array, entropy: Array, dlogprob: Array, dentropy: Array
) -> Again:
    y = x - lse[:, None]
    p, a, b = numpy.exp(y), dlogprob[:, None], dentropy[:, None]
    far = numpy.where(p == 0, 0.0, numpy.abs(y))
    hot = numpy.zeros_like(x)
    numpy.put_along_axis(hot, places, 1.0, 1)
    dx = a * (hot - p) - b * numpy.where(p == 0, 0.0, p * (y + entropy[:, None]))
    terms = numpy.abs(a) * (hot + p) + numpy.abs(b) * p * (far + numpy.abs(entropy)[:, None] + moved(numpy.abs(lse))[:, None])
    steep = 1 + far + moved(numpy.abs(lse))[:, None]
    largest = max(float(numpy.abs(given).max(initial=0.0)) for given in (dlogprob, dentropy))
    return Again(dx, terms * steep, FLUSHED * (1 + 4 * largest))


NUMERICS = LogProb()
