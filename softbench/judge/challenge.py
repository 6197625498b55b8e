"""A challenge: many calls on inputs that only the judge knows, and what their outputs must be.

All inputs of a challenge differ. They come from seeds of the operating system, and some of their rows are structured. Their memory is new.
The plugin's process gets it with a request, which the judge sends after it has started its clock. So the plugin cannot compute before, and
no output serves for two calls.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeVar

import torch

from softbench.core.case import Case
from softbench.core.outcome import Accuracy, Grade
from softbench.ops.check import bounds, excess
from softbench.ops.dtypes import TENSOR_DTYPES
from softbench.ops.error_terms import Bounded
from softbench.ops.operation import TensorSpec
from softbench.ops.registry import is_whole, numerics, of_rows, operation, rows as rows_in
from softbench.worker.checking import any_dim, output_checks
from softbench.worker.checking.pre_check import verify_outputs
from softbench.worker.checking.row_sample import WHOLE_ELEMENTS
from softbench.worker.failures import out_of_memory
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
"""Calls of a challenge of a problem whose outputs are read and compared as a whole, at most."""
OTHERS_SECONDS = 0.5
"""The comparison of the others in a challenge ends after so long: the reference is replayed for each."""
OTHERS_FACTOR = 2.0
"""Of the others an element may be off by so many bounds. So many more are compared, and what was not computed is further off."""
SECRET = random.SystemRandom()
Place = TypeVar("Place")


@dataclass(frozen=True, slots=True)
class Challenge:
    """The inputs of some calls in a new block, and what only the judge knows of them."""

    case: Case
    inputs: shared_memory.Block
    bytes: int
    numbers: list[int]
    """The calls whose rows are compared: all, or of a problem some, as a whole. No other process knows them."""
    rows: torch.Tensor
    """For each of them: the numbers of the rows that are read before the clock stops; on the device."""
    truth: list[Tensors]
    """For each of them: the inputs of these rows."""
    others: dict[int, Tensors]
    """The other calls, each with its inputs."""
    elements: list[torch.Tensor]
    """For each output: the numbers of its elements that are read of each of the others; on the device. Nobody else knows them."""
    chosen: int
    """The call whose output is read as a whole, after the clock has stopped."""
    whole: Tensors
    """Its inputs."""

    def compared(self, places: Sequence[Place]) -> list[Place]:
        """The places of the calls whose rows are compared, of those of all calls."""
        return [places[number] for number in self.numbers]

    def of_others(self, places: Sequence[Place]) -> list[Place]:
        """The places of the other calls, of those of all calls."""
        return [places[number] for number in self.others]

    def verdict(self, outputs: Sequence[Tensors], whole: Tensors) -> Accuracy:
        """The worst accuracy.

        Args:
            outputs: for each call of `numbers` the rows of its outputs, then for each of the others some elements of them.
            whole: the outputs of the chosen call.
        """
        rows, elements = outputs[: len(self.numbers)], outputs[len(self.numbers) :]
        found = [self._of_chosen(whole), *(self._verified(*part) for part in self._parts(rows))]
        worst = max(found, key=lambda accuracy: (accuracy.grade is Grade.WRONG, accuracy.grade is Grade.UNVERIFIED, accuracy.rank))
        return worst if worst.grade in (Grade.WRONG, Grade.UNVERIFIED) else self._wrong_other(elements) or worst

    def forget(self) -> None:
        """Free the copies of inputs, which are as large as the inputs, before the next challenge is drawn."""
        self.truth.clear()
        self.others.clear()

    def _wrong_other(self, outputs: Sequence[Tensors]) -> Accuracy | None:
        """What is wrong with the first wrong one of the other calls, in random order until OTHERS_SECONDS are over; None if nothing is."""
        end, names = time.monotonic() + OTHERS_SECONDS, list(operation(self.case.op).outputs(self.case))
        for place, given in SECRET.sample([*enumerate(self.others.values())], len(self.others)):
            try:
                all_bounds = bounds(numerics(self.case.op), self.case, given)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                return None  # those that are compared as a whole had the memory
            for name, numbers, read, bounded in zip(names, self.elements, outputs[place], all_bounds, strict=True):
                if found := _far(name, numbers[place], read, bounded):
                    return found
            if time.monotonic() > end:
                return None
        return None

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
    others: dict[int, Tensors] = {}
    whole: Tensors = ()
    for call, shares in enumerate(tensors_of_calls(block.bytes, layout, each, case, calls)):
        given = any_dim.make(case, SECRET.getrandbits(62), device)
        structured = _structured(case, given, specs, device) if call in hard and not is_whole(case) else []
        for tensor, shared in zip(given, shares, strict=True):
            shared.copy_(tensor.detach())
        if call in compared:
            numbers.append(rows := _chosen_rows(case, structured, count))
            truth.append(any_dim.rows_of(case, given, torch.tensor(rows, device=device)))
        else:
            others[call] = tuple(tensor.detach() for tensor in given)
        whole = tuple(tensor.detach() for tensor in given) if call == chosen else whole
    elements = _elements_of_others(case, calls, len(others), device)
    return Challenge(case, block, calls * each, compared, torch.tensor(numbers, device=device), truth, others, elements, chosen, whole)


def _elements_of_others(case: Case, calls: int, others: int, device: torch.device) -> list[torch.Tensor]:
    """For each output: random numbers of its elements for each of so many calls, or all numbers of a small one."""
    generator = torch.Generator(device)
    generator.manual_seed(SECRET.getrandbits(32))
    sizes, found = [prod(spec.shape(case)) for spec in operation(case.op).outputs(case).values()], []
    for size in sizes if others else ():
        most = max(1, READ_ELEMENTS[case.device] // (calls * len(sizes)))
        every = torch.arange(size, device=device).expand(others, size)
        found.append(every if size <= most else torch.randint(size, (others, most), generator=generator, device=device))
    return found


def _far(name: str, numbers: torch.Tensor, read: torch.Tensor, bounded: Bounded) -> Accuracy | None:
    """What is wrong with the elements of these numbers of an output that were read; None if each is within OTHERS_FACTOR bounds."""
    expected, flat = bounded.expected.reshape(-1), bounded.expected.double().flatten().clone()
    flat[numbers] = read.double()
    out = flat.view(bounded.expected.shape)
    over = excess(bounded.counted(out), bounded.expected, bounded.loosest(out)).view(-1)[numbers]
    if not over.numel() or (peak := over.max().item()) <= OTHERS_FACTOR:
        return None
    place = int(over.argmax().item())
    where = ", ".join(str(one.item()) for one in torch.unravel_index(numbers[place], bounded.expected.shape[1:]))
    told = f" is {read[place].item():.6g} and should be {expected[numbers[place]].item():.6g}"
    return Accuracy.wrong(f"{name}[{where}]{told}" + (f": {peak:.3g} x the bound" if peak < math.inf else ""))


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

    def elements(self, drawn: Challenge, places: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """For each output: the elements of the block that are read, rows of each call or elements of a problem's other calls.

        The places are those of all calls, and valid.
        """
        some, found = drawn.of_others(places) if is_whole(self.case) else drawn.compared(places), []
        for output, (_, spec) in enumerate(self.layout if some else ()):
            size = TENSOR_DTYPES[spec.dtype_of(self.case)].itemsize
            index = drawn.elements[output] if is_whole(self.case) else _elements(self.case, spec, drawn.rows)
            starts = torch.tensor([call[output] // size for call in some], device=index.device)
            found.append(index + starts.view(-1, *[1] * (index.dim() - 1)))
        return found

    def read(self, drawn: Challenge, places: Sequence[Sequence[int]], elements: Sequence[torch.Tensor]) -> list[Tensors]:
        """For each call what `Challenge.verdict` takes: copies of whole outputs of a problem, and of these elements."""
        whole = [self.whole(call) for call in drawn.compared(places)] if is_whole(self.case) else []
        dtypes = [TENSOR_DTYPES[spec.dtype_of(self.case)] for _, spec in self.layout if elements]
        found = [self._gathered(dtype, index) for dtype, index in zip(dtypes, elements, strict=True)]
        return [*whole, *zip(*found, strict=True)]

    def _gathered(self, dtype: torch.dtype, index: torch.Tensor) -> torch.Tensor:
        """Copies of elements of the block; those of one byte are read as bytes, because torch indexes fp8 on some devices only."""
        return (self.block.bytes[index] if dtype.itemsize == 1 else self.block.bytes.view(dtype)[index]).view(dtype)

    def whole(self, call: Sequence[int]) -> Tensors:
        """Copies of the outputs of a call."""
        return tuple(
            shared_memory.typed(self.block.bytes, at, spec.shape(self.case), TENSOR_DTYPES[spec.dtype_of(self.case)]).clone()
            for at, (_, spec) in zip(call, self.layout, strict=True)
        )


def _elements(case: Case, spec: TensorSpec, rows: torch.Tensor) -> torch.Tensor:
    """The elements of rows in a contiguous tensor: (calls, rows, columns), or (calls, rows) if a row is an element."""
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
