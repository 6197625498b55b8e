"""What norms of rows share: inputs, saved statistics, kinds of rows, and the bound of a sum over rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

from softbench.core.case import Case, Direction
from softbench.ops.check import Worst, row_chunks
from softbench.ops.check_case import Draw, Tensors
from softbench.ops.error_terms import ETA, U_OUT, U, alike, summing
from softbench.ops.lazy import torch
from softbench.ops.operation import Preset, TensorSpec
from softbench.ops.parameters import Parameter
from softbench.ops.registry import is_whole, operation
from softbench.ops.rowwise import NormalValues
from softbench.ops.structured_rows import FLOAT16, LARGE_DY, Change, Kinds, Places, fit, of_dy, of_x

ROWS, COLUMN, EACH = TensorSpec(("M", "N")), TensorSpec(("N",)), TensorSpec(("M",), "fp32")
PRESETS = MappingProxyType(
    {"llama": Preset(("4096x2048", "4096x4096", "4096x8192"), "hidden sizes of Llama 3.2 1B, 3 8B and 3 70B, 4096 tokens")}
)
SAVED = Parameter("saved", "bool", True, "the forward also returns what the backward needs; without it the backward computes that")
SPREAD = 8
"""Weights are 1 plus a normal number by this."""
NORMALIZED = ("x", "residual", "s")
"""The inputs that structured rows of x change."""
WALK = 8
"""Roundings of M terms to 16 bits add up as a random walk, to at most so many times its length; each term is rounded twice."""


def eps_of(case: Case) -> float:
    """The value of the parameter `eps`."""
    return float(operation(case.op).parameter_values["eps"])


def is_saved(case: Case) -> bool:
    """The value of the parameter `saved`."""
    return bool(operation(case.op).parameter_values[SAVED.name])


def mean(rows: torch.Tensor) -> torch.Tensor:
    """The mean of each row, (rows, 1)."""
    return rows.mean(dim=-1, keepdim=True)


def rstd_of(x: torch.Tensor, eps: float) -> torch.Tensor:
    """1 / sqrt(mean(x^2) + eps) of each row, (rows, 1) in the dtype of x."""
    return torch.rsqrt(mean(x.square()) + eps)


class Norm(NormalValues):
    """The values of a norm with a weight w and perhaps a bias b; its statistics are float32 tensors of (M,)."""

    __slots__ = ()

    @abstractmethod
    def statistics(self, case: Case, x: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """What the forward saves of rows in float64, each (rows, 1); `rstd` is among them."""

    def draw(self, case: Case, random: Draw) -> Tensors:
        given = []
        for name in operation(case.op).passes[case.direction].inputs:
            if name in ("mean", "rstd"):
                given.append(torch.empty(case.M, device=random.device))
            elif name in ("w", "b"):
                given.append((name == "w") + random.normal(case.N) / SPREAD)
            else:
                given.append(random.normal(case.M, case.N))
        self.derived(case, tuple(given))
        return tuple(given)

    def derived(self, case: Case, given: Tensors) -> None:
        """The statistics, and in float16 a dy whose gradients do not overflow."""
        if case.direction is Direction.FORWARD:
            return
        named = {name: tensor.data for name, tensor in zip(operation(case.op).passes[case.direction].inputs, given, strict=True)}
        dy, w = named["dy"], named["w"].double()
        x = named["s" if "s" in named else "x"]
        for rows in [slice(None)] if is_whole(case) else row_chunks(case):
            found = self.statistics(case, x[rows].double())
            for name in found.keys() & named.keys():
                named[name][rows] = found[name][:, 0].float()
            if case.dtype == "fp16":
                h = (x[rows].double() - found.get("mean", 0.0)) * found["rstd"]
                highest = h.abs().nan_to_num(0, 0, 0).amax(dim=-1, keepdim=True)
                fit(dy[rows], found["rstd"].nan_to_num(0, 0, 0) * w.abs().max() * (1 + highest))
                if is_whole(case):
                    sums = [(dy[rows].double() * factor).sum(dim=0).abs().amax() for factor in (1.0, h)]
                    dy.div_((torch.stack(sums).amax() / FLOAT16).clamp_min(1))

    def masks_rows(self, case: Case) -> bool:
        return False

    def rounding(self, case: Case, worst: Worst) -> str:
        return "rounds x * rstd, or its product of dy and w, to 16 bits"

    def structured_rows(self, case: Case) -> Kinds:
        """Functions of the inputs that have rows, and Places. In a pass that sums over rows none is NaN or infinite, as all would be."""
        op = operation(case.op)
        names = [name for name, own in zip(op.passes[case.direction].inputs, op.with_rows(case), strict=True) if own]
        found = {
            name: partial(_changed, change, [names.index(one) for one in NORMALIZED if one in names])
            for name, change in kinds(case.dtype).items()
        }
        if "dy" in names:
            dropped = f"with a dy of size {LARGE_DY:g}" if case.dtype == "fp16" else ""
            found |= {name: partial(_changed, change, [names.index("dy")]) for name, change in of_dy(case.dtype).items() if name != dropped}
        return {name: change for name, change in found.items() if not (is_whole(case) and ("NaN" in name or "inf" in name))}


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


def _changed(change: Change, which: Sequence[int], *given: object) -> None:
    *tensors, places = given
    for number in which:
        change(tensors[number], places)  # type: ignore[arg-type]


def of_column_sums(dtype: str, exact: torch.Tensor, terms: torch.Tensor, errors: torch.Tensor | None = None) -> torch.Tensor:
    """The bound on sums over rows, (N,), whose terms are (M, N) and have these errors: u_o |sum| + u c sum |term| + errors + eta."""
    sizes = terms.abs().T
    c = summing(sizes, alike(sizes, whole=False))[:, 0]
    found = U_OUT[dtype] * exact.abs() + U * (c + 4) * sizes.sum(dim=-1) + ETA[dtype]
    return found if errors is None else found + errors.sum(dim=0)


def rounded_terms(dtype: str, terms: torch.Tensor) -> torch.Tensor:
    """What sums over rows may lose, (N,), if each term is rounded to 16 bits before."""
    sizes = terms.abs().T
    M = sizes.shape[-1]
    same = alike(sizes, whole=False)[:, 0]
    return WALK * U_OUT[dtype] * (sizes.square().sum(dim=-1) * (1 + M * same)).sqrt()
