"""Tensors of attention scores, of shape (B, H, S, N), as rows: row (b H + h) S + s is query s of head h in batch b.

In a case of rows, each row has its own part of a tensor that rows share, such as a mask of shape (B, 1, S, N). In a case with a shape,
such a part belongs to the first of the rows that share it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from softbench.core.case import DIMS, Case, first_sees
from softbench.ops.lazy import torch
from softbench.ops.registry import operation

if TYPE_CHECKING:
    from softbench.ops.operation import TensorSpec

OPERATORS = ("Tensor.tril_", "Tensor.masked_fill_")
"""What the tamper guard protects of torch for these functions."""


def numbers_of(case: Case, which: Any, device: torch.device) -> torch.Tensor:
    """The numbers of rows as a tensor, from a slice, a number or a tensor."""
    if isinstance(which, slice):
        return torch.arange(*which.indices(case.M), device=device)
    return torch.as_tensor(which, device=device)


def seen(case: Case, which: Any, device: torch.device) -> torch.Tensor:
    """How many columns each of these rows of a causal case sees: int64 of shape (rows,)."""
    S, N = case.sizes[-2:]
    return (numbers_of(case, which, device) % S + first_sees(S, N)).clamp_max(N)


class Shared:
    """A tensor that rows share, read and written as one whose row i is the part that row i has: `shared[numbers]`."""

    def __init__(self, case: Case, spec: TensorSpec, tensor: torch.Tensor) -> None:
        self.case, self.axes = case, spec.axes
        self.parts = tensor.data.view(-1, case.N) if "N" in spec.axes else tensor.data.view(-1)

    def _places(self, which: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The part that each row has, and whether the row is the first of those that share it."""
        numbers = numbers_of(self.case, which, self.parts.device)
        left, coordinates = numbers, {}
        for axis, size in zip(reversed(DIMS[:-1]), reversed(self.case.sizes[:-1]), strict=True):
            coordinates[axis], left = left % size, left // size
        part, first = torch.zeros_like(numbers), torch.ones_like(numbers, dtype=torch.bool)
        for axis, size in zip(DIMS[:-1], self.case.sizes[:-1], strict=True):
            if axis in self.axes:
                part = part * size + coordinates[axis]
            else:
                first &= coordinates[axis] == 0
        return part, first

    def __getitem__(self, which: Any) -> torch.Tensor:
        return self.parts[self._places(which)[0]]

    def __setitem__(self, which: Any, values: torch.Tensor) -> None:
        """Rows that are not the first of those that share a part write nothing."""
        part, first = self._places(which)
        self.parts[part[first]] = values[first]


def laid_out(case: Case, spec: TensorSpec, values: torch.Tensor) -> torch.Tensor:
    """A tensor of rows in the shape of the case: a view if rows do not share it."""
    shape = spec.shape(case)
    if not spec.is_shared or (len(values) == values.numel() == case.M and shape == case.sizes[:-1]):
        return values.detach().view(shape)
    made = values.new_empty(shape)
    Shared(case, spec, made)[slice(None)] = values.detach()
    return made


def clear_unseen(case: Case, given: Iterable[torch.Tensor], which: torch.Tensor | None = None) -> None:
    """Write 0 where `only_seen` of an input says so, in these rows or in all. Torch's version counter does not show it."""
    op = operation(case.op)
    if not (case.shape and op.is_causal):
        return
    S, N = case.sizes[-2:]
    for tensor in (tensor for spec, tensor in zip(op.inputs(case), given, strict=True) if spec.only_seen):
        if which is None:
            tensor.data.tril_(first_sees(S, N) - 1)
            continue
        rows = tensor.data.view(-1, N)
        unseen = torch.arange(N, device=rows.device) >= seen(case, which, rows.device)[:, None]
        rows[which] = rows[which].masked_fill_(unseen, 0)


def of_rows(case: Case, rows: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The inputs of a case, from those of a case of its rows."""
    specs = operation(case.op).inputs(case)
    given = tuple(laid_out(case, spec, values).contiguous() for spec, values in zip(specs, rows[: len(specs)], strict=True))
    clear_unseen(case, given)
    return given
