"""What the timed calls work on: several sets of inputs in turn, changed before every batch, and the outputs of some calls kept and checked.

An output that a backend kept from before is right only while its input is. So before each batch one set gets other values, and in the
other some rows, or columns of some rows, are put into each other's places (no sum over the tensor changes), both behind the back of torch's
count of writes; the sets lie at different addresses; and of two calls, which nobody knew beforehand to be looked at, the rows
that changed and others are copied when the batch is over, outputs and inputs, to be compared with float64 when there is time for it. What
changed may lie there while other workers are timed: so some of the rows that will be looked at are changed once more when the batch begins.
Which, and how much of them, is left to chance: who looks up an output by something of the input is to find one that is wrong by now.

With a warm L2 there is one set: another would push it out. Profiles take the sets as they are, and nobody looks at their outputs.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import torch

from softbench.core.case import Case, Direction
from softbench.core.outcome import Accuracy, Grade
from softbench.ops.softmax import inputs
from softbench.worker import output_checks as contract
from softbench.worker.async_work import AsyncWorkWatch

Tensors = tuple[torch.Tensor, ...]
Judge = Callable[[Case, Tensors, Tensors], Accuracy]

CHANGED_ELEMENTS = {"cpu": 2**16, "cuda": 2**24}
"""Of a tensor, at most, before a batch; milliseconds either way."""
CHECKED_ELEMENTS = {"cpu": 2**14, "cuda": 2**20}
"""Of an output, about: of a kept call, so many."""
MOST_ROWS = 512  # that are chosen one by one
FEW = 8  # of so many rows one is exchanged at most
CHANGED = "changed its input"
APART = 1.25  # each time an output is kept, the next is so much later at most: the last one lies in the last third of all calls


class RotatingInputs:
    """The inputs of a case's timed calls."""

    def __init__(self, case: Case, given: Tensors, call: Callable[..., Any], *, overwrites: bool) -> None:
        """`given` is the first set; `overwrites`: a call's output is lost with the next call, so only the very last can be checked."""
        self.case, self.function, self.overwrites = case, call, overwrites
        self.sets = [given]
        self.random = random.Random(os.urandom(16))  # nobody can foresee it, and it is quick
        self.turns = 0
        self.kept: dict[int, Any] = {}
        """The latest output kept of each set, until it is collected."""
        self.latest = 0
        """The set of the last call."""
        self.watch: AsyncWorkWatch | None = None
        """Over a batch; asked whenever an output is kept, as a quick thread has ended when the batch has."""
        self.left = ""
        """What it said, of the calls since the last renewal."""
        self._rows: list[torch.Tensor] = []
        self._truth: list[Tensors] = []
        self._collected: dict[int, tuple[str, Tensors, Tensors]] = {}
        """Of a set how its kept output is misformed, or else the output's rows; and its inputs' rows."""
        self._wrong = ""
        """What is wrong whatever the outputs' values are, in words."""

    def widen(self) -> None:
        """Take a second set of inputs, if the memory is there."""
        if len(self.sets) > 1:
            return
        try:
            self.sets.append(tuple(tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in self.sets[0]))
        except (RuntimeError, MemoryError):  # an allocator that refuses; the timed calls go on with one set
            return

    def renew(self) -> Callable[[], Any]:
        """Change all sets in place, and return the call to time."""
        self.kept, self._rows, self._truth, self._collected, self.left = {}, [], [], {}, ""
        self._wrong = ""
        for index, tensors in enumerate(self.sets):
            if (self.turns + index) % 2 == 0:
                changed: Sequence[int] = self._refill(tensors)
            else:
                changed = self._exchange(tensors, range(self.case.M), min(self.case.M // FEW, self._most_rows()))
            rows = self._to_check(changed)
            self._rows.append(rows)
            self._truth.append(self._looked_at(index))
        self.turns += 1
        return self._body()

    def unwatched(self) -> Callable[[], Any]:
        """Calls on the sets as they are, one after the other, whose outputs nobody looks at."""
        function, turn = self.function, cycle(self.sets)
        return lambda: function(*next(turn))

    def stir(self) -> None:
        """Change some of the rows that will be looked at, right before the batch: nobody has them ready who worked ahead."""
        for index, (tensors, rows) in enumerate(zip(self.sets, self._rows, strict=False)):  # a set may have come since they were renewed
            if not self._as_renewed(index, self._looked_at(index)):
                self._wrong = f"in a timed call: {CHANGED}"  # by a thread, since they were renewed
                return
            self._exchange(tensors, rows.tolist(), len(rows) // FEW)
            self._truth[index] = self._looked_at(index)

    def collect(self) -> None:
        """Copy what is to be compared, right after the batch: nobody can finish it, or put it back, before it is looked at."""
        both = self.case.direction is Direction.BOTH
        alive: list[torch.Tensor] = []
        for index in [self.latest] if self.overwrites else sorted(self.kept):
            if index in self.kept:
                outputs, given = self.kept[index] if both else (self.kept[index],), self._looked_at(index)
                wrong = contract.misformed(self.sets[index], outputs, expected=2 if both else 1) if given else CHANGED
                alive += () if wrong else outputs
                self._collected[index] = wrong, () if wrong else tuple(out.detach()[self._rows[index]] for out in outputs), given
        if not self.overwrites and contract.shared(alive):
            self._wrong = contract.SHARED
        self.kept.clear()  # the batch's calls have it, too

    def verify(self, judge: Judge) -> Accuracy | None:
        """The worst verdict on the outputs that were collected; None where the batch made none, or was verified before."""
        if self._wrong:
            return Accuracy(Grade.WRONG, float("inf"), self._wrong)
        worst: Accuracy | None = None
        for index in self._collected:
            found = self._verdict(index, judge)
            if worst is None or found.grade is Grade.WRONG or found.worst > worst.worst:
                worst = found
            if found.grade is Grade.WRONG:
                break
        self._collected = {}
        return worst

    def _body(self) -> Callable[[], Any]:
        """Calls the function on one set after the other; keeps the outputs of two neighbouring calls now and then."""
        function, sets, kept, uniform = self.function, self.sets, self.kept, self.random.uniform
        count, turn, due = len(sets), 0, 0
        every = self.overwrites

        def body() -> Any:
            nonlocal turn, due
            place = turn % count
            out = function(*sets[place])
            if turn >= due and self.watch:
                self.left = self.left or self.watch.left()
            if turn >= due or every:
                kept[place] = out
                self.latest = place
                if turn > due:
                    due = turn + 1 + int(turn * uniform(0, APART - 1))
            turn += 1
            return out

        return body

    def _refill(self, tensors: Tensors) -> range:
        """Fresh values in a block of rows; all of them where the tensor is not large."""
        M = max(1, min(self.case.M, CHANGED_ELEMENTS[self.case.device] // self.case.N))
        first = self.random.randrange(self.case.M - M + 1)
        fresh = inputs.make(replace(self.case, M=M), self.random.getrandbits(31), tensors[0].device)
        for tensor, values in zip(tensors, fresh, strict=True):
            tensor.data[first : first + M] = values.detach()
        return range(first, first + M)

    def _exchange(self, tensors: Tensors, among: Sequence[int], most: int) -> list[int]:
        """Some of these rows put into each other's places, or neighbouring columns of them; as many as `most`, mostly fewer."""
        whole = len(among) > 1 and self.random.random() < 0.5
        least = 2 if whole else 1
        rows = self.random.sample(among, self._small(least, max(least, most)))
        length = self._small(min(2, self.case.N), self.case.N)
        first = self.random.randrange(self.case.N - length + 1)
        shift = self.random.randint(1, max(1, length - 1))
        places = torch.tensor(rows, device=tensors[0].device)
        for tensor in tensors:
            if whole:
                tensor.data[places] = tensor.data[places.roll(1)]
            else:
                tensor.data[places, first : first + length] = tensor.data[places, first : first + length].roll(shift, 1)
        return rows

    def _small(self, least: int, most: int) -> int:
        """A number whose logarithm is uniform."""
        return min(most, int(math.exp(self.random.uniform(math.log(least), math.log(most + 1)))))

    def _to_check(self, changed: Sequence[int]) -> torch.Tensor:
        """Some of the rows that changed, and some others."""
        most = self._most_rows()
        rows = set(self.random.sample(changed, min(len(changed), most)))
        rows |= set(self.random.sample(range(self.case.M), min(self.case.M, 1 + most // 4)))
        return torch.tensor(sorted(rows), device=self.sets[0][0].device)

    def _looked_at(self, index: int) -> Tensors:
        """Copies of the rows to check of a set; none where it has not its shape any more."""
        if any(tuple(tensor.shape) != (self.case.M, self.case.N) for tensor in self.sets[index]):
            return ()
        return tuple(tensor.detach()[self._rows[index]] for tensor in self.sets[index])

    def _as_renewed(self, index: int, rows: Tensors) -> bool:
        return bool(rows) and all(map(contract.same, rows, self._truth[index]))

    def _most_rows(self) -> int:
        return max(1, min(MOST_ROWS, CHECKED_ELEMENTS[self.case.device] // self.case.N))

    def _verdict(self, index: int, judge: Judge) -> Accuracy:
        truth, (wrong, outputs, given) = self._truth[index], self._collected[index]
        if not wrong and not (self._as_renewed(index, given) and self._as_renewed(index, self._looked_at(index))):  # then, and still
            wrong = CHANGED
        if wrong:
            return Accuracy(Grade.WRONG, float("inf"), f"in a timed call: {wrong}")
        found = judge(replace(self.case, M=len(self._rows[index])), truth, outputs)
        return (
            found
            if found.grade is not Grade.WRONG
            else replace(found, detail=f"in a timed call, on values it had not seen: {found.detail}")
        )
