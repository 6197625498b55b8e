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
from functools import partial
from types import MappingProxyType

from softbench.core.case import Case, Direction
from softbench.ops.check import Worst, row_chunks
from softbench.ops.check_case import Draw, Tensors
from softbench.ops.error_terms import ETA, SMALLEST, U_OUT, U, alike, summing
from softbench.ops.lazy import numpy, torch
from softbench.ops.operation import Operation, Pass, Preset, TensorSpec
from softbench.ops.parameters import Parameter
from softbench.ops.rowwise import NormalValues
from softbench.ops.second_opinion import FLUSHED, Again, Array
from softbench.ops.structured_rows import LARGE_DY, Change, Kinds, Places, fit, of_dy, of_x

EPS = Parameter("eps", "number", 1e-6, "the number added to the mean of the squares", least=1e-12, most=1)
ROWS = TensorSpec(("M", "N"))
OPERATION = Operation(
    name="rms_norm",
    summary="x / sqrt(mean(x^2) + eps) * w of each row, and its gradient to x",
    tensors=MappingProxyType(
        {"x": ROWS, "w": TensorSpec(("N",)), "y": ROWS, "dy": ROWS, "rstd": TensorSpec(("M",), "fp32"), "dx": ROWS},
    ),
    passes=MappingProxyType(
        {
            Direction.FORWARD: Pass(("x", "w"), ("y",), ("x", "w")),
            Direction.BACKWARD: Pass(("dy", "x", "w", "rstd"), ("dx",), ("dy", "x", "w", "rstd")),
        }
    ),
    presets=MappingProxyType(
        {"llama": Preset(("4096x2048", "4096x4096", "4096x8192"), "hidden sizes of Llama 3.2 1B, 3 8B and 3 70B, 4096 tokens")}
    ),
    parameters=(EPS,),
)
OPERATORS = ("rsqrt", "Tensor.square", "Tensor.mean")
"""What the tamper guard protects of torch for the reference."""
SPREAD = 8
"""Weights are 1 plus a normal number by this."""


def eps_of(case: Case) -> float:
    """The value of the parameter."""
    return float(case.parameters.get(EPS.name, EPS.default))


def rstd_of(x: torch.Tensor, eps: float) -> torch.Tensor:
    """rstd of each row, (rows, 1) in the dtype of x."""
    return torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)


class RmsNorm(NormalValues):
    """y of each row, and dx."""

    __slots__ = ()

    def draw(self, case: Case, random: Draw) -> Tensors:
        rows = [random.normal(case.M, case.N) for _ in range(1 if case.direction is Direction.FORWARD else 2)]
        w = 1 + random.normal(case.N) / SPREAD
        if case.direction is Direction.FORWARD:
            return *rows, w
        given = *rows, w, torch.empty(case.M, device=random.device)
        self.derived(case, given)
        return given

    def derived(self, case: Case, given: Tensors) -> None:
        """rstd, and in float16 a dy whose dx does not overflow."""
        if case.direction is Direction.FORWARD:
            return
        dy, x, w, rstd = (tensor.data for tensor in given)
        for rows in row_chunks(case):
            found = rstd_of(x[rows].double(), eps_of(case))
            rstd[rows] = found[:, 0].float()
            if case.dtype == "fp16":
                highest = (x[rows].double() * found).abs().nan_to_num(0, 0, 0).amax(dim=-1, keepdim=True)
                fit(dy[rows], found.nan_to_num(0, 0, 0) * w.double().abs().max() * (1 + highest))

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
        terms, sizes = _sizes(*inputs)
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
        return (tight + u_out * (2 * _sizes(*inputs)[1] + exact.abs()) + lost,)

    def rounding(self, case: Case, worst: Worst) -> str:
        return "rounds x * rstd, or its product of dy and w, to 16 bits"

    def masks_rows(self, case: Case) -> bool:
        return False

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

    def structured_rows(self, case: Case) -> Kinds:
        """Functions of x, or of dy, x and rstd, and of Places."""
        if case.direction is Direction.FORWARD:
            return kinds(case.dtype)
        found = {name: partial(_of_x, change) for name, change in kinds(case.dtype).items()}
        dropped = f"with a dy of size {LARGE_DY:g}" if case.dtype == "fp16" else ""
        return found | {name: partial(_of_dy, change) for name, change in of_dy(case.dtype).items() if name != dropped}


def _sizes(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, rstd: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sizes of the terms of the mean, and S."""
    r, terms = rstd[:, None], (w * dy * x).abs()
    return terms, r * (w * dy).abs() + r**3 * x.abs() * terms.mean(dim=-1, keepdim=True)


def kinds(dtype: str) -> Mapping[str, Change]:
    """The kinds of rows of x, by name. -inf masks nothing here, so such rows are none."""

    def last(x: torch.Tensor, places: Places) -> None:
        x.mul_(1e-2)
        x[:, -1] = 30

    return {name: change for name, change in of_x(dtype).items() if "-inf" not in name} | {
        "small, so that eps counts": lambda x, places: x.mul_(1e-3),
        "with a mean": lambda x, places: x.add_(4),
        "with its size in the last column": last,
    }


def _of_x(change: Change, dy: torch.Tensor, x: torch.Tensor, rstd: torch.Tensor, places: Places) -> None:
    change(x, places)


def _of_dy(change: Change, dy: torch.Tensor, x: torch.Tensor, rstd: torch.Tensor, places: Places) -> None:
    change(dy, places)


NUMERICS = RmsNorm()
