"""The check that a case has to pass before its first result: its own call, on structured values and then on normal ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from softbench.core.case import Case
from softbench.core.outcome import Accuracy, Grade
from softbench.ops import vacuous, yardstick
from softbench.ops.check_case import See
from softbench.ops.registry import file_of, is_whole, numerics, of_rows, operation, rows as rows_in
from softbench.plugins.traits import is_yardstick, reuses_output
from softbench.worker.checking import any_dim, output_checks, row_sample
from softbench.worker.failures import out_of_memory
from softbench.worker.guarding import caller_state
from softbench.worker.guarding.async_work import AsyncWorkWatch
from softbench.worker.timing import timers

if TYPE_CHECKING:
    from softbench.worker.guarding.tamper_guard import TamperGuard

Tensors = tuple[torch.Tensor, ...]

DRAWN_ROWS = 4096
"""Rows that `Values.drawn` gets, at most."""
POISONED = 2**14
"""Elements of tensors whose later calls get poisoned memory, too, at most."""
ROWS_OF_A_KIND = 2
"""Structured rows of each kind, at least, if the rows are not long."""


@dataclass(slots=True)
class PreCheck:
    """One backend's callable on one case's tensors."""

    case: Case
    call: Callable[..., Any]
    given: tuple[torch.Tensor, ...]
    backend: Any
    guard: TamperGuard | None
    at_most: int = row_sample.MOST_ROWS
    """Rows that are compared."""
    peak_bytes: int | None = None
    """Device memory that a call takes; None on the CPU."""

    def run(self, seed: int, earlier: int | None = None) -> Accuracy:
        """Calls on structured rows, and one on normal values, all in the old memory. Outputs of the first and last call are alive together.

        The inputs hold normal values afterwards. `earlier` is the seed of the values of the build, whose output may have been kept.
        """
        if reason := numerics(self.case.op).accepted(self.case, self.given):
            return Accuracy(Grade.UNVERIFIED, float("nan"), reason)
        first, hard = self.structured(seed)
        if hard.grade is Grade.WRONG and first and earlier is not None and self._of_earlier_input(first, earlier):
            return replace(hard, detail=f"returned the output of an earlier input: {hard.detail}")
        if hard.grade in (Grade.WRONG, Grade.UNVERIFIED):
            return hard
        any_dim.refill(self.case, self.given, seed)
        if not numerics(self.case.op).drawn(any_dim.rows_of(self.case, self.given, slice(DRAWN_ROWS))):
            return Accuracy(Grade.UNVERIFIED, float("nan"), "the inputs are not normal: the plugin replaced operators that draw them")
        if not is_yardstick(self.backend) and (reason := vacuous_bound(self.case, self.given)):
            return Accuracy(Grade.UNVERIFIED, float("nan"), reason)
        second, reason = self._once()
        if reason:
            return Accuracy.wrong(reason)
        normal = self._compared(self.given, second, seed)
        if normal.grade is not Grade.WRONG and not reuses_output(self.backend) and output_checks.shared((*first, *second)):
            return Accuracy.wrong(output_checks.SHARED)
        return normal if normal.grade in (Grade.WRONG, Grade.UNVERIFIED) else max(normal, hard, key=lambda found: found.rank)

    def structured(self, seed: int, dealt: Sequence[Sequence[str]] = ()) -> tuple[Tensors, Accuracy]:
        """The first call's outputs, and the verdict on structured rows. A case of few rows gets several calls, so that it has each kind.

        `dealt` has the kinds of the rows of each call.
        """
        if len(dealt) > 1 and is_whole(self.case):
            every = [self.structured(seed + number, [one]) for number, one in enumerate(dealt)]
            return max(every, key=lambda found: (found[1].grade is Grade.WRONG, *found[1].rank))
        values = numerics(self.case.op)
        kinds = 0 if is_whole(self.case) else len(values.kinds(self.case))
        calls = len(dealt) or max(1, -(-min(ROWS_OF_A_KIND * kinds, row_sample.most_rows(self.case)) // rows_in(self.case)))
        many = of_rows(self.case, calls * self.case.M)
        apart = calls > 1 or bool(self.case.shape and not is_whole(self.case))
        any_dim.refill(self.case, self.given, seed + 1)
        given = values.make(many, seed + 1, self.given[0].device) if apart else self.given
        names = values.make_structured(given, many, seed, list(chain.from_iterable(dealt)))
        first: Tensors = ()
        asked: list[Tensors] = []
        # Allocated before the calls, so that a backend that takes the memory is not blamed for what the check lacks.
        due = output_checks.forms(many) if calls > 1 else ()
        gathered = tuple(torch.empty(form.shape, dtype=form.dtype, device=given[0].device) for form in due)
        for call in range(calls):
            place = slice(call * self.case.M, (call + 1) * self.case.M)
            if apart:
                any_dim.write(self.case, self.given, any_dim.rows_of(many, given, place))
            results, reason = self._once(output_checks.NO_RESULT) if call == 0 else self._again()
            if reason:
                return (), Accuracy.wrong(reason)
            first = first or results
            if calls > 1 and self.case.shape:  # rows share tensors, so theirs may differ from those that were written
                asked.append(tuple(rows.clone() for rows in any_dim.rows_of(self.case, self.given, slice(None))))
            for all_rows, out in zip(gathered, any_dim.rows_of_outputs(self.case, results, slice(None)), strict=bool(gathered)):
                all_rows[place].copy_(out)
        if not names and output_checks.long_reference(self.case):  # normal values, and those of the next call are compared
            return first, Accuracy(Grade.PASS, 0.0, "")
        if calls == 1:
            return first, self._compared(self.given, results, seed, () if is_whole(self.case) else names)
        if asked:
            given = tuple(torch.cat(rows) for rows in zip(*asked, strict=True))
        found = self._compared(given, gathered, seed, names, many)
        told = f"; rows of {calls} calls, {self.case.M} in each" if found.detail and found.grade is Grade.WRONG else ""
        return first, replace(found, detail=found.detail + told)

    def _of_earlier_input(self, outputs: Tensors, seed: int) -> bool:
        """True if the outputs are right for the inputs of this seed; false also if there is no memory for these."""
        with suppress(RuntimeError, MemoryError):
            before = any_dim.make(self.case, seed, self.given[0].device)
            return self._compared(before, outputs, seed).grade not in (Grade.WRONG, Grade.UNVERIFIED)
        return False

    def compared_once(self, seed: int, kinds: Sequence[str] = ()) -> Accuracy:
        """The verdict on one call on the present values, whose rows have these kinds."""
        results, reason = self._once()
        return Accuracy.wrong(reason) if reason else self._compared(self.given, results, seed, kinds)

    def _once(self, stale: float = math.nan) -> tuple[Tensors, str]:
        """One call into memory that holds a stale value, and how it broke the contract."""
        device, due = self.case.device, output_checks.forms(self.case)
        kept, written = tuple(tensor.detach().clone() for tensor in self.given), output_checks.versions(self.given)
        output_checks.poison(due, self.given, stale)
        before = caller_state.of(self.given)  # what it changes is put right only after the call
        held_bytes = self._reset_peak()
        watch = AsyncWorkWatch(device)
        outputs = self.call(*self.given)
        if self.guard and (left := self.guard.active()):  # a mode would see what follows
            return (), left
        if held_bytes is not None and self.peak_bytes is None:  # what follows allocates too
            self.peak_bytes = torch.cuda.max_memory_allocated() - held_bytes
        late = watch.unfinished(outputs)
        timers.synchronize(device)
        results = output_checks.as_tuple(outputs, due)
        reason = output_checks.breach(self.given, kept, results, due, written=written) or late
        results = results if reason else output_checks.settled(self.given, kept, results, due)
        reason = reason or before.changed(lambda: self.call(*self.given)) or (self.guard.replaced() if self.guard else "")
        return ((), reason) if reason else (results, "")

    def _again(self) -> tuple[Tensors, str]:
        """One more call; only the form of its outputs is checked."""
        due = output_checks.forms(self.case)
        if self.case.M * self.case.N <= POISONED:
            output_checks.poison(due, self.given, output_checks.NO_RESULT)
        results = output_checks.as_tuple(self.call(*self.given), due)
        reason = output_checks.misformed(self.given, results, due)
        return ((), reason) if reason else (results, "")

    def _compared(self, given: Tensors, outputs: Tensors, seed: int, kinds: Sequence[str] = (), case: Case | None = None) -> Accuracy:
        """The verdict on all rows, or on a sample (`softbench.worker.checking.row_sample`). `kinds`: as in `Values.check`."""
        case = case or self.case
        numbers = row_sample.rows_to_compare(case, seed, max(1, len(set(kinds))), self.at_most)
        if numbers is None or is_yardstick(self.backend):
            return verify_outputs(self.backend, of_rows(case, case.M), *_rows(case, given, outputs, slice(None)), kinds=kinds)
        if not kinds:
            with one_thread(case.device):
                numbers = sorted({*numbers, *row_sample.suspects(case, given, outputs)})
        places = torch.tensor(numbers, device=given[0].device)
        return verify_outputs(self.backend, case.of_rows(len(numbers)), *_rows(case, given, outputs, places), kinds=kinds, numbers=numbers)

    def _reset_peak(self) -> int | None:
        """Bytes that are allocated now, the peak from here on; None on the CPU."""
        if self.case.device != "cuda":
            return None
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()


def _rows(case: Case, given: Tensors, outputs: Tensors, which: torch.Tensor | slice) -> tuple[Tensors, Tensors]:
    return any_dim.rows_of(case, given, which), any_dim.rows_of_outputs(case, outputs, which)


def vacuous_bound(case: Case, given: Tensors) -> str:
    """What the bound of a user's operation accepts beside right outputs (`softbench.ops.vacuous`); empty if nothing."""
    if not file_of(operation(case.op).name) or operation(case.op).whole:
        return ""
    if is_whole(case):
        return vacuous.accepted(numerics(case.op), case, given, case)
    numbers = vacuous.row_numbers(case).to(given[0].device)
    with one_thread(case.device):
        return vacuous.accepted(numerics(case.op), case.of_rows(len(numbers)), any_dim.rows_of(case, given, numbers), case)


@contextmanager
def one_thread(device: str) -> Iterator[None]:
    """On the CPU torch uses one thread: several workers compare at once, and there threads wait long for each other."""
    threads = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if device == "cpu":
            torch.set_num_threads(threads)


def verify_outputs(
    backend: Any,
    case: Case,
    given: Tensors,
    results: Tensors,
    see: See | None = None,
    kinds: Sequence[str] = (),
    numbers: Sequence[int] | None = None,
) -> Accuracy:
    """The verdict on outputs of a right form; `unverified` where the reference finds no memory. For the rest see `Values.check`."""
    try:
        with one_thread(case.device):
            if is_yardstick(backend):
                return yardstick.check(case, given, results)
            return numerics(case.op).check(case, given, results, see, kinds, numbers)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return Accuracy(Grade.UNVERIFIED, float("nan"), "the float64 reference needs more memory than is free: choose a smaller shape")
