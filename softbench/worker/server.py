"""A worker process: it loads one backend and serves the parent's requests. If it crashes or hangs, no other worker is affected.

Each request is one message and each reply is one message:

    probe                                   -> the machine (`softbench.worker.probe.probe`).
    load    origin, device, name?           -> infos of a plugin source's backends; this worker serves the named one, or the first.
    build   case, seed                      -> build, or skip.
    check                                   -> accuracy, and untimed: why the case must not be timed, or an empty text.
    catalogue                               -> items: name and direction of each check case, and whether it needs the device alone.
    examine item, direction, dtype, seed    -> accuracy and diagnostics of a check case, or skip.
    inspect case, seed                      -> inspection (`softbench.core.inspection`), or skip.
    renew   l2                              -> renewed: the inputs of the next batch have new values.
    time    warmup_ms, batch_ms, timer, l2  -> samples_us, and kind of the timer.
    verify                                  -> accuracy of the kept outputs, and telemetry after the batch.
    host    batch_ms, l2                    -> issued: the calls whose host time was measured.
    trace   l2                              -> tracing: whether the profiler has started.
    calls   batch_ms, l2                    -> traced: whether the profiler recorded calls.
    profile                                 -> profile: device time, host time and kernels of a call.
    release                                 -> nothing: the case's device memory is free; `renew` allocates it again.

A failure's reply is `failed`: status, stage and reason. With `poisoned` the CUDA context is lost, and the worker must not be used again.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from softbench.core import text
from softbench.core.case import Case, Direction
from softbench.core.channel import Channel, Message
from softbench.core.outcome import Build, Profile, Telemetry
from softbench.core.text import one_line
from softbench.ops.softmax import inputs
from softbench.ops.softmax.check_cases import items
from softbench.plugins.info import info_to_json
from softbench.plugins.load import load
from softbench.plugins.source import PluginSource
from softbench.plugins.traits import compiles, info, interpreted, overwrites_output, reuses_output, why_not
from softbench.worker import tamper_guard, telemetry
from softbench.worker.batches import Batches
from softbench.worker.check_case import CheckCaseRunner
from softbench.worker.compile_stats import CompilerCounts, Graphs
from softbench.worker.device_timer import DeviceTimer, keep_cupti_loaded
from softbench.worker.failures import failure, poisoned
from softbench.worker.pre_check import PreCheck, verify_outputs
from softbench.worker.probe import probe
from softbench.worker.rotating_inputs import RotatingInputs
from softbench.worker.tamper_guard import TamperGuard
from softbench.worker.timers import Timers, bind, synchronize

CLOCK = time.perf_counter  # bound before a plugin can patch it
REFILL = 2**31
"""Added to the seed of the inputs that are checked and timed, so that they differ from those of any user's seed."""


def serve(channel: Channel) -> None:
    """Answer until the parent closes the pipe."""
    seat = Server()
    while (message := channel.receive()) is not None:
        stage = str(message.pop("op"))
        try:
            answer = getattr(seat, f"do_{stage}")(**message)
        except Exception as error:  # the boundary of one request: whatever a plugin raises becomes an answer
            answer = {"failed": failure(stage, error), "poisoned": poisoned()}
        channel.send(answer)
        if stage == "time":
            seat.read_gpu()


class Server:
    """The worker's state: its backend, and the case it is at."""

    def __init__(self) -> None:
        self.backend: Any = None
        self.device = "cpu"
        self.timers: Timers | None = None
        self.graphs = Graphs()
        self.graphs_built = 0
        """Graphs that belong to builds of this case: what comes on top is a recompilation."""
        self.peak_bytes: int | None = None
        self.profile = Profile()
        """What is known so far of what the case's calls cost apart."""
        self.telemetry: Callable[[], Telemetry | None] | None = None
        self.reading: Telemetry | None = None
        """After the last batch."""
        self.case: Case | None = None
        self.seed = 0
        self.block = 0
        """Calls a CPU sample of this case spans; see `softbench.worker.timers.Timer`."""
        self.call: Callable[..., Any] | None = None
        self.inputs: tuple[torch.Tensor, ...] | None = None
        self.batches: Batches | None = None
        self.side_streams_checked = False
        """True once this case's calls have been looked behind (`softbench.worker.async_work.side_stream_us`)."""
        self.guard: TamperGuard | None = None
        self.examiner: CheckCaseRunner | None = None

    def do_probe(self) -> Message:
        return {"probe": asdict(probe())}

    def do_catalogue(self) -> Message:
        return {"items": [[item.name, item.direction, item.free_bytes > 0] for item in items()]}

    def do_load(self, origin: Message, device: str, name: str | None = None) -> Message:
        """Bind the timers, and note what else could be patched; then import the plugin."""
        self.device = device
        self.timers = bind(device)
        self.guard = tamper_guard.bind(device)
        source = PluginSource(**origin)
        backends = load(source)
        named = [backend for backend in backends if backend.name == name] or list(backends)
        self.backend = named[0]
        if overwrites_output(self.backend):  # by a CUDA graph
            keep_cupti_loaded()
        infos = [info(backend, source) for backend in named]
        return {"infos": [info_to_json(info) for info in infos]}

    def do_build(self, case: Message, seed: int) -> Message:
        self._forget()
        self.case, self.seed = Case(**{**case, "direction": Direction(case["direction"])}), seed
        if reason := why_not(self.backend.supports(self.case), "supports"):
            return {"skip": reason}
        if only := interpreted(self.backend):
            self.case = replace(self.case, M=min(self.case.M, only[1]))
        self.telemetry = self.telemetry or telemetry.reader(self.device)  # slow the first time: here beside the others
        self.inputs = inputs.make(self.case, seed, torch.device(self.device))
        synchronize(self.device)
        compiling = compiles(self.backend)
        compilations = CompilerCounts() if compiling else None
        self.graphs = Graphs()
        start = CLOCK()
        self._prepare()
        seconds = CLOCK() - start
        state = "cold" if compiling == "always" else compilations.state() if compilations else ""
        self.graphs_built = self.graphs.count()
        reuses = overwrites_output(self.backend)
        return {"build": asdict(Build(seconds, state, self.graphs.seconds(), self.graphs.breaks(), reuses))}

    def do_check(self) -> Message:
        """Structured values, then normal ones, in the old memory (`softbench.worker.pre_check`)."""
        if self.call is None:
            raise RuntimeError("asked to check before a case was built")
        self.seed += REFILL  # buffers that are given back and made again have the checked values too
        trial = PreCheck(self._case(), self.call, self._inputs(), self.backend, self.guard)
        accuracy = trial.run(self.seed)
        self.peak_bytes = trial.peak_bytes
        return {"accuracy": asdict(accuracy), "untimed": self._untimed()}

    def do_examine(self, item: str, direction: str, dtype: str, seed: int) -> Message:
        """One item of the catalogue (`softbench.ops.softmax.check_cases`)."""
        if self.examiner is None:
            self.examiner = CheckCaseRunner(self.backend, self.device, self.guard)
        found = self.examiner.examine(item, Direction(direction), dtype, seed)
        self._empty()
        return {"skip": one_line(found)} if isinstance(found, str) else {"accuracy": asdict(found), **self.examiner.diagnostics()}

    def do_inspect(self, case: Message, seed: int) -> Message:
        """Look at what is generated for a case (`softbench.worker.code_capture`)."""
        from softbench.worker import code_capture

        wanted = Case(**{**case, "direction": Direction(case["direction"])})
        if reason := why_not(self.backend.supports(wanted), "supports"):
            return {"skip": reason}
        if only := interpreted(self.backend):
            return {"skip": f"nothing is compiled here: {only[0]}"}
        keep_cupti_loaded()  # its sessions follow each other at once
        return {"inspection": code_capture.inspect(self.backend, wanted, seed).document()}

    def do_renew(self, l2: str) -> Message:
        self._ready(l2)[1].renew()
        synchronize(self.device)  # another worker is timed next
        return {"renewed": True}

    def do_time(self, warmup_ms: float, batch_ms: float, timer: str, l2: str) -> Message:
        timers, batches = self._ready(l2)
        samples, self.block = batches.time(timers.by_name[timer, l2], warmup_ms, batch_ms, self.block)
        if self.device == "cuda" and not self.side_streams_checked:
            self.side_streams_checked = True
            batches.check_side_streams(samples)
        return {"samples_us": samples, "kind": timer}

    def read_gpu(self) -> None:
        """Read the telemetry after the reply to `time`, so that the parent does not wait for it."""
        self.reading = self.telemetry() if self.telemetry else None

    def do_verify(self) -> Message:
        if self.batches is None:
            raise RuntimeError("asked to verify before a batch was timed")
        found = self.batches.verify(partial(verify_outputs, self.backend))
        return {"accuracy": asdict(found) if found else None, "telemetry": asdict(self.reading) if self.reading else None}

    def do_host(self, batch_ms: float, l2: str) -> Message:
        """Issue calls, and what the device takes for one; before the profiler starts, as either may cost more then."""
        timers, batches = self._ready(l2)
        self.profile = Profile()
        if timers.meter is not None:
            call = batches.rotation.unwatched()
            self.profile = Profile(host_us=tuple(timers.meter.host(call, batch_ms)))
            self._spared(partial(timers.meter.untraced, call, l2))
        return {"issued": len(self.profile.host_us)}

    def do_trace(self, l2: str) -> Message:
        """Start the profiler."""
        meter = self._ready(l2)[0].meter
        return {"tracing": meter is not None and not self.profile.note and self._spared(lambda: meter.begin(l2))}

    def do_calls(self, batch_ms: float, l2: str) -> Message:
        """What the profiler is to see."""
        timers, batches = self._ready(l2)
        meter, call = timers.meter, batches.rotation.unwatched()
        return {"traced": meter is not None and not self.profile.note and self._spared(lambda: meter.run(call, batch_ms, l2))}

    def do_profile(self) -> Message:
        """Stop the profiler; all that is known of a call."""
        if self.timers and self.timers.meter and self.profile.host_us and not self.profile.note:
            self._spared(partial(self._end_trace, self.timers.meter))
        profile, self.profile = self.profile, Profile()
        return self._profiled(profile)

    def _end_trace(self, meter: DeviceTimer) -> None:
        device_us, kernels = meter.end()
        self.profile = replace(self.profile, device_us=tuple(device_us), kernels=tuple(one_line(name) for name in kernels))

    def _spared(self, step: Callable[[], object]) -> bool:
        """A profiler that cannot be had costs its figures only: the note says why, and the cell keeps the others."""
        try:
            step()
        except Exception as error:
            if poisoned():
                raise
            traceback.print_exception(error)
            self.profile = replace(self.profile, note=one_line(str(error) or type(error).__name__))
            return False
        return True

    def _profiled(self, profile: Profile) -> Message:
        made = self.graphs.count()
        recompiles = made - self.graphs_built if made else None
        return {"profile": asdict(replace(profile, peak_bytes=self.peak_bytes, recompiles=recompiles))}

    def _ready(self, l2: str) -> tuple[Timers, Batches]:
        """The timers, and the batches of the case that they time, with buffers that were released taken again."""
        if self.inputs is None:
            self.inputs = inputs.make(self._case(), self.seed, torch.device(self.device))
        if self.call is None:
            before = self.graphs.count()
            self._prepare()
            self.graphs_built += self.graphs.count() - before
        if self.call is None or self.timers is None:
            raise RuntimeError("asked to time before a case was built")
        if self.batches is None:
            rotation = RotatingInputs(self._case(), self._inputs(), self.call, overwrites=reuses_output(self.backend))
            self.batches = Batches(rotation, self.device, self.guard)
        if l2 != "warm" and self.batches.body is None:  # not between a renewal and its batch
            self.batches.rotation.widen()
        return self.timers, self.batches

    def do_release(self) -> Message:
        """Keep the callable if all it cost was host memory: preparing it anew may mean compiling anew."""
        self.inputs = self.batches = None
        if self.device != "cuda" or torch.cuda.memory_allocated() > 0:
            self.call = None
        self._empty()
        return {"released": True}

    def _forget(self) -> None:
        self.inputs = self.call = self.case = self.batches = None
        self.block = 0
        self.side_streams_checked = False
        self.peak_bytes = None
        self._empty()

    def _empty(self) -> None:
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def _prepare(self) -> None:
        call = self.backend.prepare(self._case())
        if not callable(call):
            raise TypeError(f"prepare() returned {type(call).__name__}, not a callable")
        self.call = call
        call(*self._inputs())
        synchronize(self.device)

    def _untimed(self) -> str:
        """Why the case is not to be timed here; empty where it is."""
        only = interpreted(self.backend)
        return f"checked on {text.count(self._case().M, 'row')} under {only[0]}; not timed" if only else ""

    def _case(self) -> Case:
        if self.case is None:
            raise RuntimeError("asked to measure before a case was built")
        return self.case

    def _inputs(self) -> tuple[torch.Tensor, ...]:
        if self.inputs is None:
            raise RuntimeError("asked to use inputs that were released")
        return self.inputs
