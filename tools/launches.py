"""What the launches of tools/every_tier.py share: their tensors, and the comparison of their results with float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

FULL, HALF, BRAIN = torch.float32, torch.float16, torch.bfloat16
TOLERANCE = {FULL: 4e-5, HALF: 1e-2, BRAIN: 1e-2}
DEVICE = "cuda"
Pairs = list[tuple[torch.Tensor, torch.Tensor]]
"""Results, each with what it should be, in float64 on the CPU: racecheck reports hazards in torch's reduction of doubles."""


@dataclass(frozen=True)
class Launch:
    """One call of kernels on some rows. `read` and `moved` are bytes."""

    rows: int
    read: int
    moved: int
    run: Callable[[], tuple[str, Callable[[], Pairs]]]
    """Makes the tensors and launches; returns the name of the tier, and what gives the results. A process makes its own part only."""


def spaced(M: int, N: int, dtype: torch.dtype, pad: int = 0, offset: int = 0) -> torch.Tensor:
    """Rows without values, N + pad elements apart, the first behind `offset` elements. Their memory ends with them."""
    memory = torch.empty((M - 1) * (N + pad) + N + offset, dtype=dtype, device=DEVICE)
    return memory.as_strided((M, N), (N + pad, 1), offset)


def placed(values: torch.Tensor, dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
    """The values so many elements behind the start of memory that ends with them."""
    return torch.empty(offset + values.numel(), dtype=dtype, device=DEVICE)[offset:].view(values.shape).copy_(values.to(dtype))


def agrees(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether all elements are NaN where they should be, and else within the tolerance of their row's largest number.

    Of one number for each row it is the tolerance of 1 plus the number.
    """
    got = found.cpu().double()
    largest = expected.abs().nan_to_num().amax(-1, keepdim=True) if expected.dim() > 1 else 1 + expected.abs()
    close = (got - expected).abs() <= TOLERANCE[found.dtype] * largest + 1e-6
    return bool((close | (got.isnan() & expected.isnan())).all())
