"""What the yardstick moves in a pass, and the check of its results.

A result is the sum of the reads that have its axes. The sum of one read is a copy, and the sum of none is zeros. Floating tensors are
added in float32, one after the other, and the sum is rounded to the dtype of the result. Integers and bools are combined bit by bit (xor),
and belong to results of their own dtype only. No result depends on the other reads: tensors of other axes, and those that the pass does
not read as a whole.

A pass that reads one of its results has two steps, because a result must be written before it is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import xor

import torch

from softbench.core.case import Case
from softbench.core.outcome import Accuracy, Grade
from softbench.ops.check import row_chunks
from softbench.ops.check_case import Tensors
from softbench.ops.dtypes import TENSOR_DTYPES
from softbench.ops.operation import SEEN, Operation
from softbench.ops.registry import operation

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integers by their bytes."""
FLOATING = (2, 4)
"""Bytes of the floating elements that are added. A result of others is a copy of one read."""
UNMOVED = "the yardstick did not move what it should have moved"


@dataclass(frozen=True, slots=True)
class Sum:
    """Results of the same axes, and the reads whose sum each of them is. Their dtypes may differ if all are floating."""

    sources: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """What one launch moves."""

    sums: tuple[Sum, ...]
    others: tuple[str, ...]
    """The reads that no result depends on."""


def steps(op: Operation, case: Case) -> tuple[Step, ...]:
    """The steps of the pass of a case: one, or two if the pass reads its own results."""
    one = op.pass_of(case)
    again = [name for name in one.outputs if name in one.reads]
    given = [name for name in one.reads if name not in one.outputs]
    if not again:
        return (_step(op, case, given, one.writes),)
    rest = [name for name in one.writes if name not in again]
    return _step(op, case, given[: len(again)], again), _step(op, case, given[len(again) :] + again, rest)


def _step(op: Operation, case: Case, reads: Sequence[str], writes: Sequence[str]) -> Step:
    one = op.pass_of(case)
    usable = [name for name in reads if name in (*one.inputs, *one.outputs) and _is_whole(op, case, name)]
    sums: dict[tuple[object, ...], Sum] = {}
    for result in writes:
        kind = _kind(op, case, result)
        there = sums[kind].results if kind in sums else ()
        sources = tuple(name for name in usable if _kind(op, case, name) == kind)
        sums[kind] = Sum(sources if _addable(kind[1]) else sources[:1], (*there, result))
    used = {name for one in sums.values() for name in one.sources}
    return Step(tuple(sums.values()), tuple(name for name in reads if name not in used))


def _is_whole(op: Operation, case: Case, name: str) -> bool:
    """True if the pass reads a tensor as a whole, in any part of its rows too: what queries see depends on their place."""
    seen = op.pass_of(case).share(name) == SEEN
    return not seen and read_bytes(op, case, name) == op.tensor(name, case).bytes(case)


def _kind(op: Operation, case: Case, name: str) -> tuple[object, ...]:
    """Tensors of one kind can be added."""
    spec = op.tensor(name, case)
    dtype = TENSOR_DTYPES[spec.dtype_of(case)]
    return spec.axes, "floating" if dtype.is_floating_point and dtype.itemsize in FLOATING else dtype


def _addable(kind: object) -> bool:
    return not (isinstance(kind, torch.dtype) and kind.is_floating_point)


def read_bytes(op: Operation, case: Case, name: str) -> int:
    """The bytes of a tensor that the pass reads. A share is rounded down to 8 bytes, the largest element."""
    whole, read = op.tensor(name, case).bytes(case), op.bytes_read(case, name)
    return whole if read == whole else max(min(whole, 8), read // 8 * 8)


def add(sources: Sequence[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
    """Write the sum of the sources to a result of their shape, with as few passes over memory as torch has."""
    if not sources:
        return out.zero_()
    if len(sources) == 1:
        return out.copy_(sources[0])
    if len(sources) == 2 and sources[0].dtype is sources[1].dtype is out.dtype:
        return torch.add(*sources, out=out) if out.is_floating_point() else torch.bitwise_xor(*sources, out=out)
    if not out.is_floating_point():
        return out.copy_(reduce(xor, sources))
    return out.copy_(reduce(torch.add, (tensor.float() for tensor in sources)))


def check(case: Case, inputs: Tensors, outputs: Tensors) -> Accuracy:
    """The verdict on the results of the yardstick for these inputs. Each element must have the right bits; NaN may be any NaN."""
    op = operation(case.op)
    one = op.pass_of(case)
    tensors = {
        name: tensor.detach() for name, tensor in zip((*one.inputs, *one.outputs), (*inputs[: len(one.inputs)], *outputs), strict=True)
    }
    for step in steps(op, case):
        for group in step.sums:
            for rows in row_chunks(case):
                part = ... if op.is_whole(case) else rows
                sources = [tensors[name][part] for name in group.sources]
                if not all(_moved(sources, tensors[name][part]) for name in group.results):
                    return Accuracy(Grade.WRONG, math.inf, UNMOVED)
    return Accuracy(Grade.YARDSTICK, 0.0, "")


def _moved(sources: Sequence[torch.Tensor], got: torch.Tensor) -> bool:
    want = add(sources, torch.empty_like(got))
    same = _bits(got) == _bits(want)
    return bool((same | (got.isnan() & want.isnan()) if got.is_floating_point() and got.element_size() > 1 else same).all())


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements as integers of their size."""
    return tensor.view(INTEGERS[tensor.element_size()])
