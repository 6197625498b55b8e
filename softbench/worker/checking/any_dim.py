"""N-D cases, whose rows lie along any dimension of a tensor: their inputs, and access to their rows.

Checks see rows, as in (M, N) cases. Row i of a tensor is row i of the (M, N) tensor that results if its dimension moves to the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import torch

from softbench.core.case import Case
from softbench.ops import scores
from softbench.ops.operation import TensorSpec
from softbench.ops.registry import is_whole, numerics, of_rows, operation

Tensors = tuple[torch.Tensor, ...]


class Rows:
    """The rows of an N-D tensor, read and written as those of an (M, N) tensor: `rows[numbers]`, `rows[numbers, columns]`.

    A row by its number is a view. Several rows are a copy.
    """

    def __init__(self, tensor: torch.Tensor, dim: int) -> None:
        self.tensor, self.dim = tensor, dim

    def _moved(self) -> torch.Tensor:
        return self.tensor.data.movedim(self.dim, -1)  # `data` does not count writes

    def __getitem__(self, key: Any) -> torch.Tensor:
        moved = self._moved()
        if isinstance(key, slice) and key == slice(None):
            return moved.reshape(-1, moved.shape[-1])
        if isinstance(key, slice) and key.stop == (key.start or 0) + 1:
            return self[key.start or 0][None]
        return moved[_places(key, moved)]

    def __setitem__(self, key: Any, values: torch.Tensor) -> None:
        moved = self._moved()
        moved[_places(key, moved)] = values


def _places(key: Any, moved: torch.Tensor) -> tuple[Any, ...]:
    """The index of these rows, and of these columns of them, in a tensor whose last dimension has the columns."""
    which, *columns = key if isinstance(key, tuple) else (key,)
    sizes = moved.shape[:-1]
    if isinstance(which, slice):
        which = torch.arange(*which.indices(prod(sizes)), device=moved.device)
    places: list[Any] = []
    for size in reversed(sizes):
        places.insert(0, which % size)
        which = which // size
    return *places, *columns


def rows(case: Case, spec: TensorSpec, tensor: torch.Tensor) -> Any:
    """A tensor of a case, indexed by rows: the tensor itself, without autograd, the Rows of an N-D tensor, or what rows share."""
    if case.shape and spec.is_shared:
        return scores.Shared(case, spec, tensor)
    if case.shape and spec.is_of_rows:
        return tensor.data.reshape(-1)
    return Rows(tensor, case.dim) if case.shape and spec.has_columns else tensor.data


def row_specs(case: Case) -> tuple[TensorSpec, ...]:
    """The tensors that `rows_of` gives."""
    return operation(case.op).inputs(of_rows(case, case.M))


def rows_of(case: Case, given: Tensors, which: torch.Tensor | slice) -> Tensors:
    """These rows of the inputs, without autograd; an input that has no rows as it is. Those of a causal case end with what each sees."""
    found = _rows_of(case, operation(case.op).inputs(case), given, which)
    if case.shape and operation(case.op).is_causal:
        return *found, scores.seen(case, which, found[0].device)
    return found


def rows_of_outputs(case: Case, outputs: Tensors, which: torch.Tensor | slice) -> Tensors:
    """These rows of the outputs, without autograd."""
    return _rows_of(case, operation(case.op).outputs(case).values(), outputs, which)


def _rows_of(case: Case, specs: Iterable[TensorSpec], tensors: Tensors, which: torch.Tensor | slice) -> Tensors:
    return tuple(rows(case, spec, tensor)[which] if spec.has_rows else tensor.data for spec, tensor in zip(specs, tensors, strict=True))


def make(case: Case, seed: int, device: torch.device) -> Tensors:
    """The inputs of a case, contiguous in its shape. Their rows are those that `Values.make` draws."""
    given = numerics(case.op).make(of_rows(case, case.M), seed, device)
    if case.shape and operation(case.op).scores:
        return scores.of_rows(case, given)
    if not case.shape or is_whole(case):
        return given
    specs = operation(case.op).inputs(case)
    return tuple(
        spec.laid_out(case, tensor).contiguous().requires_grad_(tensor.requires_grad) for spec, tensor in zip(specs, given, strict=True)
    )


def write(case: Case, given: Tensors, values: Tensors) -> None:
    """Write other rows into the memory of the inputs. Torch's version counter does not show it."""
    for spec, tensor, fresh in zip(operation(case.op).inputs(case), given, values[: len(given)], strict=True):
        tensor.data.copy_(scores.laid_out(case, spec, fresh) if spec.is_shared else spec.laid_out(case, fresh))
    scores.clear_unseen(case, given)


def refill(case: Case, given: Tensors, seed: int) -> None:
    """Write the rows of another seed into the memory of the inputs."""
    if case.shape and not is_whole(case):
        write(case, given, numerics(case.op).make(of_rows(case, case.M), seed, given[0].device))
    else:
        numerics(case.op).refill(given, case, seed)


def make_structured(case: Case, given: Tensors, seed: int) -> list[str]:
    """Change the rows of the inputs into structured rows, in the same memory: see `softbench.ops.values`."""
    if not case.shape or is_whole(case):
        return numerics(case.op).make_structured(given, case, seed)
    changed = tuple(tensor.clone() for tensor in rows_of(case, given, slice(None)))
    names = numerics(case.op).make_structured(changed, case.of_rows(case.M), seed)
    write(case, given, changed)
    return names
