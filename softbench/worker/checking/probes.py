"""Probes: calls of a batch before which two values of a row change places, and after which the row is copied at once.

Inputs are constant within a batch, and kept outputs are compared after it. So a backend could compute once a batch, or only while an output
is alive, or find an output by a few values. A probe detects that: an output of another call is wrong in the changed row, and one that is
filled in later is not filled in yet. The values change back after the call. Torch's version counter shows neither change.

The output of a probe is held over later calls, and its row is compared bit by bit then: a ring of buffers has overwritten it.

On a GPU a few calls are probes. On a CPU a backend could tell them by the time since its last call. So there the values change before each
call (`EqualProbes`), and the calls whose rows are copied are chosen after the call.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy
import torch

from softbench.core.case import Case, first_sees
from softbench.core.outcome import Accuracy, Grade
from softbench.core.text import micros
from softbench.ops import scores
from softbench.ops.registry import is_whole, of_rows, operation
from softbench.worker.checking import any_dim
from softbench.worker.checking.output_checks import CHANGED, SHARED, Form, as_tuple, forms, misformed, same, shared, span
from softbench.worker.guarding import active

Tensors = tuple[torch.Tensor, ...]
Judge = Callable[[Case, Tensors, Tensors], Accuracy]
Array: TypeAlias = "numpy.typing.NDArray[Any]"

HELD_CALLS = 11
"""Calls over which a probe's output is held."""
FIRST = 6
"""The number of the first call that may be a probe. do_bench estimates its number of calls from the first six."""
EARLIEST = 2
"""The first probe is among so many calls from there on."""
APART = (1.2, 2.2)
"""Ratio of two probes' numbers. Probes are rare in long batches, and one is in the last half."""
KEPT_SAMPLES = 0.5
"""Samples of calls with a probe are dropped if this share of the samples remains."""
MOST_COLUMNS = 16
"""Pairs of columns of a batch. A backend does not know them, so a few suffice."""
LONGER_CALLS = 40
"""On a CPU an output is held over so many more calls, at most: a backend cannot tell when its memory is free again."""
SPLICED = 512
"""Pairs of elements of a problem's tensor, of which one changes before a probe."""
COLUMNS_OF_A_CHANGE = 2048
MOST_CHANGED = 2**13
"""Rows that change before a call on a CPU: one for so many elements of a thread, and so many at most. It takes a twentieth of the call."""
NEAR = 8
"""Distance of two columns that change places, at most: each row then has them in one line of the cache."""
MOST_PAGES, READ_NS = 2**12, 2e5
"""Pages of an output that are read to see how long it takes, at most; and what any reading may take, in nanoseconds."""
CLOCK_NS = time.perf_counter_ns  # bound before a plugin can patch it
WORDS = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}
"""Types of an element by its bytes."""
INDEXES = ("int64", "int32", "bool")
"""Dtypes of inputs that are no result of a row's values."""
WHEN_READ = "its output seems to be computed when it is read"
CHANGED_ROW = "in a timed call, in a row that had just changed"
CHANGED_VALUES = "in a timed call, on values that had just changed"
OVERWRITTEN = "its output changed during later calls; a backend whose next call overwrites it on purpose declares reuses_output = True"


@dataclass(slots=True)
class Probe:
    """A probe and what was copied."""

    place: int
    """Its set of inputs."""
    row: int
    given: Tensors
    """The row of the inputs, right after the call; an input without rows as a whole."""
    outputs: Tensors
    """The row of the outputs, right after the call."""
    later: Tensors = ()
    """The row of the outputs, some calls later."""
    read_ns: float = 0.0
    """On a CPU: how long reading all of the outputs would take, by a byte of each page."""


class Probes:
    """The probes of one batch."""

    def __init__(
        self, case: Case, sets: Sequence[Tensors], source: random.Random, most: int, *, overwrites: bool, truth: Sequence[Tensors] = ()
    ) -> None:
        """`most`: probes that are compared with float64, at most, the last ones. With `overwrites` no output is held.

        `truth`: for a problem, the values of each set, and those of another draw.
        """
        self.case, self.sets, self.random, self.overwrites = case, sets, source, overwrites
        self.specs, self.due_outputs = operation(case.op).inputs(case), forms(case)
        self.done: deque[Probe] = deque(maxlen=most)
        self.turns: list[int] = []
        """The calls that did more than a call."""
        self.broken = ""
        self.held: tuple[int, Tensors, Probe] | None = None
        """A call's number from which on a held output is released, its outputs and its probe."""
        self.due = FIRST + source.randrange(EARLIEST)
        self.splices = Splices(case, sets, self.due_outputs, truth, source) if is_whole(case) else None
        self.at = self.due if case.N > 1 or self.splices else 2**62
        """The number of the next call with work to do. Nothing changes in rows of one element."""
        self._changed: tuple[int, int, torch.Tensor, Tensors] | None = None
        """Set, row and columns of the present change, and the values that were there."""
        device = sets[0][0].device
        pairs = [source.sample(range(case.N), 2) for _ in range(MOST_COLUMNS)] if case.N > 1 and not self.splices else [[0, 0]]
        self._columns = torch.tensor(pairs, device=device)
        self._flipped = self._columns.flip(1)

    def before(self, turn: int) -> None:
        """Release a held output, or change two values of a row, if it is time."""
        if not possible(self.case.device):
            return
        if self.held and turn >= self.held[0]:
            self.release()
            self.turns.append(turn)
        place = turn % len(self.sets)
        if turn < self.due or self._resized(place):
            self.at = self.due
            return
        if self.splices:
            self.splices.write(place)
            return
        row, pair = self.random.randrange(self.case.M), self.random.randrange(len(self._columns))
        rows = self._with_columns(place, row)
        values = tuple(tensor.index_select(0, self._columns[pair]) for tensor in rows)
        for tensor, old in zip(rows, values, strict=True):
            tensor.index_copy_(0, self._flipped[pair], old)
        scores.clear_unseen(self.case, self.sets[place], torch.arange(row, row + 1, device=self._columns.device))
        self._changed = place, row, self._columns[pair], values

    def after(self, turn: int, outputs: object) -> bool:
        """Copy the changed row of inputs and outputs, and change it back. True if the call was a probe."""
        if self.splices and self.splices.place is not None:
            place = self.splices.place
            if probe := self._copied(turn, place, self.splices.pair, outputs):
                self.done.append(probe)
            if not self._resized(place):
                self.splices.restore()
            self._next(turn)
            return True
        if self._changed is None:
            return False
        (place, row, columns, values), self._changed = self._changed, None
        if probe := self._copied(turn, place, row, outputs):
            self.done.append(probe)
        if not self._resized(place):
            for tensor, old in zip(self._with_columns(place, row), values, strict=True):
                tensor.index_copy_(0, columns, old)
        self._next(turn)
        return True

    def _next(self, turn: int) -> None:
        self.turns.append(turn)
        self.due = turn + HELD_CALLS + int(turn * (self.random.uniform(*APART) - 1))
        self.at = self.held[0] if self.held else self.due

    def _copied(self, turn: int, place: int, row: int, outputs: object) -> Probe | None:
        """A probe with the row as it is now, or the outputs of a problem, which are held from now on. None if something is broken."""
        given, results = self.sets[place], as_tuple(outputs, self.due_outputs)
        self.broken = self.broken or active.mode() or self._resized(place) or misformed(given, results, self.due_outputs)
        if self.broken or not isinstance(results, tuple | list):
            return None
        here, inputs, copied = slice(row, row + 1), tuple[torch.Tensor, ...](), tuple(map(torch.Tensor.detach, results))
        if not self.splices:
            inputs, copied = any_dim.rows_of(self.case, given, here), any_dim.rows_of_outputs(self.case, tuple(results), here)
        probe = Probe(place, row, tuple(tensor.clone() for tensor in inputs), tuple(out.clone() for out in copied))
        if not (self.overwrites or self.held or (self.splices and self.splices.in_place)):
            kept = tuple(map(torch.Tensor.detach, results)) if self.random.random() < 0.5 else tuple(results)  # views keep memory alive too
            self.held = turn + HELD_CALLS, kept, probe
        return probe

    def _resized(self, place: int) -> str:
        """`CHANGED` if an input has lost its shape, or an empty text."""
        lost = any(tuple(tensor.shape) != spec.shape(self.case) for tensor, spec in zip(self.sets[place], self.specs, strict=True))
        return CHANGED if lost else ""

    def _with_columns(self, place: int, row: int) -> list[torch.Tensor]:
        """Views of a row, of the inputs whose rows have N values."""
        given = zip(self.sets[place], self.specs, strict=True)
        return [any_dim.rows(self.case, spec, tensor)[row] for tensor, spec in given if spec.has_columns]

    def release(self) -> None:
        """Copy the row of the held output once more, and let it go."""
        if self.held:
            _, results, probe = self.held
            here = slice(probe.row, probe.row + 1)
            probe.later = tuple(out.clone() for out in any_dim.rows_of_outputs(self.case, results, here))
            self.held = None

    def without(self, samples: list[float], block: int, calls: int) -> list[float]:
        """The samples without those of calls that did more, if enough remain. The samples are of the last of so many calls."""
        touched = {len(samples) - 1 - (calls - 1 - turn) // max(1, block) for turn in self.turns}
        kept = [sample for place, sample in enumerate(samples) if place not in touched]
        return kept if len(kept) >= KEPT_SAMPLES * len(samples) and len(kept) > 2 else samples

    def verify(self, judge: Judge) -> Accuracy | None:
        """The verdict on the probes; None if there are none."""
        if self.broken:
            return Accuracy.wrong(f"in a timed call: {self.broken}")
        probes = list(self.done)
        self.done.clear()
        if not probes:
            return None
        if any(not same(late, soon) for probe in probes if probe.later for late, soon in zip(probe.later, probe.outputs, strict=True)):
            return Accuracy.wrong(f"in a timed call: {OVERWRITTEN}")
        if self.splices:
            found = [self._verdict(judge, [replace(probe, given=self.splices.values(probe.place, probe.row))]) for probe in probes]
            return max(found, key=lambda one: (one.grade is Grade.WRONG, *one.rank))
        groups: dict[int, list[Probe]] = {}
        for probe in probes:  # an input without rows is the same for all probes of a set
            groups.setdefault(0 if all(spec.has_rows for spec in self.specs) else probe.place, []).append(probe)
        verdicts = [self._verdict(judge, some) for some in groups.values()]
        return max(verdicts, key=lambda found: (found.grade is Grade.WRONG, *found.rank))

    def _verdict(self, judge: Judge, probes: Sequence[Probe]) -> Accuracy:
        """The verdict on probes that share the inputs without rows."""
        inputs = zip(*(probe.given for probe in probes), strict=True)
        given = tuple(
            torch.cat(rows) if spec.has_rows else rows[0] for spec, rows in zip(any_dim.row_specs(self.case), inputs, strict=True)
        )
        outputs = probes[0].outputs if self.splices else tuple(map(torch.cat, zip(*(probe.outputs for probe in probes), strict=True)))
        found = judge(of_rows(self.case, len(probes)), given, outputs)
        told = f"{CHANGED_VALUES if self.splices else CHANGED_ROW}: {found.detail}; is it stored, skipped or written later?"
        return replace(found, detail=told) if found.grade is Grade.WRONG else found


class Splices:
    """What a probe changes in the inputs of a case that is whole: a few elements of floating tensors, which get those of another draw.

    A tensor that is symmetric or sorted stays as it is, since a kernel may rely on that, and so does one with saved statistics. If no
    tensor can change so, or if a call changes
    its inputs, they get all values of a draw.
    """

    def __init__(self, case: Case, sets: Sequence[Tensors], due: Sequence[Form], truth: Sequence[Tensors], source: random.Random) -> None:
        *self.truth, self.other = truth
        self.sets, self.random = sets, source
        self.in_place = [form.becomes for form in due if form.becomes is not None]
        free = operation(case.op).free(case)
        self.places = {
            number: torch.tensor(source.choices(range(tensor.numel()), k=2 * SPLICED), device=tensor.device).view(SPLICED, 2)
            for number, tensor in enumerate(sets[0])
            if free[number] and _is_spliced(tensor) and not _linked(self.other[number])
        }
        """Numbers of elements that change, by the number of their tensor."""
        self.place: int | None = None
        """The set that is changed now."""
        self.pair = 0

    def write(self, place: int) -> None:
        """Change a set."""
        self.place, self.pair = place, self.random.randrange(SPLICED)
        for number in self.in_place if self.places else range(len(self.other)):
            self.sets[place][number].data.copy_(self.truth[place][number] if self.places else self.other[number])
        self._splice(self.sets[place], self.pair)

    def restore(self) -> None:
        """Give the set its values again."""
        assert self.place is not None
        place, self.place = self.place, None
        for number, tensor in enumerate(self.sets[place]):
            if number in self.in_place or not self.places:
                tensor.data.copy_(self.truth[place][number])
            elif number in self.places:
                at = self.places[number][self.pair]
                tensor.data.view(-1).index_copy_(0, at, self.truth[place][number].view(-1).index_select(0, at))

    def values(self, place: int, pair: int) -> Tensors:
        """What the inputs of a probe were."""
        if not self.places:
            return self.other
        given = tuple(tensor.clone() for tensor in self.truth[place])
        self._splice(given, pair)
        return given

    def _splice(self, given: Tensors, pair: int) -> None:
        for number, places in self.places.items():
            given[number].data.view(-1).index_copy_(0, places[pair], self.other[number].view(-1).index_select(0, places[pair]))


def _is_spliced(tensor: torch.Tensor) -> bool:
    """True if its elements can be exchanged one by one."""
    return tensor.is_floating_point() and tensor.element_size() > 1 and tensor.numel() > 1 and tensor.is_contiguous()


def _linked(tensor: torch.Tensor) -> bool:
    """True if the elements of a tensor depend on each other: it is symmetric or sorted."""
    if tensor.dim() > 1 and tensor.shape[-1] == tensor.shape[-2] and same(tensor, tensor.transpose(-1, -2)):
        return True
    return tensor.shape[-1] > 2 and all(map(_sorted, (tensor.view(-1, tensor.shape[-1])[:1], tensor)))  # a large one is seldom sorted


def _sorted(rows: torch.Tensor) -> bool:
    wide = rows.float()
    return bool((wide[..., 1:] >= wide[..., :-1]).all())


def _rows(tensor: torch.Tensor, dim: int) -> Array:
    """The elements of a tensor as words, the columns last, in its memory: torch's functions would take longer and leave traces."""
    moved = tensor.data.movedim(dim, -1)
    count = 1 + sum((size - 1) * stride for size, stride in zip(moved.shape, moved.stride(), strict=True))
    words = numpy.ctypeslib.as_array((WORDS[tensor.element_size()] * count).from_address(tensor.data_ptr()))
    return numpy.lib.stride_tricks.as_strided(words, moved.shape, [tensor.element_size() * stride for stride in moved.stride()])


class EqualProbes(Probes):
    """On a CPU: two columns change places before each call, by the same steps, and back after it.

    So nothing tells a backend which calls are compared, and no row is as it was; of short or many rows some are. The calls are random,
    and chosen only after their call: all calls of a batch are equally likely. Where no output has columns, the values of a column move by
    a row, because exchanged columns of a row change no sum.
    """

    def __init__(
        self, case: Case, sets: Sequence[Tensors], source: random.Random, most: int, *, overwrites: bool, truth: Sequence[Tensors] = ()
    ) -> None:
        """As `Probes`; `most` calls are compared."""
        super().__init__(case, sets, source, most, overwrites=overwrites, truth=truth)
        self.most, self.addresses = most, [tuple(map(torch.Tensor.data_ptr, tensors)) for tensors in sets]
        self._next_turn = 0
        """The number of the first call after one whose outputs are held."""
        self._now: tuple[int, int, Callable[[], None], Callable[[], object], object] | None = None
        """Set, row, what undoes the present change, and what tells changed values and told them before; None between calls."""
        if self.splices:
            return
        fixed = [spec for spec in self.specs if spec.has_rows and not spec.has_columns]  # sums of rows must stay right
        self._across = case.M > 1 and not any(spec.has_columns for spec in operation(case.op).outputs(case).values())
        self._across &= all(spec.dtype in INDEXES for spec in fixed)
        self._alone = bool(case.shape) and operation(case.op).is_causal
        self._per_row = COLUMNS_OF_A_CHANGE * torch.get_num_threads()
        dim = case.dim if case.shape else -1
        self._elements = [
            [_rows(tensor, dim) for spec, tensor in zip(self.specs, tensors, strict=True) if spec.has_columns] for tensors in sets
        ]

    def before(self, turn: int) -> None:
        """Let values change places."""
        if self.broken or self._moved(place := turn % len(self.sets)):
            return
        if self.splices:
            self.splices.write(place)
            self._now = place, self.splices.pair, self.splices.restore, int, 0
            return
        row, one, parts = self._drawn(place)
        kept = [part.copy() for part in parts]

        def restore() -> None:
            for part, values in zip(parts, kept, strict=True):
                part[...] = values

        for part, values in zip(parts, kept, strict=True):
            if self._across:
                part[1:], part[:1] = values[:-1], values[-1:]
            else:
                part[...] = values[..., ::-1]
        rows = self._elements[place][0]
        value = partial(rows.__getitem__, (*numpy.unravel_index(row, rows.shape[:-1]), one))
        self._now = place, row, restore, value, value()

    def after(self, turn: int, outputs: object) -> bool:
        """Copy the row of some calls, and let the values change back. False: no time of a call has a part of this."""
        if self._now is None:
            return False
        (place, row, undo, values, before), self._now = self._now, None
        if self._moved(place):
            return False
        if values() != before:
            self.broken = CHANGED
        if self.held and turn == self._next_turn and self._share(self.held[1], outputs):
            self.broken = SHARED
        if self.held and turn >= self.held[0]:
            self.release()
        chosen = self.random.random() * (turn + 1) < self.most
        read_ns = self._read_ns(outputs) if chosen else 0.0
        if chosen and (probe := self._copied(turn, place, row, outputs)):
            self.turns.append(turn)
            probe.read_ns = read_ns
            if self.held and self.held[0] == turn + HELD_CALLS:
                self.held = (self.held[0] + self.random.randrange(LONGER_CALLS), *self.held[1:])
                self._next_turn = turn + 1
            if len(self.done) == self.most:
                del self.done[self.random.randrange(self.most)]
            self.done.append(probe)
        undo()
        return False

    def late(self, call_ns: float) -> str:
        """Why outputs seem to be computed when they are read, in words; empty if not. `call_ns`: the mean of the batch's calls.

        To read a byte of each page takes far less than to write all of it, on as many threads.
        """
        read_ns = statistics.median(probe.read_ns for probe in self.done) if self.done else 0.0
        if read_ns <= torch.get_num_threads() * call_ns + READ_NS:
            return ""
        return f"{WHEN_READ}: a call took {micros(call_ns / 1e3)}, and reading a byte of each page of its output {micros(read_ns / 1e3)}"

    def _read_ns(self, outputs: object) -> float:
        """How long reading a byte of each page of the outputs takes, from some pages."""
        results, took = as_tuple(outputs, self.due_outputs), 0.0
        for out in results if isinstance(results, tuple | list) else ():
            if type(out) is not torch.Tensor or out.layout is not torch.strided or out.device.type != "cpu":
                continue
            start, end = span(out)
            if (pages := (end - start) // mmap.PAGESIZE) < 1:
                continue
            first, count = self.random.randrange(max(1, pages - MOST_PAGES)), min(pages, MOST_PAGES)
            memory = numpy.ctypeslib.as_array((ctypes.c_uint8 * (count * mmap.PAGESIZE)).from_address(start + first * mmap.PAGESIZE))
            began = CLOCK_NS()
            memory[:: mmap.PAGESIZE].max()
            took += (CLOCK_NS() - began) * pages / count
        return took

    def release(self) -> None:
        """As `Probes.release`. The rows are compared now, because a later probe may displace this one."""
        probe = self.held[2] if self.held else None
        super().release()
        if probe and not all(map(same, probe.later, probe.outputs)):
            self.broken = self.broken or OVERWRITTEN

    def _share(self, held: Tensors, outputs: object) -> bool:
        """True if these outputs share memory with held ones."""
        results = as_tuple(outputs, self.due_outputs)
        return not misformed(self.sets[0], results, self.due_outputs) and shared((*held, *results))

    def _moved(self, place: int) -> bool:
        """True if an input of a set has lost its memory, which must not be written then."""
        if tuple(map(torch.Tensor.data_ptr, self.sets[place])) != self.addresses[place]:
            self.broken = CHANGED
        return bool(self.broken)

    def _drawn(self, place: int) -> tuple[int, int, list[Array]]:
        """A random row, which sees two columns at least, its first column that changes, and of each input with columns what changes.

        The columns, two near each other or one, hardly ever recur. So an output that was stored with its input is of no use.
        """
        M, uniform = self.case.M, self.random.random
        row = next((row for row in (int(uniform() * M) for _ in range(4)) if self._seen(row) > 1), M - 1)
        seen = self._seen(row)
        apart = 1 + int(uniform() * min(NEAR, seen - 1))
        one = int(uniform() * (seen - apart)) if seen > apart else 0
        columns = slice(one, one + 1 if self._across else one + apart + 1, apart)
        return row, one, [rows[self._block(row, rows.shape[:-1])][..., columns] for rows in self._elements[place]]

    def _block(self, row: int, sizes: tuple[int, ...]) -> tuple[slice, ...]:
        """Rows around this one; all of an input without rows. Rows of a causal case see columns of their own: there it is the row alone."""
        if not sizes:
            return ()
        first, rest = sizes[0], math.prod(sizes[1:])
        at = row // rest % first
        if self._alone:
            return tuple(slice(int(place), int(place) + 1) for place in numpy.unravel_index(row % (first * rest), sizes))
        count = min(first, max(2, min(MOST_CHANGED, self.case.M * self.case.N // self._per_row) // rest))
        begin = min(max(0, at - self.random.randrange(count)), first - count)
        return (slice(begin, begin + count),)

    def _seen(self, row: int) -> int:
        """The columns that a row sees."""
        if not (self.case.shape and operation(self.case.op).is_causal):
            return self.case.N
        S, N = self.case.sizes[-2:]
        return min(N, row % S + first_sees(S, N))


def possible(device: str) -> bool:
    """False while a CUDA graph is captured or a profiler counts kernels: there a call must launch what the others launch."""
    return device != "cuda" or not (torch.cuda.is_current_stream_capturing() or torch.autograd._profiler_enabled())
