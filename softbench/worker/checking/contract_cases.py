"""The check cases that need more than one call of normal values: structured rows, held outputs, many calls, two streams, a huge tensor."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from softbench.core.case import Case
from softbench.core.outcome import Accuracy, Grade
from softbench.ops.registry import is_whole, numerics, of_rows
from softbench.ops.structured_rows import deal
from softbench.plugins.traits import interpreted, reuses_output
from softbench.worker.checking import any_dim, output_checks
from softbench.worker.checking.any_dim import rows_of, rows_of_outputs
from softbench.worker.checking.growth import Growth
from softbench.worker.checking.probes import OVERWRITTEN
from softbench.worker.guarding import caller_state
from softbench.worker.guarding.async_work import AsyncWorkWatch

if TYPE_CHECKING:
    from softbench.worker.checking.pre_check import PreCheck
    from softbench.worker.guarding.tamper_guard import TamperGuard

Tensors = tuple[torch.Tensor, ...]

HELD = 3
"""Outputs that are held."""
LATER_CALLS = 40
"""Calls while outputs are held: a ring of so many buffers, less HELD, is found."""
MANY_CALLS, MANY_SECONDS = 1000, 0.25
LATE_CALLS, LATE_SECONDS = 10_400, 0.2
"""Calls of `many calls` and of `late calls`, and seconds of the thread on the processor, at most."""
BETWEEN = 20
"""Of `late calls` one in so many has an output that is compared."""
MANY_WALL_SECONDS = 5.0
"""Seconds of `many calls`, at most: a call may sleep."""
BUSY = 0.5
"""Share of the calls that an idle machine would make, below which a CPU makes the others with one thread. On a busy one each call waits for
torch's other threads, and spins meanwhile."""
STREAM_CALLS = 8
EDGE_ROWS = 64
"""Rows at either end, and around the 2^31st element, of a huge tensor."""


@dataclass(frozen=True, slots=True)
class ContractCase:
    """A backend's callable on a check case's tensors."""

    backend: Any
    case: Case
    call: Callable[..., Any]
    given: Tensors
    guard: TamperGuard | None
    seed: int
    pre_check: PreCheck
    """Of this callable."""
    verify: Callable[..., Accuracy]
    """`softbench.worker.checking.pre_check.verify_outputs`."""

    def judge(self, way: str) -> Accuracy:
        """The verdict on a way of calling, one of WAYS."""
        before = caller_state.of_first(self.given)
        self.call(*self.given)  # a first call may compile, tune and draw random numbers
        found = Accuracy.wrong(reason) if (reason := before.changed()) else WAYS[way](self)
        reason = before.changed() if found.grade is not Grade.WRONG else ""
        return Accuracy.wrong(reason) if reason else found

    def once(self) -> Accuracy:
        """One call."""
        return self.pre_check.compared_once(self.seed)

    def structured(self) -> Accuracy:
        """Calls on structured rows (`softbench.ops.structured_rows.deal`); one under an interpreter."""
        kinds, source = list(numerics(self.case.op).kinds(self.case)), random.Random(self.seed)
        most_calls = 1 if interpreted(self.backend) else sys.maxsize
        return self.pre_check.structured(self.seed, deal(kinds, self.case.M, self.case.N, source, most_calls))[1]

    def held(self) -> Accuracy:
        """Outputs must stay as they are while later calls run, and so must the caller's state."""
        before = caller_state.of(self.given)
        other = self._other()
        held: list[torch.Tensor] = []
        copies: list[torch.Tensor] = []
        for number in range(HELD):
            results = self.results(*self.given)
            held += [out.detach() for out in results] if number else results  # a view keeps memory alive too
            del results
            copies += [out.clone() for out in held[len(copies) :]]
        due = len(held) // HELD
        for _ in range(LATER_CALLS):
            self.call(*other)
        if reason := before.changed(lambda: self.call(*self.given)):
            return Accuracy.wrong(reason)
        if not all(map(output_checks.same, held, copies)) and not reuses_output(self.backend):
            return Accuracy.wrong(OVERWRITTEN)
        return self._verified(self.given, tuple(copies[:due]))

    def many(self) -> Accuracy:
        """Of many equal calls, the output that differs most from the first must be right, too."""
        return self._many(MANY_CALLS, MANY_SECONDS, apart=1)

    def late(self) -> Accuracy:
        """As `many`, for more calls: one output in BETWEEN is compared. Nothing may grow with each call."""
        leaks = 0  # a driver with many launches in flight may grow once, and what is bounded stops later
        for _ in range(5):
            growth = Growth(self.case.device, BETWEEN)
            found = self._many(LATE_CALLS // BETWEEN, LATE_SECONDS, apart=BETWEEN, goes_on=growth.called)
            leak = growth.leak()
            if found.grade is Grade.WRONG or not (leak or leaks) or (growth.measured and not leak):
                break
            leaks += bool(leak)  # too few calls, as on a busy machine, say nothing
            if leaks == 3:
                return Accuracy.wrong(leak)
        return found

    def _many(self, most: int, seconds: float, *, apart: int, goes_on: Callable[[], bool] = lambda: True) -> Accuracy:
        due = output_checks.forms(self.case)
        first = tuple(out.clone() for out in self.results(*self.given))
        worst = [out.clone() for out in first]
        peaks = [torch.zeros((), device=out.device) for out in first]

        def look() -> None:
            for place, out in enumerate(result.detach() for result in output_checks.as_tuple(self.call(*self.given), due)):
                if self.case.device == "cpu" and torch.equal(out, first[place]):
                    continue  # on a GPU this would wait for every call
                peak = (out - first[place]).abs().amax().float().nan_to_num(nan=torch.inf)
                worse = peak > peaks[place]
                worst[place] = torch.where(worse, out, worst[place])
                peaks[place] = torch.where(worse, peak, peaks[place])

        def body() -> None:
            for _ in range(apart - 1):
                self.call(*self.given)
            look()

        made, idle = _repeated(body, most, seconds, goes_on)
        if self.case.device == "cpu" and made < BUSY * idle and (threads := torch.get_num_threads()) > 1:
            torch.set_num_threads(1)
            try:
                _repeated(body, most - made, seconds, goes_on)
            finally:
                torch.set_num_threads(threads)
        found = self._verified(self.given, tuple(worst))
        return replace(found, detail=f"once in many calls: {found.detail}") if found.grade is Grade.WRONG else found

    def streams(self) -> Accuracy:
        """Calls on two streams at once must not share memory, unless the backend declares that its calls share their output."""
        if reuses_output(self.backend):
            return Accuracy(Grade.PASS, 0.0, "")
        # The rows that are copied. The streams wait for what is written before them.
        edge = torch.arange(min(EDGE_ROWS, self.case.M), device=self.given[0].device)
        sides = [(self.given, torch.cuda.Stream()), (self._other(), torch.cuda.Stream())]
        for _, stream in sides:
            stream.wait_stream(torch.cuda.current_stream())
        outputs: list[tuple[Tensors, Tensors]] = []
        for _ in range(STREAM_CALLS):
            for given, stream in sides:
                with torch.cuda.stream(stream):
                    outputs.append((given, rows_of_outputs(self.case, self.results(*given), edge)))
        torch.cuda.synchronize()
        few = of_rows(self.case, len(edge))
        found = [self.verify(self.backend, few, rows_of(self.case, given, edge), outs) for given, outs in outputs]
        worst = max(found, key=lambda one: (one.grade is Grade.WRONG, one.worst))
        return replace(worst, detail=f"with calls on two streams: {worst.detail}") if worst.grade is Grade.WRONG else worst

    def sampled(self) -> Accuracy:
        """One call on a huge tensor. Only rows at its ends and around the 2^31st element are copied and compared."""
        M, N = self.case.M, self.case.N
        middle = min(M - 1, 2**31 // N)
        around = {*range(EDGE_ROWS), *range(middle - EDGE_ROWS, middle + EDGE_ROWS), *range(M - EDGE_ROWS, M)}
        numbers = sorted(row for row in around if 0 <= row < M)
        places = torch.tensor(numbers, device=self.given[0].device)
        kept, written = tuple(rows.clone() for rows in rows_of(self.case, self.given, places)), output_checks.versions(self.given)
        stale = torch.full_like(self.given[0], float("nan"))
        del stale
        before, watch = caller_state.of(self.given), AsyncWorkWatch(self.case.device)
        due = output_checks.forms(self.case)
        outs = output_checks.as_tuple(self.call(*self.given), due)
        reason = (
            output_checks.misformed(self.given, outs, due)
            or watch.unfinished(tuple(edge for out in outs for edge in (out[:EDGE_ROWS], out[-EDGE_ROWS:])))
            or before.changed(lambda: self.call(*self.given))
        )
        if not reason and (
            output_checks.versions(self.given) != written or not all(map(output_checks.same, rows_of(self.case, self.given, places), kept))
        ):
            reason = output_checks.CHANGED
        if reason := reason or (self.guard.replaced() if self.guard else ""):
            return Accuracy.wrong(reason)
        found = rows_of_outputs(self.case, outs, places)
        return self.verify(self.backend, self.case.of_rows(len(numbers)), kept, found, numbers=numbers)

    def results(self, *given: torch.Tensor) -> Tensors:
        """The outputs of a call."""
        return output_checks.as_tuple(self.call(*given), output_checks.forms(self.case))

    def _other(self) -> Tensors:
        """Other inputs: the same rows in another order, or another draw."""
        if is_whole(self.case):
            return numerics(self.case.op).make(self.case, self.seed + 1, self.given[0].device)
        order = torch.arange(self.case.M, device=self.given[0].device).roll(1)
        other = tuple(tensor.detach().clone() for tensor in self.given)
        any_dim.write(self.case, other, rows_of(self.case, self.given, order))
        return tuple(mine.requires_grad_(tensor.requires_grad) for mine, tensor in zip(other, self.given, strict=True))

    def _verified(self, given: Tensors, outputs: Tensors) -> Accuracy:
        if reason := output_checks.misformed(given, outputs, output_checks.forms(self.case)):
            return Accuracy.wrong(reason)
        rows = rows_of(self.case, given, slice(None)), rows_of_outputs(self.case, outputs, slice(None))
        return self.verify(self.backend, of_rows(self.case, self.case.M), *rows)


def _repeated(call: Callable[[], object], most: int, seconds: float, goes_on: Callable[[], bool]) -> tuple[int, float]:
    """Call until the seconds of the thread, or MANY_WALL_SECONDS, are used.

    Returns the number of calls, and how many an idle machine would make in that time.
    """
    clocks, limits = (time.thread_time, time.monotonic), (seconds, MANY_WALL_SECONDS)
    begin = last = [clock() for clock in clocks]
    quickest, made = list(limits), 0
    while made < most and all(now - old <= limit for now, old, limit in zip(last, begin, limits, strict=True)) and goes_on():
        call()
        now = [clock() for clock in clocks]
        quickest = [min(one, new - old) for one, new, old in zip(quickest, now, last, strict=True)]
        last, made = now, made + 1
    return made, min(most, *(limit / max(one, 1e-9) for limit, one in zip(limits, quickest, strict=True)))


WAYS: dict[str, Callable[[ContractCase], Accuracy]] = {
    "once": ContractCase.once,
    "structured": ContractCase.structured,
    "held": ContractCase.held,
    "many": ContractCase.many,
    "late": ContractCase.late,
    "streams": ContractCase.streams,
    "sampled": ContractCase.sampled,
}
"""By `softbench.ops.check_case.CheckCase.repeat`."""
