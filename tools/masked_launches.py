"""Small launches of every kernel of masked softmax: what tools/every_tier.py launches for it. `masked_cases.py` chooses them.

Tensors end where their memory ends. The last row of a mask takes no part. In a row without a sink the results are then NaN, as in torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from loss_launches import BRAIN, FULL, HALF, Launch
from masked_cases import (
    BACKWARD,
    FORWARD,
    LARGE_CUDA,
    LARGE_TRITON,
    ROWS_OF_SOFTMAX,
    VECTOR_BYTES,
    Asked,
    of_cuda_backward,
    of_cuda_forward,
    of_long_causal_rows,
    of_triton_backward,
    of_triton_forward,
)  # fmt: skip

TOLERANCE = {HALF: 1e-2, BRAIN: 1e-2, FULL: 1e-5}
DEVICE = "cuda"
Tensors = tuple[torch.Tensor | None, ...]


def placed(values: torch.Tensor, dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
    """The values so many elements behind the start of memory that ends with them."""
    return torch.empty(offset + values.numel(), dtype=dtype, device=DEVICE)[offset:].view(values.shape).copy_(values.to(dtype))


@dataclass
class Scores:
    """The tensors of a launch. They are made on the CPU, and so is what is expected: racecheck reports hazards in torch's own kernels."""

    asked: Asked
    x: torch.Tensor = field(init=False)
    mask: torch.Tensor | None = None
    sink: torch.Tensor | None = None

    def __post_init__(self) -> None:
        asked = self.asked
        self.x = placed(2 * torch.randn(asked.sizes), asked.dtype, asked.offset)
        if asked.mask is not None:
            shape = [size if axis in asked.axes else 1 for axis, size in zip("BHSN", asked.sizes, strict=True)]
            keep = torch.rand(shape) < 0.7
            keep.view(-1, shape[3])[-1] = False
            values = keep if asked.mask is torch.bool else torch.randn(shape).masked_fill(~keep, -math.inf)
            self.mask = placed(values, asked.mask, asked.mask_offset)
        if asked.sink is not None:
            self.sink = placed(torch.randn(asked.sizes[1]), asked.sink)

    def hidden(self) -> torch.Tensor:
        """Where a query does not see a column, (S, N)."""
        S, N = self.asked.sizes[2:]
        return (torch.arange(N) >= torch.arange(S)[:, None] + self.asked.sees) & self.asked.causal

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        """y, and the share of the sink, in float64."""
        z = self.x.cpu().double() * self.asked.scale
        if self.mask is not None:
            mask = self.mask.cpu()
            z = z.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else z + mask.double()
        z = z.masked_fill(self.hidden(), -math.inf)
        logit = torch.full((z.shape[1],), -math.inf) if self.sink is None else self.sink.cpu()
        y = torch.softmax(torch.cat([z, logit.double()[:, None, None].expand(*z.shape[:3], 1)], -1), -1)
        return y[..., :-1], y[..., -1]

    def agrees(self, found: torch.Tensor, expected: torch.Tensor, *, unseen_is_zero: bool = False) -> bool:
        """Within the tolerance of each row's largest number. A kernel may write zeros or NaN where a row of NaN does not see."""
        got = found.cpu().double()
        row = expected if expected.dim() == 4 else expected[..., None]
        largest = row.abs().nan_to_num().amax(-1, keepdim=True).view(*expected.shape[:3], *[1] * (expected.dim() - 3))
        close = (got - expected).abs() <= TOLERANCE[found.dtype] * largest + 1e-6
        close |= got.isnan() & expected.isnan()
        if unseen_is_zero:
            close = torch.where(self.hidden(), (got == 0) | (got.isnan() & expected.isnan().any(-1, keepdim=True)), close)
        return bool(close.all())


Call = Callable[[Asked, Tensors], tuple[Tensors, str]]
"""Launches a forward of (x, mask, sink) or a backward of (dy, y, share). Returns (y, share) or (dx, dsink), and what was launched."""


def launch_of(asked: Asked, call: Call) -> Launch:
    reads = 1 if asked.direction == FORWARD else 2
    made: list[Any] = []

    def run() -> str:
        scores = Scores(asked)
        given: Tensors = scores.x, scores.mask, scores.sink
        if asked.direction == BACKWARD:
            y, share = scores.expected()
            given = scores.x, placed(y, asked.dtype, asked.offset), placed(share, FULL) if asked.shares else None
        results, kernel = call(asked, given)
        made[:] = scores, given, results
        return f"{asked.direction} {kernel}"

    def right() -> bool:
        scores, given, (result, of_sink) = made
        if asked.direction == FORWARD:
            y, share = scores.expected()
            return scores.agrees(result, y, unseen_is_zero=True) and (not asked.shares or scores.agrees(of_sink, share))
        dy, y, share = (None if one is None else one.cpu().double() for one in given)
        dot = (dy * y).sum(-1, keepdim=True)
        dx = asked.scale * y * (dy - dot)
        return scores.agrees(result, dx, unseen_is_zero=True) and (share is None or scores.agrees(of_sink, -share * dot[..., 0]))

    return Launch(asked.rows, reads * asked.bytes, (reads + 1) * asked.bytes, run, right)


def called(function: Any, asked: Asked, given: Tensors) -> Tensors:
    """The results of a `MaskedSoftmax`."""
    if asked.direction == BACKWARD:
        return function.backward(*given, scale=asked.scale, causal=asked.causal)
    x, mask, sink = given
    return function.forward(x, scale=asked.scale, mask=mask, causal=asked.causal, sink=sink, shares=asked.shares)


def cuda_launches(_: str) -> Iterator[Launch]:
    from softbench.kernels.common.masked_softmax import MaskedSoftmax
    from softbench.kernels.cuda import masked_softmax as kernels
    from softbench.kernels.cuda.launch import TIERS, Plan

    def launch(asked: Asked, numbers: tuple[Any, ...] = ()) -> Launch:
        tiers = ["softmax"]

        def by_plan(launcher: Callable[..., None]) -> Callable[..., None]:
            def launched(*given: Any) -> None:
                plan = Plan(*((TIERS.index(numbers[0]), *numbers[1:]) if numbers else (-1,)))
                launcher(*given, plan=plan)
                tiers[:] = [TIERS[plan.tier]]

            return launched

        launchers = by_plan(kernels.launch_forward), by_plan(kernels.launch_backward)
        function = MaskedSoftmax(kernels.masked_softmax.softmax, *launchers, kernels.MAX_COLUMNS)
        return launch_of(asked, lambda asked, given: (called(function, asked, given), tiers[0]))

    yield from (launch(*one) for one in (*of_cuda_forward(), *of_cuda_backward()))
    yield from (launch(asked) for asked in (*ROWS_OF_SOFTMAX, *LARGE_CUDA))


def triton_launches(_: str) -> Iterator[Launch]:
    from softbench.kernels.triton import causal_rows, masked_softmax as scores
    from softbench.kernels.triton.masked_softmax import masked_softmax

    names: list[str] = []
    launch = scores._launch

    def recorded(kernel: Any, *given: Any) -> Any:
        names.append(kernel.fn.__name__)
        return launch(kernel, *given)

    scores._launch = recorded

    def call(asked: Asked, given: Tensors) -> tuple[Tensors, str]:
        names.clear()
        return called(masked_softmax, asked, given), names[0] if names else "softmax"

    def call_causal(asked: Asked, given: Tensors) -> tuple[Tensors, str]:
        """The kernel for long causal rows, whose rule wants 512 rows."""
        (B, H, S, N), backward = asked.sizes, asked.direction == BACKWARD
        plan = causal_rows.causal_plan(N, backward)
        kernel = causal_rows.backward_causal if backward else causal_rows.forward_causal
        out = torch.full_like(given[0], math.nan)
        constants = plan.tiles, plan.threads, plan.group, False
        tensors = (*given[:2], out) if backward else (given[0], out)
        names.clear()
        numbers = N * asked.dtype.itemsize // VECTOR_BYTES, asked.sees
        scores._launch(kernel, tensors, asked.scale, numbers, constants, (S, H, B), plan.threads // 32, plan.registers)
        return (out, None), names[0]

    yield from (launch_of(asked, call) for asked in (*of_triton_forward(), *of_triton_backward()))
    yield from (launch_of(asked, call_causal) for asked in of_long_causal_rows())
    yield from (launch_of(asked, call) for asked in (*ROWS_OF_SOFTMAX, *LARGE_TRITON))
