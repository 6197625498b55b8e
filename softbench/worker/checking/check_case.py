"""Runs check cases on one backend, in its worker."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from softbench.core.case import OPERATION, Case, Direction
from softbench.core.outcome import Accuracy, ErrorMetrics, Grade
from softbench.core.text import size
from softbench.ops.check_case import CheckCase, Draw, Tensors
from softbench.ops.dtypes import DTYPES
from softbench.ops.registry import is_whole, numerics, operation
from softbench.ops.scores import of_rows
from softbench.plugins.traits import interpreted, over_dim, reuses_output
from softbench.worker.callables import prepared, refused
from softbench.worker.checking.any_dim import rows_of, rows_of_outputs
from softbench.worker.checking.contract_cases import WAYS, ContractCase
from softbench.worker.checking.error_metrics import MetricsAccumulator
from softbench.worker.checking.output_checks import (
    BESIDE,
    NO_RESULT,
    SHARED,
    as_tuple,
    breach,
    forms,
    like,
    memory_of,
    poison,
    same,
    settled,
    shared,
    versions,
)
from softbench.worker.checking.pre_check import PreCheck, one_thread, vacuous_bound, verify_outputs
from softbench.worker.checking.row_sample import of_check_case, rows_to_compare, suspects
from softbench.worker.guarding import caller_state
from softbench.worker.guarding.async_work import AsyncWorkWatch

if TYPE_CHECKING:
    from softbench.worker.guarding.tamper_guard import TamperGuard

MANY_CALLS = ("held", "many", "late")
SLOW = "takes more calls than an interpreter can run"
REUSES = "the next call overwrites its output, as it declares"
VARIES = "varies from call to call, within the bound"

Call = Callable[..., Any]


class CheckCaseRunner:
    """Runs check cases on one backend; it keeps the callable of the last shape, as many cases share a shape."""

    def __init__(self, backend: Any, device: str, guard: TamperGuard | None = None, operation: str = OPERATION) -> None:
        self.operation = operation
        self.guard, self._metrics = guard, MetricsAccumulator()
        self.backend, self.device = backend, torch.device(device)
        self.items = {(item.name, item.direction): item for item in numerics(operation).check_cases(operation)}
        self.most_rows = rows[1] if (rows := interpreted(backend)) else None
        self._case: Case | None = None
        self._call: Call | None = None

    def run(self, name: str, direction: Direction, dtype: str, seed: int) -> Accuracy | str:
        """The accuracy of a check case, or why it was skipped.

        Raises:
            KeyError: the check case does not exist. Exceptions of the backend pass through.
        """
        item, self._metrics = self.items[name, direction], MetricsAccumulator()
        if item.gpu_only and self.device.type == "cpu":
            return f"needs a GPU: {item.gpu_only}"
        if self.most_rows is not None and item.repeat in MANY_CALLS:
            return SLOW
        needed = item.free_bytes // 4 * DTYPES[dtype].itemsize
        if needed and needed > (free := torch.cuda.mem_get_info()[0]):
            return f"needs {size(needed)} of device memory; {size(free)} are free"
        generator = torch.Generator(self.device)
        generator.manual_seed(random := zlib.crc32(f"{seed} {direction} {dtype} {name}".encode()))
        given = item.make(Draw(generator, dtype, self.device, self.most_rows))
        dim = -1 if item.dim is None else item.dim
        if item.case:
            case = replace(item.case, dtype=dtype, device=self.device.type)
        else:
            shape = given[0].movedim(dim, -1).shape
            case = Case(max(1, given[0].numel()) // max(1, shape[-1]), shape[-1], dtype, direction, self.device.type, self.operation)
        if operation(self.operation).scores:
            sizes = tuple(given[0].shape)
            case = replace(case, shape="x".join(map(str, sizes if len(sizes) > 2 else (1, 1, *sizes))))
            given = given if len(sizes) > 2 else of_rows(case, given)
        if reason := refused(self.backend, case):
            return reason
        if item.dim is None:
            call = self._prepared(case)
        elif (along := over_dim(self.backend, self.operation)) is None:
            return "it takes (M, N) rows only"
        else:
            call = lambda *tensors: along(direction)(*tensors, dim)  # noqa: E731
        if item.repeat in WAYS:
            found = contract_case(self.backend, case, call, given, self.guard, random).judge(item.repeat)
        else:
            found = self._judge(item, case, call, given, random)
        return replace(found, grade=Grade.WRONG, worst=float("inf")) if found.grade is Grade.FINITE_ONLY else found

    def _prepared(self, case: Case) -> Call:
        if self._call is None or self._case != case:
            self._case, self._call = None, None
            self._call, self._case = prepared(self.backend, case), case
        assert self._call is not None
        return self._call

    def metrics(self) -> ErrorMetrics | None:
        """The error metrics of the last check case; None if nothing was compared."""
        return self._metrics.found() if self._metrics.rows else None

    def _judge(self, item: CheckCase, case: Case, call: Call, given: Tensors, random: int) -> Accuracy:
        """The accuracy of a call."""
        kept, written = tuple(tensor.clone() for tensor in given), versions(given)
        due = forms(case) if item.case or (item.dim is None and (given[0].numel() or case.N)) else like(given[0], forms(case)[0].dtype)
        poison(due, given, NO_RESULT if random & 1 else math.nan)
        memory = [memory_of(tensor) for tensor in given if tensor.untyped_storage().nbytes() != tensor.nbytes]
        around = [part.clone() for part in memory]
        before, watch = caller_state.of_first(given), AsyncWorkWatch(self.device.type)
        out = self._on_stream(call, given) if item.repeat == "stream" else call(*given)
        late = watch.unfinished(out)
        results = as_tuple(out, due)
        reason = breach(given, kept, results, due, written=written) or late or before.changed()
        if reason := reason or (self.guard.replaced() if self.guard else ""):
            return Accuracy.wrong(reason)
        results = settled(given, kept, results, due)  # inputs that a call must change have their values again
        if not all(map(same, memory, around)):
            return Accuracy.wrong(BESIDE)
        return self._compared(item, case, call, given, results)

    def _compared(self, item: CheckCase, case: Case, call: Call, given: Tensors, results: Tensors) -> Accuracy:
        if not item.repeat and case.M and case.N and (reason := vacuous_bound(case, given)):
            return Accuracy(Grade.UNVERIFIED, float("nan"), reason)
        note, outputs = "", [results]
        if item.repeat == "twice":
            first = tuple(out.clone() for out in results)
            again = as_tuple(call(*given), results)
            if shared((*again, *results)):
                if not reuses_output(self.backend):
                    return Accuracy.wrong(SHARED)
                note = REUSES
            if not all(map(same, again, first)):
                note, outputs = VARIES, [first, again]
        if not any(out.numel() for out in results):
            return Accuracy(Grade.PASS, 0.0, "")
        found = max(
            (self._verified(case, given, each, item.dim) for each in outputs), key=lambda found: (found.grade is Grade.WRONG, found.worst)
        )
        return replace(found, detail=note) if note and found.grade is Grade.PASS else found

    def _verified(self, case: Case, given: Tensors, outputs: Tensors, dim: int | None) -> Accuracy:
        if is_whole(case):
            return verify_outputs(self.backend, case, given, outputs, self._metrics)
        if case.shape:
            given, outputs = rows_of(case, given, slice(None)), rows_of_outputs(case, outputs, slice(None))
            return verify_outputs(self.backend, case.of_rows(case.M), given, outputs, self._metrics)
        rows = [*given, *outputs]
        numbers = None if dim is not None else rows_to_compare(case, 0, at_most=of_check_case(case))
        if numbers is not None:
            with one_thread(case.device):
                numbers = sorted({*numbers, *suspects(case, given, outputs)})
            which = torch.tensor(numbers, device=self.device)
            few = rows_of(case, given, which), rows_of_outputs(case, outputs, which)
            return verify_outputs(self.backend, case.of_rows(len(numbers)), *few, self._metrics, numbers=numbers)
        if dim is not None:
            rows = [tensor.movedim(dim, -1).reshape(case.M, case.N) if tensor.dim() else tensor.reshape(1, 1) for tensor in rows]
        return verify_outputs(self.backend, case, tuple(rows[: len(given)]), tuple(rows[len(given) :]), self._metrics)

    def _on_stream(self, call: Call, given: Tensors) -> Any:
        """Call the backend on a stream other than the default one. The caller waits for that stream only."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            out = call(*given)
        torch.cuda.current_stream().wait_stream(stream)
        return out


def contract_case(backend: Any, case: Case, call: Call, given: Tensors, guard: TamperGuard | None, seed: int) -> ContractCase:
    """A contract case whose outputs are compared as before timing."""
    pre_check = PreCheck(case, call, given, backend, guard, of_check_case(case))
    return ContractCase(backend, case, call, given, guard, seed, pre_check, verify_outputs)
