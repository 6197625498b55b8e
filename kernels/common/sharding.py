"""Sharding strategies of softbench's operators, so that they take `DTensor`: rows may be sharded, and what an operator reduces may not.

DTensor gathers what lies otherwise. `registration.py` registers a strategy once `torch.distributed.tensor` is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from .rows import canonical_dim

Strategies = list[tuple[list[Any], list[Any]]]
"""Placements of the outputs and of the inputs, None for what is no tensor, each pair an acceptable one."""


Strategy = Callable[..., Strategies]
"""It gets an operator's arguments, with specifications in place of tensors."""


def is_distributed(x: object) -> bool:
    """Whether x is a DTensor, without an import."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def _placements(given: Sequence[Any], of: Callable[[Any], Any]) -> list[Any]:
    """The placement of each argument that is a tensor, which has a shape."""
    return [of(one) if hasattr(one, "shape") else None for one in given]


def over_dim(tensors: int) -> Strategy:
    """Of `operator(x, dim, ...)` or `operator(dy, y, dim, ...)`: any dimension but `dim`."""

    def strategy(*given: Any) -> Strategies:
        from torch.distributed.tensor import Replicate, Shard

        dimensions = len(given[0].shape)
        dim = given[tensors] if len(given) > tensors else -1
        free = [at for at in range(dimensions) if at != canonical_dim(dim, dimensions)]
        others = [None] * (len(given) - tensors)
        return [([place], [place] * tensors + others) for place in (Replicate(), *map(Shard, free))]

    return strategy


def of_rows(outputs: int, *whole: int) -> Strategy:
    """Of operators whose tensors have the rows in their first dimension. `whole`: outputs that belong to no row.

    A tensor without a dimension, or with one element for all rows, is that of all rows.
    """

    def strategy(*given: Any) -> Strategies:
        from torch.distributed.tensor import Replicate, Shard

        rows = given[0].shape[0]
        sharded = _placements(given, lambda one: Shard(0) if len(one.shape) and one.shape[0] == rows else Replicate())
        results = [Replicate() if number in whole else Shard(0) for number in range(outputs)]
        return [([Replicate()] * outputs, _placements(given, lambda one: Replicate())), (results, sharded)]

    return strategy


def of_loss(*given: Any) -> Strategies:
    """Of the forward of cross entropy, whose last argument but the scale is its reduction: the mean of a shard is not that of all rows."""
    found = of_rows(3, 2)(*given)
    return found if len(given) < 7 or given[6] == 0 else found[:1]


def of_scores(*given: Any) -> Strategies:
    """Of masked softmax and its backward, of scores (B, H, S, N): batch and heads.

    The second argument is y, or a mask that broadcasts to the scores. The third is a sink for each head, or its share of rows (B, H, S).
    Without it the second result is empty.
    """
    from torch.distributed.tensor import Replicate, Shard

    scores, second, third = (*given, None, None)[:3]
    others = [None] * max(0, len(given) - 3)

    def placed(one: Any, axis: int, at: int) -> Any:
        if one is None:
            return None
        return Shard(at) if 0 <= at < len(one.shape) and 1 < one.shape[at] == scores.shape[axis] else Replicate()

    found = [([Replicate()] * 2, _placements(given, lambda one: Replicate()))]
    for axis in (0, 1):
        of_second = None if second is None else placed(second, axis, axis + len(second.shape) - 4)
        of_third = None if third is None else placed(third, axis, axis if len(third.shape) == 3 else axis - 1)
        inputs = [Shard(axis), of_second, of_third, *others][: len(given)]
        found.append(([Shard(axis), Replicate() if third is None else Shard(axis)], inputs))
    return found
