"""The yardstick `copy`: it moves the bytes of the operation's pass and computes nothing else.

Only this class is graded as a yardstick: `softbench.ops.yardstick` says what it moves, and compares its results bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec

import torch

from softbench.core.case import Case
from softbench.ops.dtypes import TENSOR_DTYPES
from softbench.ops.operation import Operation
from softbench.ops.registry import operation
from softbench.ops.yardstick import Step, add, read_bytes, steps
from softbench.plugins.backend import Call

Move = Callable[[Sequence[torch.Tensor]], object]
"""Moves the bytes of a step. It gets all tensors of the pass."""


class Copy:
    """The yardstick: it reads and writes the bytes of the pass, with one launch for each step."""

    name = "copy"
    advice = "never: the other backends are compared with it"

    def available(self) -> str | None:
        return None

    def supports(self, case: Case) -> str | None:
        return None

    def prepare(self, case: Case) -> Call:
        """The first call allocates the results, so later calls do not time the allocator."""
        op = operation(case.op)
        one = op.pass_of(case)
        ours = (*one.outputs, *(name for name in one.reads if name not in (*one.inputs, *one.outputs)))
        names = (*one.inputs, *ours)
        moves = [_move(op, case, step, names) for step in steps(op, case)]
        kept: list[torch.Tensor] = []

        def call(*given: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
            if not kept:
                for spec in (op.tensor(name, case) for name in ours):
                    kept.append(torch.zeros(spec.shape(case), dtype=TENSOR_DTYPES[spec.dtype_of(case)], device=given[0].device))
            tensors = [*(tensor.detach() if tensor.requires_grad else tensor for tensor in given), *kept]
            for move in moves:
                move(tensors)
            return kept[0] if len(one.outputs) == 1 else tuple(kept[: len(one.outputs)])

        return call


def _move(op: Operation, case: Case, step: Step, names: Sequence[str]) -> Move:
    """One operator of torch if the step is a copy or an addition of two, which no kernel does faster; else one launch of a kernel."""
    dtypes = {op.tensor(name, case).dtype_of(case) for one in step.sums for name in (*one.sources, *one.results)}
    fills = [(len(one.sources), len(one.results)) for one in step.sums]
    plain = not step.others and len(dtypes) == 1 and fills in ([(0, 1)], [(1, 1)], [(2, 1)])
    if plain or case.device != "cuda" or find_spec("triton") is None:
        return _by_torch(op, case, step, names)
    from softbench.backends.copy_kernels import Launch

    return Launch(op, case, step, names)


def _by_torch(op: Operation, case: Case, step: Step, names: Sequence[str]) -> Move:
    sums = [([names.index(name) for name in one.sources], names.index(result)) for one in step.sums for result in one.results]
    others = [(names.index(name), read_bytes(op, case, name)) for name in step.others]

    def move(tensors: Sequence[torch.Tensor]) -> None:
        for sources, result in sums:
            add([tensors[place] for place in sources], tensors[result])
        for place, length in others:
            flat = tensors[place].reshape(-1)
            part = flat[: length // flat.element_size()]
            part.any() if part.dtype is torch.bool else part.amax()

    return move


backend = Copy()
