"""The inputs of timed calls: several sets in turn, which change before each batch. Outputs of random calls are kept and checked.

An output that a backend stored earlier is wrong as soon as the input changes. Therefore:

- Before each batch one set gets new values. In the other set some rows, or columns of some rows, are exchanged, so that no sum over the
  tensor changes. Torch's version counter shows neither change.
- The sets have different addresses.
- On a GPU two calls of a batch are chosen at random. After the batch, their changed rows and some others are copied, with the inputs. Later
  they are compared with the float64 reference.
- Other workers may be timed between the change and the batch. So some of the rows to be compared change once more when the batch begins.
- Before a few calls, on a CPU before each, two values of a row change places (`softbench.worker.checking.probes`).
- Where the reference takes long, the first two batches or three compare one output, the kept one and a probe's in turn. Of later batches
  a random quarter does.
- The rows and their number are random. A backend that finds a stored output by a property of its input then returns a wrong one.

With a warm L2 there is one set, because a second one would evict it. Profiles use the sets unchanged, and their outputs are not checked.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, cycle
from typing import Any

import torch

from softbench.core.case import Case
from softbench.core.outcome import Accuracy, Grade
from softbench.ops import scores
from softbench.ops.registry import is_whole, numerics, operation
from softbench.plugins.backend import Call
from softbench.worker.checking import any_dim, output_checks
from softbench.worker.checking.probes import EqualProbes, Probes

Tensors = tuple[torch.Tensor, ...]
Judge = Callable[[Case, Tensors, Tensors], Accuracy]

CHANGED_ELEMENTS = {"cpu": 2**16, "cuda": 2**24}
"""Elements of a tensor that change before a batch, at most; this takes milliseconds."""
CHECKED_ELEMENTS = {"cpu": 2**14, "cuda": 2**20}
"""Elements of a kept output that are compared, about."""
MAX_ROWS = 512  # rows that are chosen one by one, at most
MAX_PROBES = 8  # that are compared
CLOCK_NS = time.perf_counter_ns  # bound before a plugin can patch it
FEW = 8  # at most one row in so many is exchanged
LATER_COMPARED = 0.25
"""The share of later batches whose outputs are compared, where the reference takes long."""
APART = 1.25  # largest ratio of two kept calls' numbers, so that the last kept call is in the last third of all


class TimedCalls:
    """A batch's calls on a CPU. Its clock runs only during the backend's calls: what is done between two of them takes none of its time."""

    def __init__(self, function: Call, sets: Sequence[Tensors], probes: EqualProbes) -> None:
        self.function, self.sets, self.probes = function, sets, probes
        self.turn = self.spent_ns = 0
        self.readings_ns: list[int] = []
        """What the clock said each time. A timer reads it before and after each sample."""

    def __call__(self) -> object:
        turn, probes, clock = self.turn, self.probes, CLOCK_NS
        given = self.sets[turn % len(self.sets)]
        probes.before(turn)
        began = clock()
        out = self.function(*given)
        self.spent_ns += clock() - began
        probes.after(turn, out)
        self.turn = turn + 1
        return out

    def clock(self) -> float:
        """Seconds of all calls so far."""
        self.readings_ns.append(self.spent_ns)
        return self.spent_ns / 1e9

    def samples_us(self, count: int, calls: int) -> list[float]:
        """Microseconds of a call in each of the last samples, which have so many calls, by the readings.

        What a timer makes of them passes through functions that a plugin may replace for a moment.
        """
        begins, ends = self.readings_ns[-2 * count :: 2], self.readings_ns[1 - 2 * count :: 2]
        return [max(round((end - begin) / calls / 1e3, 3), 1e-3) for begin, end in zip(begins, ends, strict=True)]


class RotatingInputs:
    """The inputs of a case's timed calls. Rows and columns change in the tensors that have them (`softbench.ops.operation.TensorSpec`)."""

    def __init__(self, case: Case, given: Tensors, call: Call, *, overwrites: bool, turns: int = 0) -> None:
        """`given` is the first set. With `overwrites`, the next call overwrites an output, so only the last output is checked.

        `turns` is the number of the first batch: of a new case 0 or 1, by chance.
        """
        self.case, self.function, self.overwrites = case, call, overwrites
        self.specs, self.due = operation(case.op).inputs(case), output_checks.forms(case)
        self.whole, self.in_place = is_whole(case), {form.becomes for form in self.due if form.becomes is not None}
        self.sets = [given]
        self.random = random.Random(os.urandom(16))  # a backend cannot predict it, and it is fast
        self.turns = turns
        self.kept: dict[int, Any] = {}
        """The latest output kept of each set, until it is collected."""
        self.latest = 0
        """The set of the last call."""
        self._rows: list[torch.Tensor] = []
        self._truth: list[Tensors] = []
        self._collected: list[tuple[int, str, Tensors, Tensors]] = []
        """Set, why its kept output is malformed, the rows of that output, and the rows of its inputs."""
        self.probes: Probes | None = None
        """Those of the last batch."""
        self.calls: Callable[[], int] = lambda: 0
        """The number of calls of the last batch, so far."""
        self._wrong = ""
        """An error that does not depend on the values of the outputs; empty if there is none."""

    def widen(self) -> None:
        """Allocate a second set of inputs, if there is enough memory."""
        if len(self.sets) > 1:
            return
        try:
            self.sets.append(tuple(tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in self.sets[0]))
        except (RuntimeError, MemoryError):  # there is too little memory; the timed calls use one set
            return

    def renew(self) -> Callable[[], object]:
        """Change all sets in place, and return the call to time."""
        self.probes = None  # its draws may take gigabytes
        self.kept, self._rows, self._truth, self._collected = {}, [], [], []
        self._wrong = ""
        for index, tensors in enumerate(self.sets):
            if self.whole:
                self._truth.append(self._draw(self.case))
                continue
            if (self.turns + index) % 2 == 0:
                changed: Sequence[int] = self._refill(tensors)
            else:
                changed = self._exchange(tensors, range(self.case.M), min(self.case.M // FEW, self._most_rows()))
            rows = self._to_check(changed)
            self._rows.append(rows)
            self._truth.append(self._looked_at(index))
        self.turns += 1
        return self._body()

    def unwatched(self) -> Callable[[], object]:
        """Calls on the unchanged sets in turn; their outputs are not checked."""
        function, turn = self.function, cycle(self.sets)
        return lambda: function(*next(turn))

    def stir(self) -> None:
        """Change some of the rows to be compared, right before the batch, so that outputs computed in advance are wrong.

        The inputs of a problem get all their new values here.
        """
        if self.whole:
            for tensors, values in zip(self.sets, self._truth, strict=False):
                for tensor, fresh in zip(tensors, values, strict=True):
                    tensor.data.copy_(fresh.data)
            return
        for index, (tensors, rows) in enumerate(zip(self.sets, self._rows, strict=False)):  # a set may have been added after the renewal
            if not self._as_renewed(index, self._looked_at(index)):
                self._wrong = f"in a timed call: {output_checks.CHANGED}"  # a thread changed it after the renewal
                return
            self._exchange(tensors, rows.tolist(), len(rows) // FEW)
            self._truth[index] = self._looked_at(index)

    def collect(self) -> None:
        """Copy the rows to be compared, right after the batch, so that a backend can neither finish nor restore them later."""
        if self.probes:
            self.probes.release()
        alive: list[torch.Tensor] = []
        if self.whole:
            self._collect_whole()
        for index in [self.latest] if self.overwrites else sorted(self.kept):
            if index in self.kept:
                outputs, given = output_checks.as_tuple(self.kept[index], self.due), self._looked_at(index)
                wrong = output_checks.misformed(self.sets[index], outputs, self.due) if given else output_checks.CHANGED
                alive += () if wrong else outputs
                copied = () if wrong else self._copied(outputs, index)
                self._collected.append((index, wrong, copied, given))
        if not self.overwrites and output_checks.shared(alive):
            self._wrong = output_checks.SHARED
        self._look_at_inputs()
        self.kept.clear()  # the calls of the batch refer to the same dictionary

    def _collect_whole(self) -> None:
        """One output of a problem is compared as a whole, and none of calls that change their inputs: probes give these their values."""
        if self.case.device != "cpu" and not all(self._as_renewed(index, self.sets[index]) for index in range(len(self._truth))):
            self._wrong = f"in a timed call: {output_checks.CHANGED}"
        for index in list(self.kept):  # the calls of the batch refer to the same dictionary
            if self.in_place or self._wrong or index != self.latest:
                del self.kept[index]

    def verify(self, judge: Judge) -> Accuracy | None:
        """The worst verdict on the collected outputs; None if there are none, or if they were verified before."""
        self._look_at_inputs()
        if self._wrong:
            return Accuracy.wrong(self._wrong)
        worst: Accuracy | None = None
        of_kept, of_probes = self._judges(judge)
        for found in chain((self._verdict(of_kept, *collected) for collected in self._collected), self._probed(of_probes)):
            if worst is None or found.grade is Grade.WRONG or found.rank > worst.rank:
                worst = found
            if found.grade is Grade.WRONG:
                break
        self._collected = []
        return worst

    def _judges(self, judge: Judge) -> tuple[Judge, Judge]:
        """What compares kept outputs, and probes. If the reference takes long and both are there, at least one compares nothing."""
        if not (output_checks.long_reference(self.case) and self._collected and self.probes and self.probes.done):
            return judge, judge
        if self.turns > 3 and self.random.random() > LATER_COMPARED:
            return _not_compared, _not_compared
        return (judge, _not_compared) if self.turns % 2 else (_not_compared, judge)

    def _look_at_inputs(self) -> None:
        """On a CPU no outputs are kept that tell whether the inputs are as they were renewed."""
        if self.case.device == "cpu" and not all(self._as_renewed(index, self._looked_at(index)) for index in range(len(self._truth))):
            self._wrong = self._wrong or f"in a timed call: {output_checks.CHANGED}"

    def _probed(self, judge: Judge) -> Iterator[Accuracy]:
        """The verdict on the probes, if there were any."""
        if self.probes and (found := self.probes.verify(judge)):
            yield found

    def _body(self) -> Callable[[], object]:
        """Calls the function on the sets in turn, and sometimes keeps the outputs of two consecutive calls."""
        function, sets, kept, uniform = self.function, self.sets, self.kept, self.random.uniform
        most = 1 if self.whole else min(MAX_PROBES, self._most_rows())
        truth = (*self._truth, self._draw(self.case)) if self.whole else ()
        if self.case.device == "cpu":
            equal = self.probes = EqualProbes(self.case, sets, self.random, most, overwrites=self.overwrites, truth=truth)
            timed = TimedCalls(function, tuple(sets), equal)
            self.calls = lambda: timed.turn
            return timed
        probes = self.probes = Probes(self.case, sets, self.random, most, overwrites=self.overwrites, truth=truth)
        count, turn, due = len(sets), 0, 0
        every = self.overwrites

        def body() -> object:
            nonlocal turn, due
            place = turn % count
            probing = turn >= probes.at
            if probing:
                probes.before(turn)
            out = function(*sets[place])
            probed = probing and probes.after(turn, out)
            if probed:
                if every:
                    kept.clear()  # its row differs from the input, as does the memory of all outputs
            elif turn >= due or every:
                kept[place] = out
                self.latest = place
                if turn > due:
                    due = turn + 1 + int(turn * uniform(0, APART - 1))
            turn += 1
            return out

        self.calls = lambda: turn
        return body

    def _refill(self, tensors: Tensors) -> range:
        """Writes new values into a block of rows, or into all rows of a small tensor."""
        M = max(1, min(self.case.M, CHANGED_ELEMENTS[self.case.device] // self.case.N))
        first = self.random.randrange(self.case.M - M + 1)
        fresh = self._draw(self.case.of_rows(M))
        for tensor, values, spec in zip(tensors, fresh[: len(tensors)], self.specs, strict=True):
            any_dim.rows(self.case, spec, tensor)[slice(first, first + M) if spec.has_rows else ...] = values.detach()
        scores.clear_unseen(self.case, tensors, torch.arange(first, first + M, device=tensors[0].device))
        return range(first, first + M)

    def _draw(self, case: Case) -> Tensors:
        return numerics(case.op).make(case, self.random.getrandbits(31), self.sets[0][0].device)

    def _copied(self, outputs: Tensors, index: int) -> Tensors:
        """The rows of a kept output that are compared, or all of it."""
        if self.whole:
            return tuple(out.detach().clone() for out in outputs)
        return any_dim.rows_of_outputs(self.case, outputs, self._rows[index])

    def _exchange(self, tensors: Tensors, among: Sequence[int], most: int) -> list[int]:
        """Exchanges some of these rows, or neighbouring columns of them: at most `most` rows, usually fewer."""
        whole = len(among) > 1 and self.random.random() < 0.5
        least = 2 if whole else 1
        rows = self.random.sample(among, self._small(least, max(least, most)))
        length = self._small(min(2, self.case.N), self.case.N)
        first = self.random.randrange(self.case.N - length + 1)
        shift = self.random.randint(1, max(1, length - 1))
        places = torch.tensor(rows, device=tensors[0].device)
        for tensor, spec in zip(tensors, self.specs, strict=True):
            by_row = any_dim.rows(self.case, spec, tensor)
            if whole and spec.has_rows:
                by_row[places] = by_row[places.roll(1)]
            elif not whole and spec.has_columns:
                by_row[places, first : first + length] = by_row[places, first : first + length].roll(shift, 1)
        scores.clear_unseen(self.case, tensors, places)
        return rows

    def _small(self, least: int, most: int) -> int:
        """A number whose logarithm is uniform."""
        return min(most, int(math.exp(self.random.uniform(math.log(least), math.log(most + 1)))))

    def _to_check(self, changed: Sequence[int]) -> torch.Tensor:
        """The indices of some changed rows and of some other rows."""
        most = self._most_rows()
        rows = set(self.random.sample(changed, min(len(changed), most)))
        rows |= set(self.random.sample(range(self.case.M), min(self.case.M, 1 + most // 4)))
        return torch.tensor(sorted(rows), device=self.sets[0][0].device)

    def _looked_at(self, index: int) -> Tensors:
        """Copies of the rows of a set that are checked; none if a tensor has lost its shape."""
        tensors = self.sets[index]
        if any(tuple(tensor.shape) != spec.shape(self.case) for tensor, spec in zip(tensors, self.specs, strict=True)):
            return ()
        if self.whole:
            return tensors
        rows = self._rows[index]
        found = zip(any_dim.rows_of(self.case, tensors, rows), any_dim.row_specs(self.case), strict=True)
        return tuple(part if spec.has_rows else part.clone() for part, spec in found)

    def _as_renewed(self, index: int, rows: Tensors) -> bool:
        places = [place for place in range(len(rows)) if place not in self.in_place]
        return bool(rows) and all(output_checks.same(rows[place].detach(), self._truth[index][place]) for place in places)

    def _most_rows(self) -> int:
        return max(1, min(MAX_ROWS, CHECKED_ELEMENTS[self.case.device] // self.case.N))

    def _verdict(self, judge: Judge, index: int, wrong: str, outputs: Tensors, given: Tensors) -> Accuracy:
        truth = self._truth[index]
        if not wrong and not (self._as_renewed(index, given) and self._as_renewed(index, self._looked_at(index))):  # at the batch, and now
            wrong = output_checks.CHANGED
        if wrong:
            return Accuracy.wrong(f"in a timed call: {wrong}")
        found = judge(self.case if self.whole else self.case.of_rows(len(self._rows[index])), truth, outputs)
        return (
            found
            if found.grade is not Grade.WRONG
            else replace(found, detail=f"in a timed call, on values that no earlier call had: {found.detail}")
        )


def _not_compared(case: Case, given: Tensors, outputs: Tensors) -> Accuracy:
    return Accuracy(Grade.PASS, 0.0, "")
