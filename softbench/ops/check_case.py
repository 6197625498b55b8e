"""A check case: difficult inputs for a backend, made from a seed.

Cases of rows pass contiguous (M, N) tensors through `prepare`. Cases over `dim` pass tensors of any shape and strides through `over_dim`,
if the backend has that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from softbench.core.case import Case, Direction
from softbench.ops.lazy import torch

Tensors = tuple["torch.Tensor", ...]
See = Callable[["torch.Tensor", "torch.Tensor"], object]
"""Receives some rows of an output, and those of the reference. It does not change the verdict."""

MAX_INTERPRETED = 2**16
"""Elements of a tensor in an interpreter, unless a row is longer; they take seconds."""


@dataclass(frozen=True, slots=True)
class CheckCase:
    """One check case."""

    name: str
    direction: Direction
    make: Callable[[Draw], Tensors]
    """The arguments of a call, such as `(x,)` or `(dy, y)`."""
    dim: int | None = None
    """The axis of a case over `dim`; None for rows."""
    repeat: str = ""
    """`twice` or `stream`: what is checked besides the values, a second call or a call on another stream. The others are in
    `softbench.worker.checking.contract_cases`."""
    gpu_only: str = ""
    """Why it needs a GPU; empty if it does not."""
    case: Case | None = None
    """The case of a problem, but for its dtype and device; None if the tensors tell it."""
    dtype: str = ""
    """The dtype of its case, if it has one dtype only."""
    free_bytes: int = 0
    """Free device memory that it needs in float32, in bytes. If above 0, backends run it one after the other."""


@dataclass(frozen=True, slots=True)
class Draw:
    """The random values of a case's inputs."""

    generator: torch.Generator
    """The generator, with the seed of the case."""
    dtype: str
    """`fp32`, `fp16` or `bf16`."""
    device: torch.device
    """The device of the inputs."""
    most_rows: int | None
    """Maximum rows of an interpreted backend; None without a limit."""

    def rows(self, M: int, N: int) -> int:
        """M, or the number of rows that an interpreter can run."""
        return M if self.most_rows is None else min(M, self.most_rows, max(1, MAX_INTERPRETED // max(1, N)))

    def normal(self, *shape: int) -> torch.Tensor:
        """A tensor of this shape, standard normal, in the dtype and on the device of the case."""
        return torch.randn(shape, generator=self.generator, dtype=self.torch_dtype, device=self.device)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of the case."""
        from softbench.ops.dtypes import DTYPES

        return DTYPES[self.dtype]
