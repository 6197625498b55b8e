"""The check that a case has to pass before its first figure: its own call, on structured values and then on normal ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from softbench.core.case import Case, Direction
from softbench.core.outcome import Accuracy, Grade
from softbench.core.text import one_line
from softbench.ops.softmax import independent, inputs, tolerance
from softbench.plugins.traits import is_yardstick, reuses_output
from softbench.worker import output_checks, timers
from softbench.worker.async_work import AsyncWorkWatch
from softbench.worker.failures import out_of_memory
from softbench.worker.tamper_guard import TamperGuard


@dataclass(slots=True)
class PreCheck:
    """One backend's callable on one case's tensors."""

    case: Case
    call: Callable[..., Any]
    given: tuple[torch.Tensor, ...]
    backend: Any
    guard: TamperGuard | None
    peak_bytes: int | None = None
    """Device memory that a call takes; None on the CPU."""

    def run(self, seed: int) -> Accuracy:
        """Two calls, each on new values in the old memory. The first gets structured rows, and its output stays alive beside the second's.

        The inputs hold normal values afterwards.
        """
        inputs.refill(self.given, self.case, seed + 1)
        first, hard = self._once(inputs.make_adversarial(self.given, self.case, seed))
        if hard.grade in (Grade.WRONG, Grade.UNVERIFIED):
            return hard
        inputs.refill(self.given, self.case, seed)
        if not independent.drawn(self.given):
            return Accuracy(Grade.UNVERIFIED, float("nan"), "the inputs are not normal: the plugin replaced operators that draw them")
        second, normal = self._once()
        if normal.grade is not Grade.WRONG and not reuses_output(self.backend) and output_checks.shared((*first, *second)):
            return Accuracy(Grade.WRONG, float("inf"), output_checks.SHARED)
        return normal if normal.grade in (Grade.WRONG, Grade.UNVERIFIED) else max(hard, normal, key=lambda found: found.worst)

    def _once(self, kinds: Sequence[str] = ()) -> tuple[tuple[torch.Tensor, ...], Accuracy]:
        """One call into memory poisoned with NaN, compared before the reference is computed near it. `kinds`: as in `tolerance.check`."""
        device = self.case.device
        kept, written = tuple(tensor.detach().clone() for tensor in self.given), output_checks.versions(self.given)
        output_checks.poison(self.given, device)
        held_bytes = self._reset_peak()
        watch = AsyncWorkWatch(device)
        outputs = self.call(*self.given)
        if held_bytes is not None and self.peak_bytes is None:  # what follows allocates too
            self.peak_bytes = torch.cuda.max_memory_allocated() - held_bytes
        late = watch.unfinished(outputs)
        timers.synchronize(device)
        both = self.case.direction is Direction.BOTH
        results = outputs if both else (outputs,)
        reason = output_checks.breach(self.given, kept, results, expected=2 if both else 1, written=written) or late
        if reason := reason or (self.guard.replaced() if self.guard else ""):
            return (), Accuracy(Grade.WRONG, float("inf"), reason)
        del kept
        return results, verify_outputs(self.backend, self.case, self.given, results, kinds=kinds)

    def _reset_peak(self) -> int | None:
        """Bytes that are allocated now, the peak from here on; None on the CPU."""
        if self.case.device != "cuda":
            return None
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()


def verify_outputs(
    backend: Any,
    case: Case,
    given: tuple[torch.Tensor, ...],
    results: tuple[torch.Tensor, ...],
    see: tolerance.See | None = None,
    kinds: Sequence[str] = (),
) -> Accuracy:
    """The verdict on outputs of a right form; `unverified` where the reference finds no memory. For the rest see `tolerance.check`."""
    try:
        if is_yardstick(backend):
            return tolerance.check_yardstick(case, given, results)
        return tolerance.check(case, given, results, see, kinds)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return Accuracy(Grade.UNVERIFIED, float("nan"), f"the float64 reference needs more memory: {one_line(str(error), 120)}")
