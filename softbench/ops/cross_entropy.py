"""Cross entropy of logits and a target in each row, or its mean over rows, with its gradient.

With z = x, or softcap * tanh(x / softcap), lse = log(sum_j exp(z_j)), p = exp(z - lse), the target t, and e = label_smoothing:

    loss = (1 - e) (lse - z_t) + e (lse - mean_j z_j) + z_loss lse^2
    dx_i = dloss ((1 + 2 z_loss lse) p_i - (1 - e) [i = t] - e / N) (1 - (z_i / softcap)^2)

Without softcap the last factor is 1. Where the target is ignore_index, loss and dx are 0, and lse is that of the row. Label smoothing is
that of `torch.nn.functional.cross_entropy`, and the z-loss that of PaLM (https://arxiv.org/abs/2204.02311, section 5).

The bounds are elementwise bounds on the error against float64, derived from the arithmetic.
u, u_o, eta, c and L are those of `softbench.ops.error_terms`. F(lse) and F(L) are the errors of lse and of L there. With
y_i = z_i - lse and B = lse - mean(z):

    lse       F(lse) + E + eta
    loss      (1 - e) (F(L) + 4 u |y_t|) + e (F(L) + u (c' + 4) B) + z_loss (2 |lse| F(lse) + 4 u lse^2) + 4 u S + C + eta
    dx        u_o |dx_i| + |g| s_i (K p_i R_i + 2 z_loss p_i F(lse) + 4 u T_i + K p_i (e_i + E)) + |g T_i| q + 2 u |dx_i| + eta

loss: (max - z_t) + L is rounded at d_t and at y_t, as the output of log-softmax is. B is summed over terms d_j + L, so it has a c' of its
own. S is the sum of the sizes of all parts, each of which is rounded by its product and by its sum.

dx: g is dloss, K = |1 + 2 z_loss lse|, s_i the slope of the softcap, and T_i = K p_i + (1 - e) [i = t] + e / N the size of the terms, which
cancel. R_i is the relative error of p_i, u (8 + 4 |y_i| + e N / 16) where lse is given. e N / 16 is for autograd. It sums the gradient of
all log-probabilities, N equal terms e / N, in 16 lanes on a CPU. In `fused` the backend computes lse: R_i has F(L) more. Where lse is
given, the middle term has 3 u |lse| for F(lse). A p below 2^-126 may be 0.

softcap: e_i = 6 u |z_i| is the error of z_i. Two roundings are of x / softcap, which tanh does not grow, and four of tanh and of the
product. E = sum_j p_j e_j is what it does to lse, and C = (1 - e) (E + e_t) + e (E + mean(e_j)) to the loss. The slope 1 - tanh^2 is
rounded at 1 and has twice the error of tanh: q is 9 u. Without softcap e_i and q are 0.

`low-precision` is a second class, of six kinds of kernels:

    lse       nothing more: lse is a float32. With softcap e_i is larger
    loss      (1 - e) A + e (A + u c'' mean|z|) + [16-bit: u_o (1 + L + 2 S)], with A = 7 u |max|
    dx        |g| s_i K p_i (exp(A') - 1) + [16-bit: u_o |g| (K p_i (2 |y_i| + 3) + 2 T_i)] + eta

- lse - z_t rounds lse at the maximum: A. Such kernels are exact for logits around zero, and are off where a row is shifted.
- exp(z - lse) with a rounded lse, or one fused multiply-add of z log2(e) - lse log2(e): A' = 7 u |max| in `fused`, 2 u |lse| in `backward`.
- The mean of z, rounded at the size of z instead of at that of max - z. c'' is that of the sum of |z|.
- A loss that is stored in 16 bits, as Liger's is, and log-probabilities y in 16 bits, as torch's are without `.float()`. On the CPU torch
  also stores the sum and its logarithm in 16 bits, which is u_o (1 + L), and L is at most |y_i|.
- Terms of dx that are rounded to 16 bits before they are added.
- softcap as 1 - 2 / (exp(2 x) + 1), which is rounded at 1 and not at tanh, or by the approximate instruction in 16 bits:
  e_i = 6 u |z_i| + 6 u softcap + [16-bit: u_o |z_i|]. The slope then has q = 24 u, and u_o in 16 bits.

An lse that is rounded to 16 bits is wrong in each class.

With the reduction `mean` the loss is the sum over all rows by the number of rows that are not ignored, and dloss of each row is that of the
mean by this number. Its bound is the mean of the rows' bounds, and u (c + 4) of the mean of their sizes; dx has 2 u |dx_i| more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from softbench.core.case import Case, Direction
from softbench.ops.check import Worst, row_chunks
from softbench.ops.check_case import CheckCase, Draw, Tensors
from softbench.ops.error_terms import ETA, SMALLEST, U_OUT, LogSum, U, alike, log_sum, summing, weighted
from softbench.ops.lazy import numpy, torch
from softbench.ops.operation import Operation, Pass, TensorSpec
from softbench.ops.parameters import Parameter
from softbench.ops.registry import is_whole, operation
from softbench.ops.rowwise import PRESETS
from softbench.ops.second_opinion import FLUSHED, Again, Array, moved, numpy_log_sum
from softbench.ops.targets import UNDEFINED, TargetValues, draw_target

IGNORE_INDEX = Parameter("ignore_index", "whole", -100, "the target of ignored rows, whose loss and gradient are 0", least=-1e6, most=1e6)
LABEL_SMOOTHING = Parameter("label_smoothing", "number", 0.0, "the share of the target that all columns get alike", least=0, most=0.999)
Z_LOSS = Parameter("z_loss", "number", 0.0, "adds z_loss * lse^2 to the loss, as PaLM does", least=0, most=0.1)
SOFTCAP = Parameter("softcap", "number", 0.0, "logits are softcap * tanh(x / softcap); 0: they are x", least=0, most=1e4)
REDUCTION = Parameter("reduction", "choice", "none", "the loss of each row, or its mean over rows that count", choices=("none", "mean"))

OF_ROWS, OF_MEAN = (REDUCTION.name, "none"), (REDUCTION.name, "mean")
EACH, NUMBER = TensorSpec(("M",), "fp32", OF_ROWS), TensorSpec((), "fp32", OF_MEAN)
GIVEN = ("x", "target", "lse", "dloss", "dmean")
OPERATION = Operation(
    name="cross_entropy",
    summary="log(sum(exp(x))) - x[target] of each row, and its gradient; fused gives both",
    any_dim=True,
    tensors=MappingProxyType(
        {
            "x": TensorSpec(("M", "N")),
            "target": TensorSpec(("M",), "int64"),
            "loss": EACH,
            "mean": NUMBER,
            "lse": TensorSpec(("M",), "fp32"),
            "dloss": EACH,
            "dmean": NUMBER,
            "dx": TensorSpec(("M", "N")),
        }
    ),
    passes=MappingProxyType(
        {
            Direction.FORWARD: Pass(("x", "target"), ("loss", "mean", "lse"), ("x", "target"), whole=OF_MEAN),
            Direction.BACKWARD: Pass(GIVEN, ("dx",), GIVEN, whole=OF_MEAN),
            Direction.FUSED: Pass(("x", "target"), ("loss", "mean", "dx"), ("x", "target"), whole=OF_MEAN),
        }
    ),
    presets=MappingProxyType({name: PRESETS[name] for name in ("vocabularies", "segmentation")}),
    parameters=(IGNORE_INDEX, LABEL_SMOOTHING, Z_LOSS, SOFTCAP, REDUCTION),
)
OPERATORS = ("logsumexp", "tanh", "exp", "Tensor.gather", "Tensor.mean", "Tensor.sum", "Tensor.scatter_add_")
"""What the tamper guard protects of torch for the reference."""
LANES = 16
"""In how many parts a CPU sums a row, at least."""
DLOSS: Mapping[str, Callable[..., object]] = {
    "with a dloss of 0": lambda x, target, lse, dloss, places: dloss.zero_(),
    "with a dloss of 1e-3": lambda x, target, lse, dloss, places: dloss.fill_(1e-3),
    "with a dloss of -100": lambda x, target, lse, dloss, places: dloss.fill_(-100),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The parameters of a case."""

    ignore_index: int
    smoothing: float
    z_loss: float
    cap: float
    """0 without softcap."""
    mean: bool
    """True for the mean over rows."""

    def reduced(self, of_rows: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The losses of rows, or their mean."""
        return of_rows.sum() / self.counted(target) if self.mean else of_rows

    def of_row(self, dloss: torch.Tensor | float, target: torch.Tensor) -> torch.Tensor:
        """The gradient of each row's loss, (rows,)."""
        given = torch.as_tensor(dloss, dtype=torch.float64, device=target.device)
        return (given / self.counted(target) if self.mean else given).expand(target.shape)

    def counted(self, target: torch.Tensor) -> torch.Tensor:
        """How many rows are not ignored."""
        return (target != self.ignore_index).sum()


def settings(case: Case) -> Settings:
    """The values of a case's parameters."""
    values = operation(case.op).parameter_values
    smoothing, z_loss, cap = (float(values[parameter.name]) for parameter in (LABEL_SMOOTHING, Z_LOSS, SOFTCAP))
    return Settings(int(values[IGNORE_INDEX.name]), smoothing, z_loss, cap, values[REDUCTION.name] == "mean")


def capped(x: torch.Tensor, cap: float) -> torch.Tensor:
    """The logits z of x."""
    return cap * torch.tanh(x / cap) if cap else x


def logsumexp(x: torch.Tensor, cap: float) -> torch.Tensor:
    """lse of each row, in the dtype of x; -inf for a row of -inf."""
    return torch.logsumexp(capped(x, cap), dim=-1)


def of_target(rows: torch.Tensor, target: torch.Tensor, given: Settings) -> torch.Tensor:
    """The element of each row at its target, and any element where the target is ignored."""
    return rows.gather(1, torch.where(target == given.ignore_index, 0, target)[:, None])[:, 0]


def loss(z: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, given: Settings) -> torch.Tensor:
    """The loss of each row of logits z."""
    found = (1 - given.smoothing) * (lse - of_target(z, target, given))
    if given.smoothing:
        found = found + given.smoothing * (lse - z.mean(dim=-1))
    if given.z_loss:
        found = found + given.z_loss * lse.square()
    return torch.where(target == given.ignore_index, 0.0, found)


def gradient(z: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, dloss: torch.Tensor | float, given: Settings) -> torch.Tensor:
    """dx of logits z, whose loss has the gradient dloss."""
    ignored = target == given.ignore_index
    dz = torch.exp(z - lse[:, None]) * (1 + 2 * given.z_loss * lse[:, None]) - given.smoothing / z.shape[1]
    ones = torch.full_like(lse, given.smoothing - 1)[:, None]
    dz.scatter_add_(1, torch.where(ignored, 0, target)[:, None], ones)
    if given.cap:
        dz *= 1 - (z / given.cap).square()
    scale = torch.where(ignored, 0.0, torch.as_tensor(dloss, dtype=lse.dtype, device=lse.device))
    return torch.where(ignored[:, None], 0.0, dz * scale[:, None])


class CrossEntropy(TargetValues):
    """Loss and lse of each row, and the gradient of the loss."""

    __slots__ = ()

    def ignore_index(self, case: Case) -> int:
        return settings(case).ignore_index

    def draw(self, case: Case, random: Draw) -> Tensors:
        x, target = random.normal(case.M, case.N), draw_target(case, random, self.ignore_index(case))
        mean = settings(case).mean
        if mean:  # the mean of no row is NaN
            counted = min(int(self.ignore_index(case) == 0), case.N - 1)
            target = torch.where((target == self.ignore_index(case)).all(), counted, target)
        if case.direction is not Direction.BACKWARD:
            return x, target
        dloss = torch.randn(() if mean else case.M, generator=random.generator, device=random.device)
        given = x, target, torch.empty(case.M, device=random.device), dloss
        self.derived(case, given)
        return given

    def derived(self, case: Case, given: Tensors) -> None:
        if case.direction is Direction.BACKWARD:
            for rows in [slice(None)] if is_whole(case) else row_chunks(case):
                given[2].data[rows] = logsumexp(given[0].data[rows].double(), settings(case).cap).float()

    def upstream(self, case: Case) -> Mapping[str, Callable[..., object]]:
        return DLOSS if case.direction is Direction.BACKWARD and not is_whole(case) else {}

    def structured_rows(self, case: Case) -> Mapping[str, Callable[..., object]]:
        """Of a mean no row is NaN or infinite, as the mean would be, and none is ignored but those that are drawn so."""
        found = super().structured_rows(case)
        left_out = (*UNDEFINED, "with -inf at the target") if is_whole(case) else ()
        return {name: change for name, change in found.items() if name not in left_out and not (left_out and "ignored" in name)}

    def special_cases(self, op: str, direction: Direction) -> Iterator[CheckCase]:
        return iter(()) if operation(op).passes[direction].whole else super().special_cases(op, direction)

    def reference(self, case: Case, *inputs: torch.Tensor) -> Tensors:
        x, target, *rest = inputs
        given = settings(case)
        z = capped(x, given.cap)
        if case.direction is Direction.BACKWARD:
            lse, dloss = rest
            return (gradient(z, target, lse, given.of_row(dloss, target), given),)
        lse = torch.logsumexp(z, dim=-1)
        found = given.reduced(loss(z, target, lse, given), target)
        return found, lse if case.direction is Direction.FORWARD else gradient(z, target, lse, given.of_row(1.0, target), given)

    def bound(self, case: Case, *inputs: torch.Tensor) -> Tensors:
        return bounds(case, inputs, loose=False)

    def low_precision(self, case: Case, *inputs: torch.Tensor) -> Tensors:
        return bounds(case, inputs, loose=True)

    def rounding(self, case: Case, worst: Worst) -> str:
        stored = ", or rounds terms to 16 bits" if U_OUT[case.dtype] else ""
        return f"computes {worst.output} from an lse that is rounded at the maximum of the row{stored}"

    def again(self, case: Case, *inputs: Array) -> tuple[Again, ...]:
        x, target, *rest = inputs
        given = settings(case)
        with numpy.errstate(all="ignore"):
            z = given.cap * numpy.tanh(x / given.cap) if given.cap else x
            if case.direction is Direction.BACKWARD:
                return (_numpy_gradient(z, target, rest[0], rest[1], given),)
            lse, high = numpy_log_sum(z)
            loss = _numpy_loss(z, target, lse, high, given)
            if case.direction is Direction.FORWARD:
                return loss, Again(lse, 1 + numpy.abs(lse) + numpy.abs(high), FLUSHED)
            return loss, _numpy_gradient(z, target, lse, numpy.ones_like(lse), given)


@dataclass(frozen=True, slots=True)
class Rounded:
    """Rows of a case, what is derived from them, and one of the two classes."""

    case: Case
    given: Settings
    loose: bool
    z: torch.Tensor
    target: torch.Tensor
    of_z: LogSum
    z_error: torch.Tensor | None
    """e_i, (rows, N); None without softcap."""

    @property
    def u_out(self) -> float:
        """u_o of the case's dtype."""
        return U_OUT[self.case.dtype]

    @property
    def carried(self) -> torch.Tensor:
        """E, (rows,)."""
        return torch.zeros_like(self.of_z.lse) if self.z_error is None else weighted(self.of_z.p, self.z_error)

    def at_target(self, rows: torch.Tensor) -> torch.Tensor:
        """Its element at the target, (rows,)."""
        return of_target(rows, self.target, self.given)

    def counted(self, bound: torch.Tensor) -> torch.Tensor:
        """The bound, or only eta in ignored rows, whose results are exact zeros."""
        ignored = (self.target == self.given.ignore_index).view(-1, *[1] * (bound.dim() - 1))
        return torch.where(ignored, 0.0, bound) + ETA["fp32" if bound.dim() == 1 else self.case.dtype]


def bounds(case: Case, inputs: Tensors, *, loose: bool) -> Tensors:
    """The bounds of the outputs of a pass; the floating inputs are float64."""
    x, target, *rest = inputs
    given = settings(case)
    z = capped(x, given.cap)
    one = Rounded(case, given, loose, z, target, log_sum(z), of_cap(z, case, given, loose=loose))
    if case.direction is Direction.FORWARD:
        return of_loss(one), one.of_z.error + one.carried + ETA["fp32"]
    if case.direction is Direction.FUSED:
        extra = torch.expm1(one.of_z.at_maximum) if loose else 0.0
        ones = given.of_row(1.0, target)
        return of_loss(one), of_gradient(one, one.of_z.lse, ones, one.of_z.log_error + extra, one.of_z.error, one.carried)
    lse, dloss = rest
    extra = torch.expm1(2 * U * lse.abs()) if loose else torch.zeros_like(lse)
    return (of_gradient(one, lse, given.of_row(dloss, target), extra, 3 * U * lse.abs(), torch.zeros_like(lse)),)


def of_cap(z: torch.Tensor, case: Case, given: Settings, *, loose: bool) -> torch.Tensor | None:
    """e_i."""
    if not given.cap:
        return None
    return (6 * U + U_OUT[case.dtype]) * z.abs() + 6 * U * given.cap if loose else 6 * U * z.abs()


def of_loss(one: Rounded) -> torch.Tensor:
    """The bound on the loss, (rows,)."""
    given, of_z, z, e = one.given, one.of_z, one.z, one.given.smoothing
    lse, apart = of_z.lse, of_z.lse - one.at_target(z)
    bound, size = of_z.log_error + 4 * U * apart, (1 - e) * apart
    bound = (1 - e) * bound
    if e:
        below = lse[:, None] - z
        mean = below.mean(dim=-1)
        size = size + e * mean
        bound = bound + e * (of_z.log_error + U * (summing(below, alike(below))[:, 0] + 4) * mean)
        if one.loose:
            bound = bound + e * U * summing(z.abs(), alike(z.abs()))[:, 0] * z.abs().mean(dim=-1)
    if given.z_loss:
        size = size + given.z_loss * lse.square()
        bound = bound + given.z_loss * (2 * lse.abs() * (of_z.error + one.carried) + 4 * U * lse.square())
    bound = bound + 4 * U * size
    if one.z_error is not None:
        at_target, others = one.at_target(one.z_error), one.z_error.mean(dim=-1)
        bound = bound + one.carried + (1 - e) * at_target + e * others
    if one.loose:
        bound = bound + of_z.at_maximum + one.u_out * (1 + (lse - z.amax(dim=-1)) + 2 * size)
    if not given.mean:
        return one.counted(bound)
    sizes = torch.where(one.target == given.ignore_index, 0.0, size)[None]
    c = summing(sizes, alike(sizes, whole=False))[0, 0]
    return (one.counted(bound).sum() + U * (c + 4) * sizes.sum()) / given.counted(one.target)


def of_gradient(
    one: Rounded, lse: torch.Tensor, dloss: torch.Tensor, of_p: torch.Tensor, of_lse: torch.Tensor, carried: torch.Tensor
) -> torch.Tensor:
    """The bound on dx, (rows, N). The others are (rows,): `of_p` is in R, `of_lse` the error of lse in the z-loss, `carried` is E."""
    given, z, N, u_out = one.given, one.z, one.z.shape[1], one.u_out
    y = z - lse[:, None]
    p = torch.exp(y)
    factor = (1 + 2 * given.z_loss * lse).abs()[:, None]
    steep = torch.where(p == 0, 0.0, p * (of_p[:, None] + U * (8 + 4 * y.abs() + given.smoothing * N / LANES)))
    terms = factor * p + given.smoothing / N
    terms.scatter_add_(
        1, torch.where(one.target == given.ignore_index, 0, one.target)[:, None], torch.full_like(lse, 1 - given.smoothing)[:, None]
    )
    bound = factor * steep + 2 * given.z_loss * p * of_lse[:, None] + 4 * U * terms + SMALLEST * factor
    if one.z_error is not None:
        bound = bound + factor * p * (one.z_error + carried[:, None])
    if one.loose and u_out:
        bound = bound + u_out * (torch.where(p == 0, 0.0, factor * p * (2 * y.abs() + 3)) + 2 * terms)
    if given.cap:
        slope = 1 - (z / given.cap).square()
        bound = bound * slope + terms * (24 * U + u_out if one.loose else 9 * U)
    exact = gradient(z, one.target, lse, dloss, given).abs()
    bound = bound * dloss.abs()[:, None] + (u_out + (4 if given.mean else 2) * U) * exact + (ETA[one.case.dtype] if one.loose else 0.0)
    return one.counted(bound)


def _numpy_loss(z: Array, target: Array, lse: Array, high: Array, given: Settings) -> Again:
    ignored, e = target == given.ignore_index, given.smoothing
    at_target = numpy.take_along_axis(z, _places(target, given), 1)[:, 0]
    loss, size = (1 - e) * (lse - at_target), 1 + numpy.abs(lse) + numpy.abs(high) + given.cap
    if e:
        loss, size = loss + e * (lse - z.mean(axis=-1)), size + numpy.abs(z).mean(axis=-1)
    square = given.z_loss * lse**2
    size = size + numpy.abs(loss) + square * (1 + size)
    return Again(numpy.where(ignored, 0.0, loss + square), numpy.where(ignored, 1.0, size), FLUSHED)  # an ignored row may be NaN


def _numpy_gradient(z: Array, target: Array, lse: Array, dloss: Array, given: Settings) -> Again:
    N, places = z.shape[1], _places(target, given)
    p, factor = numpy.exp(z - lse[:, None]), (1 + 2 * given.z_loss * lse)[:, None]
    hot = numpy.zeros_like(z)
    numpy.put_along_axis(hot, places, 1 - given.smoothing, 1)
    dz, size = p * factor - hot - given.smoothing / N, p * numpy.abs(factor) + hot + given.smoothing / N
    steep = (
        1 + numpy.where(p == 0, 0.0, numpy.abs(z - lse[:, None])) + moved(numpy.abs(lse))[:, None] + given.z_loss * numpy.abs(lse)[:, None]
    )
    ignored = (target == given.ignore_index)[:, None]
    slope = 1 - (z / given.cap) ** 2 if given.cap else 1.0
    dx = numpy.where(ignored, 0.0, dz * slope * dloss[:, None])
    largest = float(numpy.abs(dloss).max(initial=0.0))
    whole = numpy.abs(dloss)[:, None] * size * steep * (1 + given.cap)
    return Again(dx, numpy.where(ignored, 1.0, whole), FLUSHED * (1 + 4 * largest))


def _places(target: Array, given: Settings) -> numpy.typing.NDArray[numpy.int64]:
    return numpy.where(target == given.ignore_index, 0, target).astype(numpy.int64)[:, None]


NUMERICS = CrossEntropy()
