"""The state of a worker, and a method for each request of the parent (`softbench.core.messages`)."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from softbench.core import text
from softbench.core.case import DO_BENCH, Case, Direction
from softbench.core.messages import (
    Built,
    CheckCaseGraded,
    CompareRows,
    Done,
    Graded,
    Inspected,
    Loaded,
    Profiled,
    RowsCompared,
    Skip,
    Timed,
    Unsupported,
    Verified,
)
from softbench.core.outcome import Accuracy, Build, Grade, Profile, Telemetry
from softbench.core.text import one_line
from softbench.ops.dtypes import DTYPES
from softbench.ops.registry import declarations, is_whole, operation, solutions
from softbench.plugins import targets, traits
from softbench.plugins.backend import Backend
from softbench.plugins.info import BackendInfo, info_to_json
from softbench.plugins.load import load
from softbench.plugins.source import PluginSource
from softbench.plugins.traits import compilations, compiles, interpreted, measured_case, overwrites_output, reuses_output, user_call
from softbench.problems.load import load as load_file
from softbench.worker import callables, compiler_cache, triton_on_cpu
from softbench.worker.checking import any_dim, invariance
from softbench.worker.checking.check_case import CheckCaseRunner
from softbench.worker.checking.pre_check import PreCheck, verify_outputs
from softbench.worker.compile_stats import CompilerCounts, Graphs
from softbench.worker.failures import log, poisoned
from softbench.worker.guarding import caller_state, tamper_guard, triton_interpreter
from softbench.worker.guarding.tamper_guard import TamperGuard
from softbench.worker.timing import telemetry
from softbench.worker.timing.batches import Batches
from softbench.worker.timing.device_timer import DeviceTimer, keep_cupti_loaded
from softbench.worker.timing.matrix_products import tflops, tflops_alone
from softbench.worker.timing.rotating_inputs import CLOCK_NS, RotatingInputs
from softbench.worker.timing.timers import Timers, bind, synchronize
from softbench.worker.timing.trace import NoKernelError
from softbench.worker.timing.users_calls import TURNS, UsersCall

DO_BENCH_WARMUP_MS = 1.0  # of its short sample; the rounds have warmed the call up
CLOCK = time.perf_counter  # bound before a plugin can patch it
KEPT_BYTES = 768 * 2**20
"""Device memory that a released worker may hold: the buffer that flushes L2, workspaces of libraries, and little of its call."""
REFILL = 2**31
"""Added to the seed of checked and timed inputs, so that they differ from those of any user's seed."""


class Server:
    """The state of a worker: its backend, and the present case."""

    def __init__(self) -> None:
        self.source: PluginSource | None = None
        self.backend: Any = None
        self.backends: dict[str, Any] = {}
        """All backends of the plugin source, by name."""
        self.device = "cpu"
        self.timers: Timers | None = None
        self.graphs = Graphs()
        self.graphs_built = 0
        """Graphs that builds of this case made; each further graph is a recompilation."""
        self.peak_bytes: int | None = None
        self.profile = Profile()
        """The profile of the case, as far as it is measured."""
        self.users: UsersCall | None = None
        """What users call for the case, once it has been measured."""
        self.product_tflops: dict[str, float] = {}
        """The rate of the fastest matrix product of each dtype, or of a case's products alone, as far as it is measured."""
        self.unverified = ""
        """Why the profile leaves the case without a result."""
        self.unordered = ""
        """Work of the traced calls that is not ordered with the caller's stream."""
        self.telemetry: Callable[[], Telemetry | None] | None = None
        self.last_telemetry: Telemetry | None = None
        """After the last batch."""
        self.case: Case | None = None
        self.seed = 0
        self.block = 0
        """What the case's last batch gives the next one (`softbench.worker.timing.timers.Samples.block`)."""
        self.turns = 0
        """The number of the case's next batch, from a random one on, after its inputs were released."""
        self.call: Callable[..., Any] | None = None
        self.inputs: tuple[torch.Tensor, ...] | None = None
        self.batches: Batches | None = None
        self.changed = ""
        """How a first call changed its caller's state, in words."""
        self.late_work_checked = False
        """True once late work was looked for in this case (`softbench.worker.guarding.async_work.late_work`)."""
        self.guard: TamperGuard | None = None
        self.check_cases: CheckCaseRunner | None = None
        self.confined = False
        """True in a process of the judge: it holds nothing that a plugin may not see."""

    def load(
        self,
        source: PluginSource,
        device: str,
        name: str | None = None,
        operations: Sequence[str] = (),
        layouts: Mapping[str, bytes] | None = None,
        problems: Sequence[str] = (),
    ) -> Loaded:
        """Import the users' operations, bind the timers and the tamper guard, then import the plugin."""
        traits.interpreter = triton_on_cpu.prepare(source)  # to follow the shapes of a problem, torch imports Triton
        for file in operations:
            try:
                load_file(file, every=False, layouts=(layouts or {}).get(file, b""))
            except Exception as error:  # of a target: this environment's version lacks the function, or cannot be called so
                if not file.endswith(targets.TARGET):
                    raise
                targets.failed[Path(file).stem] = one_line(f"{type(error).__name__}: {error}")
        self.source, self.device = source, device
        self.timers = bind(device)
        self.guard = tamper_guard.bind(device)
        self.backends = {backend.name: backend for backend in load(source, declarations(), solutions(problems))}
        named = [self.backends[name]] if name in self.backends else list(self.backends.values())
        self.backend = named[0]
        if overwrites_output(self.backend):  # by a CUDA graph
            keep_cupti_loaded()
        return Loaded([info_to_json(self._info(backend, source)) for backend in named])

    def _info(self, backend: Backend, source: PluginSource) -> BackendInfo:
        """What is reported about a backend. The judge, which times every call, has no use for an interpreter."""
        info = callables.info_of(backend, source)
        if not self.confined or not info.able or not (only := interpreted(backend)):
            return info
        what = "nothing is timed here; judge it on a machine with a GPU, or check it here: softbench check"
        return replace(info, unavailable=f"{only[0]}: {what}")

    def unsupported(self, names: Sequence[str], cases: Sequence[Case]) -> Unsupported:
        """The places of the cases that backends do not support; one whose answer fails is not among them."""
        found: dict[str, list[int]] = {name: [] for name in names}
        for name in self.backends.keys() & found:
            for place, case in enumerate(cases):
                with suppress(Exception):  # its build reports the failure
                    if callables.refused(self.backends[name], case):
                        found[name].append(place)
        return Unsupported(found)

    def build(self, case: Case, seed: int) -> Built | Skip:
        """Prepare the backend for a case, with a first call and a synchronization."""
        self._forget()
        triton_interpreter.forget()
        self.case, self.seed = case if is_whole(case) else measured_case(self.backend, case, by_dim=callables.by_dim(case)), seed
        if reason := callables.refused(self.backend, case):
            return Skip(reason)
        self.telemetry = self.telemetry or telemetry.reader(self.device)  # slow the first time; all workers build at the same time
        self.inputs = any_dim.make(self.case, seed, torch.device(self.device))
        synchronize(self.device)
        if self.guard and self.guard.persisting_l2:
            self.guard.persisting_l2.remember()
        compiling = compiles(self.backend)
        counts = CompilerCounts(partial(compilations, self.backend)) if compiling else None
        self.graphs = Graphs()
        start = CLOCK()
        try:
            self._prepare()
        except callables.NoGradientError as error:
            return Skip(str(error))
        seconds = CLOCK() - start
        state = "cold" if compiling == "always" else counts.state() if counts else ""
        self.graphs_built = self.graphs.count()
        reuses = overwrites_output(self.backend)
        return Built(Build(seconds, state, self.graphs.seconds(), self.graphs.breaks(), reuses))

    def check(self) -> Graded:
        """Check structured values, then normal ones, in the same buffers (`softbench.worker.checking.pre_check`)."""
        if self.call is None:
            raise RuntimeError("a check before a build")
        self.seed += REFILL  # buffers that are released and allocated again get the checked values
        pre_check = PreCheck(self._case(), self.call, self._inputs(), self.backend, self.guard)
        accuracy = Accuracy.wrong(self.changed) if self.changed else pre_check.run(self.seed, self.seed - REFILL)
        self.peak_bytes = pre_check.peak_bytes
        return Graded(accuracy, self._untimed())

    def run_check_case(self, operation: str, name: str, direction: Direction, dtype: str, seed: int) -> CheckCaseGraded | Skip:
        """Run one check case (`softbench.ops.check_case`)."""
        if self.check_cases is None or self.check_cases.operation != operation:
            self.check_cases = CheckCaseRunner(self.backend, self.device, self.guard, operation)
        found = self.check_cases.run(name, direction, dtype, seed)
        self._empty()
        return Skip(one_line(found)) if isinstance(found, str) else CheckCaseGraded(found, self.check_cases.metrics())

    def compare_rows(self, asked: CompareRows) -> RowsCompared | Skip:
        """Compare the bits of rows in different batches (`softbench.worker.checking.invariance`)."""
        case = Case(1, asked.N, asked.dtype, asked.direction, self.device, asked.operation)
        found = invariance.compare_rows(self.backend, case, asked.counts, asked.seconds, asked.seed)
        self._empty()
        return Skip(one_line(found)) if isinstance(found, str) else found

    def inspect(self, case: Case, seed: int) -> Inspected | Skip:
        """Collect the code generated for a case (`softbench.worker.code_capture`)."""
        from softbench.worker import code_capture

        if reason := callables.refused(self.backend, case):
            return Skip(reason)
        if only := interpreted(self.backend):
            return Skip(f"nothing is compiled here: {only[0]}")
        keep_cupti_loaded()  # profiler sessions follow each other immediately
        return Inspected(code_capture.inspect(self.backend, case, seed))

    def renew(self, l2: str) -> Done:
        """Give the inputs of the next batch new values."""
        self._ready(l2)[1].renew()
        synchronize(self.device)  # another worker is timed next
        return Done()

    def time(self, warmup_ms: float, batch_ms: float, timer: str, l2: str) -> Timed:
        """Time a batch; after the first batch of a case on a GPU, late work is looked for."""
        began = CLOCK_NS()
        timers, batches = self._ready(l2)
        waiting = telemetry.Waiting() if self.device == "cpu" else None
        found = batches.time(timers.by_name[timer, l2], warmup_ms, batch_ms, self.block)
        self.block = found.block
        self.last_telemetry = waiting.telemetry() if waiting else None
        if self.device == "cuda" and not self.late_work_checked:
            self.late_work_checked = True
            batches.check_late_work(found.us)
        made = 0 if is_whole(self._case()) else found.made  # between its calls whole tensors change
        return Timed(tuple(found.us), found.timer, made, found.spent_us, (CLOCK_NS() - began) / 1e3 if made else 0.0)

    def read_telemetry(self) -> None:
        """Read the telemetry after the reply to `TimeBatch`, so that the parent does not wait for it.

        Products of matrices lower the clock by the power they take. A pause would only make the next batch faster than calls in a row.
        """
        if self.telemetry and (reading := self.telemetry()):
            products = self.case and operation(self.case.op).flops(self.case)
            of_card = telemetry.throttled(reading.reasons or 0, None, None)
            self.last_telemetry = replace(reading, throttled=of_card) if products else reading

    def verify(self) -> Verified:
        """Verify the kept outputs of the last batch."""
        if self.batches is None:
            raise RuntimeError("a verification before a batch")
        found = self.batches.verify(partial(verify_outputs, self.backend))
        if triton_interpreter.ran():
            found = Accuracy(Grade.UNVERIFIED, float("nan"), triton_interpreter.RAN)
        return Verified(found, self.last_telemetry)

    def measure_products(self) -> Done:
        """Measure the rate of the case's products alone, or of the fastest product of its dtype, unless it is known."""
        case = self._case()
        key, dtype, alone = self._products_of(case), DTYPES[case.dtype], operation(case.op).products_alone(case)
        if key not in self.product_tflops:
            with suppress(RuntimeError):  # too little memory, or no such product: the case has no roof but copy
                if alone:
                    gradients = case.direction is not Direction.FORWARD
                    self.product_tflops[key] = tflops_alone(alone, dtype, self.device, gradients=gradients)
                else:
                    self.product_tflops[key] = tflops(dtype, self.device)
        return Done()

    def _products_of(self, case: Case) -> str:
        """The case whose products are alone, or the dtype of all others."""
        return case.key if operation(case.op).products_alone(case) else case.dtype

    def time_host(self, batch_ms: float, l2: str) -> Done:
        """Measure host times and do_bench's, and run calls without trace. All precede the profiler, which may slow them down."""
        timers, batches = self._ready(l2)
        self.profile, self.users = Profile(), None
        if timers.meter is not None:
            call = batches.rotation.unwatched()
            plain = timers.by_name[DO_BENCH, l2](call, DO_BENCH_WARMUP_MS, batch_ms, 0).us
            self.profile = Profile(host_us=tuple(timers.meter.host(call, batch_ms)), do_bench_us=tuple(plain))
            self._try_profiler(partial(timers.meter.untraced, call, l2))
        return Done()

    def time_users_call(self, batch_ms: float, beside: tuple[PluginSource, str] | None = None) -> Done:
        """Measure a round of host times of what users call. If it fails, the cell has no times of this round.

        `beside`: the source and the name of a backend whose call is timed in turns with that of another one.
        """
        before, meter = self.graphs.count(), self.timers and self.timers.meter
        try:
            if self.users is None and meter and (call := user_call(self.backend, self._case())):
                other = user_call(self._beside(*beside), self._case()) if beside and beside[1] != self.backend.name else None
                self.users = UsersCall(self._inputs(), call, *([other] if other else []))
            if self.users is not None and meter:
                found = self.users.us(partial(meter.host, batch_ms=batch_ms / TURNS))
                earlier = self.profile.users_us or ((),) * len(found)
                self.profile = replace(self.profile, users_us=tuple((*one, *more) for one, more in zip(earlier, found, strict=True)))
        except Exception as error:
            if poisoned():
                raise
            log(error)
        self.graphs_built += self.graphs.count() - before  # compiled for users' calls only
        return Done()

    @functools.cache  # noqa: B019 - a worker has one server
    def _beside(self, source: PluginSource, name: str) -> Backend:
        return next(backend for backend in load(source, declarations()) if backend.name == name)

    def start_trace(self, l2: str) -> Done:
        """Start the profiler."""
        meter = self._ready(l2)[0].meter
        if meter is not None and not self.profile.note:
            self._try_profiler(lambda: meter.begin(l2))
        return Done()

    def trace_calls(self, batch_ms: float, l2: str) -> Done:
        """Run the calls that the profiler records."""
        timers, batches = self._ready(l2)
        meter, call = timers.meter, batches.rotation.unwatched()
        if meter is not None and not self.profile.note:
            self._try_profiler(lambda: meter.run(call, batch_ms, l2))
        return Done()

    def end_profile(self) -> Profiled:
        """Stop the profiler, and report the profile."""
        if self.timers and self.timers.meter and self.profile.host_us and not self.profile.note:
            self._try_profiler(partial(self._end_trace, self.timers.meter))
        profile, self.profile = self.profile, Profile()
        unverified, unordered = self.unverified, self.unordered
        self.unverified = self.unordered = ""
        graphs = self.graphs.count()
        recompiles = graphs - self.graphs_built if graphs else None
        rate = self.product_tflops.get(self._products_of(self.case)) if self.case else None
        profile = replace(profile, peak_bytes=self.peak_bytes, recompiles=recompiles, product_tflops=rate)
        return Profiled(profile, unverified, unordered)

    def _end_trace(self, meter: DeviceTimer) -> None:
        try:
            device_us, kernels = meter.end()
        except NoKernelError as error:
            self.unverified = str(error)
            raise
        finally:
            self.unordered = meter.unordered
        self.profile = replace(self.profile, device_us=tuple(device_us), kernels=tuple(one_line(name) for name in kernels))

    def _try_profiler(self, step: Callable[[], object]) -> None:
        """Run a step of the profiler. Its failure becomes the profile's note; the cell keeps its other results."""
        try:
            step()
        except Exception as error:
            if poisoned():
                raise
            log(error)
            self.profile = replace(self.profile, note=one_line(str(error) or type(error).__name__))

    def _ready(self, l2: str) -> tuple[Timers, Batches]:
        """The timers, and the batches of the present case; released buffers are allocated again."""
        if self.inputs is None:
            self.inputs = any_dim.make(self._case(), self.seed, torch.device(self.device))
        if self.call is None:
            before = self.graphs.count()
            self._prepare()
            self.graphs_built += self.graphs.count() - before
        if self.call is None or self.timers is None:
            raise RuntimeError("a batch before a build")
        if self.batches is None:
            tampered = self.guard.replaced() if self.guard else ""  # before there is anything to take hold of
            rotation = RotatingInputs(self._case(), self._inputs(), self.call, overwrites=reuses_output(self.backend), turns=self.turns)
            self.batches = Batches(rotation, self.device, self.guard, tampered=tampered)
        if l2 != "warm" and self.batches.body is None:  # not between a renewal and its batch
            self.batches.rotation.widen()
        return self.timers, self.batches

    def release(self) -> Done:
        """Free the case's device memory. A callable with little of it stays, as preparing it may compile."""
        self.turns = self.batches.rotation.turns if self.batches else self.turns
        self.inputs = self.batches = self.users = None
        if self.device != "cuda" or torch.cuda.memory_allocated() > KEPT_BYTES:
            self.call = None
        self._empty()
        return Done()

    def _forget(self) -> None:
        self.inputs = self.call = self.case = self.batches = self.users = None
        self.block = 0
        self.turns = random.SystemRandom().randrange(2)
        self.late_work_checked = False
        self.changed = ""
        self.peak_bytes = None
        self._empty()

    def _empty(self) -> None:
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def _prepare(self) -> None:
        try:
            self._first_call()
        except Exception as error:
            if not compiler_cache.removed_headers(error):
                raise
            self._first_call()

    def _first_call(self) -> None:
        self.call = callables.prepared(self.backend, self._case())
        before = caller_state.of_first(self._inputs())
        self.call(*self._inputs())
        self.changed = self.changed or before.changed()
        synchronize(self.device)

    def _untimed(self) -> str:
        """Why the case must not be timed here; empty if it may be."""
        if triton_interpreter.ran() and not interpreted(self.backend):
            return f"not timed: {triton_interpreter.RAN}"
        only = interpreted(self.backend)
        return f"on {text.count(self._case().M, 'row')} under {only[0]}, not timed" if only else ""

    def _case(self) -> Case:
        if self.case is None:
            raise RuntimeError("a request before a build")
        return self.case

    def _inputs(self) -> tuple[torch.Tensor, ...]:
        if self.inputs is None:
            raise RuntimeError("the inputs were released")
        return self.inputs
