"""The yardstick `copy`: it moves the bytes of the operation's pass and computes nothing.

Only this class is graded as a yardstick: `softbench.ops.softmax.tolerance` compares its output bit by bit with the bytes to move.
"""

from __future__ import annotations

import torch

from softbench.core.case import Case, Direction
from softbench.ops.dtypes import TENSOR_DTYPES
from softbench.ops.operation import Operation
from softbench.ops.registry import NAMES, operation
from softbench.plugins.backend import Call


class Copy:
    """The yardstick: a same-bytes device copy (forward) or two-read-one-write add (backward)."""

    name = "copy"
    advice = "never for softmax: the other backends are compared with it"

    def available(self) -> str | None:
        return None

    def supports(self, case: Case) -> str | None:
        return None

    def prepare(self, case: Case) -> Call:
        """The first call allocates the outputs, so later calls do not time the allocator.

        Of softbench's operations: forward: `x -> x`; backward: `(dy, y) -> dy + y`;
        both: `(x, dy) -> (x, dy + x)`. Of users' operations: see `_moving`.
        """
        op = operation(case.op)
        if case.op not in NAMES:
            return _moving(op, case)
        first: list[torch.Tensor] = []
        second: list[torch.Tensor] = []

        def forward(x: torch.Tensor) -> torch.Tensor:
            if not first:
                first.append(torch.empty_like(x))
            return first[0].copy_(x)

        def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            if not second:
                second.append(torch.empty_like(y))
            return torch.add(dy, y, out=second[0])

        def both(x: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x = x.detach()
            return forward(x), backward(dy, x)

        calls: dict[Direction, Call] = {Direction.FORWARD: forward, Direction.BACKWARD: backward, Direction.BOTH: both}
        return calls[case.direction]


def _moving(op: Operation, case: Case) -> Call:
    """A call that reads and writes the bytes of a pass.

    An output is a copy of a read of its form, or the sum of two; without such a read it is filled. Reads that are left are reduced to a
    maximum, which writes nothing but one value.
    """
    one = op.passes[case.direction]
    left = [name for name in one.inputs if name in one.reads]
    sources: list[list[int]] = []
    for output in one.outputs:
        same = [name for name in left if op.tensors[name] == op.tensors[output]][:2]
        sources.append([one.inputs.index(name) for name in same])
        left = [name for name in left if name not in same]
    others = [one.inputs.index(name) for name in left]
    kept: list[torch.Tensor] = []

    def call(*given: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        given = tuple(tensor.detach() for tensor in given)
        if not kept:
            specs = op.outputs(case).values()
            kept.extend(torch.empty(spec.shape(case), dtype=TENSOR_DTYPES[spec.dtype_of(case)], device=given[0].device) for spec in specs)
        for out, places in zip(kept, sources, strict=True):
            if len(places) == 2:
                torch.add(given[places[0]], given[places[1]], out=out)
            elif places:
                out.copy_(given[places[0]])
            else:
                out.zero_()
        for place in others:
            given[place].amax() if given[place].dtype is not torch.bool else given[place].any()
        return kept[0] if len(kept) == 1 else tuple(kept)

    return call


backend = Copy()
