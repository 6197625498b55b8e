"""A challenge: many calls on inputs that only the judge knows, and what their outputs must be.

All inputs of a challenge differ. They come from seeds of the operating system, and some of their rows are structured. Their memory is new.
The plugin's process gets it with a request, which the judge sends after it has started its clock. So the plugin cannot compute before, and
no output serves for two calls.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeVar

import torch

from softbench.core.case import Case
from softbench.core.outcome import Accuracy, Grade
from softbench.ops.dtypes import TENSOR_DTYPES
from softbench.ops.operation import TensorSpec
from softbench.ops.registry import is_whole, numerics, of_rows, operation, rows as rows_in
from softbench.worker.checking import any_dim, output_checks
from softbench.worker.checking.pre_check import verify_outputs
from softbench.worker.checking.row_sample import WHOLE_ELEMENTS
from softbench.worker.judged import shared_memory
from softbench.worker.judged.memory import Tensors, input_layout, output_layout, tensors_of_calls

READ_ELEMENTS = {"cpu": 2**17, "cuda": 2**21}
"""Elements of all outputs that are read before the clock stops, about."""
READ_ROWS = 8
"""Rows of each output that are read, at most."""
STRUCTURED_CALLS = 8
"""Calls of a challenge that get structured rows, at most: making them takes milliseconds each."""
STRUCTURED_ELEMENTS = {"cpu": 2**20, "cuda": 2**24}
"""Elements of the rows that are drawn for structured rows, about."""
WHOLE_COMPARED = 8
"""Calls of a challenge of a problem that are compared, at most. Each is compared as a whole, and the reference replayed for each."""
SECRET = random.SystemRandom()
Place = TypeVar("Place")


@dataclass(frozen=True, slots=True)
class Challenge:
    """The inputs of some calls in a new block, and what only the judge knows of them."""

    case: Case
    inputs: shared_memory.Block
    bytes: int
    numbers: list[int]
    """The calls that are compared: all, or of a problem some. No other process knows them."""
    rows: torch.Tensor
    """For each of them: the numbers of the rows that are read before the clock stops; on the device."""
    truth: list[Tensors]
    """For each of them: the inputs of these rows."""
    chosen: int
    """The call whose output is read as a whole, after the clock has stopped."""
    whole: Tensors
    """Its inputs."""

    def compared(self, places: Sequence[Place]) -> list[Place]:
        """The places of the calls that are compared, of those of all calls."""
        return [places[number] for number in self.numbers]

    def verdict(self, outputs: Sequence[Tensors], whole: Tensors) -> Accuracy:
        """The worst accuracy.

        Args:
            outputs: for each compared call, the rows of its outputs.
            whole: the outputs of the chosen call.
        """
        found = [self._of_chosen(whole), *(self._verified(*part) for part in self._parts(outputs))]
        return max(found, key=lambda accuracy: (accuracy.grade is Grade.WRONG, accuracy.grade is Grade.UNVERIFIED, accuracy.rank))

    def _parts(self, outputs: Sequence[Tensors]) -> list[tuple[Tensors, Tensors, torch.Tensor]]:
        """Inputs, outputs and row numbers that are compared together: all calls if each input belongs to rows, else each call."""
        if not all(spec.has_rows for spec in operation(self.case.op).inputs(self.case)):
            return list(zip(self.truth, outputs, self.rows, strict=True))
        given, results = (tuple(torch.cat(parts) for parts in zip(*tensors, strict=True)) for tensors in (self.truth, outputs))
        return [(given, results, self.rows.reshape(-1))]

    def _verified(self, given: Tensors, outputs: Tensors, numbers: torch.Tensor) -> Accuracy:
        return verify_outputs(None, of_rows(self.case, len(numbers)), given, outputs, numbers=numbers.tolist())

    def _of_chosen(self, outputs: Tensors) -> Accuracy:
        """The accuracy of the chosen call, of all its rows or of some."""
        layout, each = input_layout(self.case)
        now = tensors_of_calls(self.inputs.bytes[self.chosen * each :], layout, each, self.case, 1)[0]
        if not all(map(output_checks.same, now, self.whole)):
            return Accuracy.wrong(output_checks.CHANGED)
        there = rows_in(self.case)
        rows = min(there, max(1, WHOLE_ELEMENTS[self.case.device] // self.case.N))
        numbers = _random_rows(there, rows).to(outputs[0].device)
        given, results = any_dim.rows_of(self.case, self.whole, numbers), any_dim.rows_of_outputs(self.case, outputs, numbers)
        return self._verified(given, results, numbers)


def draw(case: Case, calls: int) -> Challenge:
    """A new challenge. Raises as `shared_memory.create`, or RuntimeError if there is too little memory to draw the values."""
    block = shared_memory.create(calls * input_layout(case)[1], case.device, read_only=True)
    try:
        return _drawn(case, calls, block)
    except BaseException:
        block.close()
        raise


def _drawn(case: Case, calls: int, block: shared_memory.Block) -> Challenge:
    device, specs = torch.device(case.device), operation(case.op).inputs(case)
    layout, each = input_layout(case)
    count = rows_to_read(case, calls)
    kinds = max(1, len(numerics(case.op).kinds(case)))
    hard = SECRET.sample(range(calls), max(1, min(calls, STRUCTURED_CALLS, STRUCTURED_ELEMENTS[case.device] // (kinds * case.N))))
    chosen = SECRET.randrange(calls)
    compared = sorted(SECRET.sample(range(calls), min(calls, WHOLE_COMPARED))) if is_whole(case) else list(range(calls))
    numbers: list[list[int]] = []
    truth: list[Tensors] = []
    whole: Tensors = ()
    for call, shares in enumerate(tensors_of_calls(block.bytes, layout, each, case, calls)):
        given = any_dim.make(case, SECRET.getrandbits(62), device)
        structured = _structured(case, given, specs, device) if call in hard and not is_whole(case) else []
        for tensor, shared in zip(given, shares, strict=True):
            shared.copy_(tensor.detach())
        if call in compared:
            numbers.append(rows := _chosen_rows(case, structured, count))
            truth.append(any_dim.rows_of(case, given, torch.tensor(rows, device=device)))
        whole = tuple(tensor.detach() for tensor in given) if call == chosen else whole
    return Challenge(case, block, calls * each, compared, torch.tensor(numbers, device=device), truth, chosen, whole)


def _structured(case: Case, given: Tensors, specs: Sequence[TensorSpec], device: torch.device) -> list[int]:
    """Write structured rows into some places of the inputs; returns places of structured rows, in random order.

    If an input belongs to no row, all rows are structured, because such rows fit that input only. Then READ_ROWS places are returned.
    """
    values = numerics(case.op)
    if not all(spec.has_rows for spec in specs):
        few = case.of_rows(case.M)
        made = values.make(few, SECRET.getrandbits(62), device)
        values.make_structured(made, few, SECRET.getrandbits(31))
        any_dim.write(case, given, made)
        return SECRET.sample(range(case.M), min(case.M, READ_ROWS))
    few = case.of_rows(max(1, len(values.kinds(case))))
    made = values.make(few, SECRET.getrandbits(62), device)
    values.make_structured(made, few, SECRET.getrandbits(31))
    count = min(few.M, max(1, case.M // 4))
    places, taken = SECRET.sample(range(case.M), count), SECRET.sample(range(few.M), count)
    for spec, tensor, fresh in zip(specs, given, made, strict=True):
        any_dim.rows(case, spec, tensor)[torch.tensor(places, device=device)] = fresh.detach()[torch.tensor(taken, device=device)]
    return places


def rows_to_read(case: Case, calls: int) -> int:
    """How many rows of each output are read before the clock stops."""
    return max(1, min(READ_ROWS, rows_in(case), READ_ELEMENTS[case.device] // (calls * case.N)))


def _chosen_rows(case: Case, structured: list[int], count: int) -> list[int]:
    """Some of the structured rows, and random rows."""
    rows = structured[: -(-count // 2)]
    there = rows_in(case)
    others = SECRET.sample(range(there), min(there, 2 * count))
    return list(dict.fromkeys([*rows, *others]))[:count]


def _random_rows(M: int, count: int) -> torch.Tensor:
    """The numbers of `count` random rows of M, in order. Python's SystemRandom would take seconds for a million rows."""
    if count >= M:
        return torch.arange(M)
    return torch.randperm(M, generator=torch.Generator().manual_seed(SECRET.getrandbits(62)))[:count].sort().values


class OutputReader:
    """Reads rows of outputs of a challenge at once, from memory that other processes write."""

    def __init__(self, case: Case, calls: int, block: shared_memory.Block, size: int) -> None:
        """`block` has `size` bytes for outputs."""
        self.case, self.calls, self.block, self.size = case, calls, block, size
        self.layout = output_layout(case)[0]

    def valid(self, places: Sequence[Sequence[int]]) -> bool:
        """True if each output of each call lies in the block. The places come from the plugin's process."""
        if len(places) != self.calls or any(len(call) != len(self.layout) for call in places):
            return False
        ends = [(self.size - spec.bytes(self.case), TENSOR_DTYPES[spec.dtype_of(self.case)].itemsize) for _, spec in self.layout]
        return all(0 <= at <= end and at % size == 0 for call in places for at, (end, size) in zip(call, ends, strict=True))

    def elements(self, places: Sequence[Sequence[int]], rows: torch.Tensor) -> list[torch.Tensor]:
        """For each output: the elements of the block that these rows of each call at these places are. The places are valid."""
        found = []
        for output, (_, spec) in enumerate(self.layout):
            size = TENSOR_DTYPES[spec.dtype_of(self.case)].itemsize
            index = _elements(self.case, spec, rows)
            starts = torch.tensor([call[output] // size for call in places], device=rows.device)
            found.append(index + starts.view(-1, *[1] * (index.dim() - 1)))
        return found

    def read(self, elements: Sequence[torch.Tensor]) -> list[Tensors]:
        """For each call: copies of these elements of its outputs."""
        dtypes = [TENSOR_DTYPES[spec.dtype_of(self.case)] for _, spec in self.layout]
        found = [self.block.bytes.view(dtype)[index] for dtype, index in zip(dtypes, elements, strict=True)]
        return list(zip(*found, strict=True))

    def whole(self, call: Sequence[int]) -> Tensors:
        """Copies of the outputs of a call."""
        return tuple(
            shared_memory.typed(self.block.bytes, at, spec.shape(self.case), TENSOR_DTYPES[spec.dtype_of(self.case)]).clone()
            for at, (_, spec) in zip(call, self.layout, strict=True)
        )


def _elements(case: Case, spec: TensorSpec, rows: torch.Tensor) -> torch.Tensor:
    """The elements of rows in a contiguous tensor: (calls, rows, columns), or (calls, rows) if a row is an element. All of a problem's."""
    if is_whole(case):
        elements = torch.arange(prod(shape := spec.shape(case)), device=rows.device)
        return elements.view(1, *shape).expand(len(rows), *shape)
    if not case.shape and len(shape := spec.shape(case)) > 1:
        width = 1
        for extent in shape[1:]:
            width *= extent
        return (rows[..., None] * width + torch.arange(width, device=rows.device)).view(*rows.shape, *shape[1:])
    if not (case.shape and spec.has_columns):
        return rows
    inner = 1
    for extent in case.sizes[case.dim + 1 :]:
        inner *= extent
    first = rows // inner * (case.N * inner) + rows % inner
    return first[..., None] + torch.arange(case.N, device=rows.device) * inner
