"""A judgement: one backend on one case, in a process that has no clock, reference or verdict.

The order matters. The plugin's process is confined before it has a second thread, because landlock confines no thread that exists already.
What a challenge costs without computing is measured in another process: before the plugin is loaded, beside each challenge, and after the
plugin's process has ended. After the build the judge ends all other processes of the plugin's group.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from softbench.core.case import Case
from softbench.core.json import JsonObject
from softbench.core.machine import free_memory
from softbench.core.messages import BuildCase, ConfineProcess, LoadOperation, Skip
from softbench.core.outcome import PASSES, Grade, Status
from softbench.core.statistics import median_interval
from softbench.core.text import one_line, size
from softbench.judge import challenge
from softbench.judge.challenge import SECRET, Challenge
from softbench.judge.plugin_process import FLUSH_BYTES, EndedError, PluginProcess, plugin_folder
from softbench.ops.registry import is_whole, layouts, numerics, operation, path_of
from softbench.plugins.source import PluginSource
from softbench.processes.worker_pool import Pool
from softbench.worker.checking import output_checks
from softbench.worker.checking.pre_check import vacuous_bound
from softbench.worker.compile_stats import built_libraries
from softbench.worker.judged import shared_memory
from softbench.worker.judged.memory import input_layout, output_bytes, output_layout

CHALLENGES = 9
"""Challenges whose time counts. One before them is checked only, and so is one of each ten after it, which reads each output at once."""
TOUCHING = 3
"""Challenges that only touch the memory."""
CALLS = {"cpu": 64, "cuda": 256}
"""Calls of a challenge, at most."""
WHOLE_CALLS = {"cpu": challenge.WHOLE_COMPARED, "cuda": 64}
"""Calls of a challenge of a problem, at most. A few calls of some microseconds are lost among the microseconds of a GPU's fixed cost."""
LEAST_CALLS = 2
BUSY, BUSY_US = 1.25, 500.0
"""A factor and microseconds: so much longer the GPU may take for an empty challenge than before the plugin was loaded. By the factor alone,
empty challenges after the end of the plugin's process may raise `limit_of_empty`."""
CALL_BYTES = {"cpu": 2**26, "cuda": 2**35}
"""Bytes of the inputs and outputs of a challenge, about."""
MORE, MORE_SECONDS = 2, 10.0
"""So many times the challenges after the first, and so many seconds, are added at most on a GPU in place of disturbed ones."""
MEMORY_SHARE = 0.6
"""The part of a GPU's memory that a judgement may take. A run's workers keep contexts beside it, and buffers of a case."""
CACHES = (
    *("HOME", "TMPDIR", "XDG_CACHE_HOME", "SOFTBENCH_CACHE", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR"),
    "CUDA_CACHE_PATH",
)
"""Variables that get folders of the plugin's own, so that it poisons no other process's cache."""
BUSY_GPU = "time: the GPU was busy between the calls of the judge; end other programs on it, and judge again"
REFUSED = (Grade.WRONG, Grade.UNVERIFIED)
READ_AT_ONCE = ", read right after its call: another thread or stream, for which the caller's stream does not wait, may write it later"


@dataclass(slots=True)
class Judgement:
    """What the judge found."""

    status: Status = Status.OK
    reason: str = ""
    grade: str = ""
    """The class of the worst output; empty if none was compared."""
    backend: str = ""
    calls: int = 0
    """Calls of a challenge."""
    before_us: list[float] = field(default_factory=list)
    """Microseconds of empty challenges before the plugin was loaded."""
    empty_us: list[float] = field(default_factory=list)
    """Microseconds of the empty challenges beside those that count, each at most `limit_of_empty`."""
    challenges_us: list[float] = field(default_factory=list)
    """Microseconds of the challenges that count, from the request to the end of the judge's own read."""
    processor_us: list[float] = field(default_factory=list)
    """Processor time that the plugin's process took in each of these, microseconds."""
    touching_us: tuple[float, float] | None = None
    """On a CPU: the time and the processor time of a challenge that only uses each page of inputs and outputs."""
    confinement: dict[str, bool] = field(default_factory=dict)

    def document(self, case: Case) -> JsonObject:
        """The times and facts as JSON.

        `us` is the median over the challenges of the time beyond the empty challenge beside it. `low_us` and `high_us` are the 95 %
        interval of the median, or the extremes of fewer than six challenges. All three are None if `low_us` is not positive.
        """
        found: JsonObject = {"status": self.status.value, "reason": self.reason, "class": self.grade, "backend": self.backend}
        found |= {"confinement": self.confinement, "calls": self.calls, "us": None, "low_us": None, "high_us": None, "gbps": None}
        if self.status is not Status.OK:
            return found
        samples = [(us - empty) / self.calls for us, empty in zip(self.challenges_us, self.empty_us, strict=True)]
        us, (low, high) = statistics.median(samples), median_interval(samples) or (min(samples), max(samples))
        found |= {"at_most_us": round(statistics.median(self.challenges_us) / self.calls, 3)}
        if self.touching_us:
            wall, processor = min(self.challenges_us) - self.touching_us[0], min(self.processor_us) - self.touching_us[1]
            found |= {"least_us": round(max(0.0, min(wall, processor)) / self.calls, 3)}
        found |= {"samples_us": [round(sample, 3) for sample in samples]}
        times = {"us": round(us, 3), "low_us": round(low, 3), "high_us": round(high, 3)}
        return found | times | {"gbps": round(operation(case.op).gbps(case, us), 3)} if low > 0 else found


@dataclass(slots=True)
class Judge:
    """Judges backends on one device."""

    pool: Pool
    environment: Mapping[str, str]
    """Variables of the plugin's process."""
    readable: Sequence[str]
    """Files and folders that it may read, beside the plugin's folder and those of the system."""
    deadlines: Mapping[str, float]
    """Seconds by phase: `import`, `build` and `time`."""
    challenges: int = CHALLENGES
    """Challenges whose time counts."""

    def judge(
        self,
        source: PluginSource,
        case: Case,
        name: str | None = None,
        operations: Sequence[str] = (),
        advance: Callable[[int, int, str], object] = lambda *now: None,
    ) -> Judgement:
        """Judge one backend. A fault of the plugin is the status of the judgement.

        Args:
            source: where the backend comes from.
            case: what is computed, on the case's device.
            name: the backend, which a source of several needs.
            operations: files of users' operations, which are loaded already.
            advance: called with the challenges that were made, all of them, and what begins now.
        """
        found = Judgement(calls=calls_of(case, memory_of(case.device)))
        if reason := too_large(case, found.calls):
            found.status, found.reason = Status.OOM, reason
            return found
        with ExitStack() as stack:
            try:
                advance(0, 1 + self.challenges, "the start of its processes")
                files = [file for file in (source.file, *map(path_of, operations)) if file]
                plain, plugin = self._started(stack, case, found, files, operations)
                inputs = stack.enter_context(_Inputs(case, found.calls))
                self._share(stack, (plain, plugin))
                if reason := numerics(case.op).accepted(case, (drawn := inputs.draw()).whole) or vacuous_bound(case, drawn.whole):
                    raise EndedError(Status.UNVERIFIED, reason)
                found.before_us, gpu_us = plain.empties(drawn, self.challenges)
                if case.device == "cuda":
                    found.confinement |= plugin.ask(ConfineProcess((), "", case.device), "import").levels
                advance(0, 1 + self.challenges, f"the build of {name or source.label}")
                self._build(plugin, found, source, name)
                self._challenge(plain, plugin, found, inputs, BUSY * gpu_us + BUSY_US, advance)
                plugin.end()
                most_us = limit_of_empty(found.before_us, plain.empties(inputs.draw(), self.challenges)[0])
                if case.device == "cpu":
                    found.touching_us = plain.touching(inputs.draw(), TOUCHING)
                found.empty_us = [min(us, most_us) for us in found.empty_us]
            except EndedError as ended:
                found.status, found.reason = ended.status, ended.reason
            except (OSError, MemoryError, RuntimeError) as error:  # the judge's own memory for a case, or its reference
                found.status, found.reason = Status.UNVERIFIED, f"the judge cannot judge this case: {one_line(repr(error), 200)}"
        return found

    def _started(
        self, stack: ExitStack, case: Case, found: Judgement, files: Sequence[Path], operations: Sequence[str]
    ) -> list[PluginProcess]:
        """Two confined processes with the users' operations: one without a plugin, and that of the plugin. They end with `stack`."""
        started = [self._start(stack, label, case, found.calls, files) for label in ("no plugin", "plugin")]
        stack.callback(self.pool.discard, *(process.worker for process, _ in started))  # at once: a CUDA context takes seconds to end
        for process, confine in started:
            found.confinement |= process.ask(confine, "import").levels
        for file in operations:  # challenges have the tensors of the case's operation
            for process, _ in started:
                process.ask(LoadOperation(file, layouts=layouts().get(file, b"")), "import")
        return [process for process, _ in started]

    def _start(self, stack: ExitStack, label: str, case: Case, calls: int, files: Sequence[Path]) -> tuple[PluginProcess, ConfineProcess]:
        """A process with a folder of its own, and the request that confines it, which it has already."""
        folder = stack.enter_context(plugin_folder())
        own = {variable: f"{folder}/{variable.lower()}" for variable in CACHES}
        for path in own.values():
            Path(path).mkdir()
        libraries, built = built_libraries()
        worker = self.pool.spawn(label, {**self.environment, **own, **libraries, "TORCHINDUCTOR_COMPILE_THREADS": "1"})
        stack.callback(self.pool.discard, worker)
        readable = (*self.readable, *built, *(str(file.parent) for file in files))
        confine = ConfineProcess(readable, folder, case.device, sockets=case.device == "cuda")
        self.pool.send_ahead(worker, confine)
        return PluginProcess(self.pool, worker, case, calls, self.deadlines), confine

    @staticmethod
    def _share(stack: ExitStack, processes: Sequence[PluginProcess]) -> None:
        """Share one block for outputs with all processes. It ends with `stack`."""
        case, calls = processes[0].case, processes[0].calls
        block = shared_memory.create(size := output_bytes(case, calls), case.device)
        stack.callback(block.close)
        for process in processes:
            process.share(block, size)

    @staticmethod
    def _build(plugin: PluginProcess, found: Judgement, source: PluginSource, name: str | None) -> None:
        found.backend = plugin.load(source, name)
        built = plugin.ask(BuildCase(plugin.case, SECRET.getrandbits(31)), "build")
        if isinstance(built, Skip):
            raise EndedError(Status.SKIPPED, built.reason)
        plugin.end_others()

    def _challenge(
        self,
        plain: PluginProcess,
        plugin: PluginProcess,
        found: Judgement,
        inputs: _Inputs,
        most_us: float,
        advance: Callable[[int, int, str], object],
    ) -> None:
        """Each challenge is empty first: the host's speed drifts within seconds, so both are measured side by side.

        A plugin that made the empty one long would gain. So its process is stopped meanwhile. If its GPU works on, that takes the empty
        challenge more than `most_us`: the processes take turns on a GPU. `limit_of_empty` limits what a small kernel could still delay.

        A process that maps memory waits for a lock of the driver, which others hold for tens of milliseconds while they start or end on any
        GPU of the host. So a challenge between empty ones of which one was long is made again. It tells nothing of the plugin.

        Work that the caller's stream does not wait for could overlap with other calls. So in one challenge of ten, which no count
        foretells, that stream copies each output right after its call. On a CPU outputs are always copied then, but for inputs that a call
        changes.
        """
        copied = plugin.case.device == "cpu" and all(form.becomes is None for form in output_checks.forms(plugin.case))
        last = self.challenges + (not copied)
        more = MORE * (plugin.case.device == "cuda")
        at_once = set() if copied else {some * last + SECRET.randint(1, last) for some in range(1 + more)}
        times = _Times(self.challenges, min(found.before_us))
        for number in range(1 + last * (1 + more)):
            if number > last and times.enough():
                break
            advance(number, 1 + max(last, number), found.backend)
            drawn = inputs.draw()  # longer than the line of progress takes
            with plugin.stopped():
                empty, gpu_us = plain.empty(drawn)
            if gpu_us > most_us:
                raise EndedError(Status.UNVERIFIED, BUSY_GPU)
            times.empties.append(empty)
            us, accuracy = plugin.challenge(drawn, at_once=number in at_once)
            if not found.grade or accuracy.grade not in PASSES:
                found.grade = accuracy.grade.value
            if accuracy.grade in REFUSED:
                later = False
                if number in at_once:
                    plugin.release()
                    later = plugin.challenge(inputs.draw())[1].grade not in REFUSED
                raise EndedError(Status(accuracy.grade.value), accuracy.detail + (READ_AT_ONCE if later else ""))
            plugin.release()
            if number not in {0, *at_once}:
                times.challenges[number] = us, plugin.processor_us
        found.empty_us, found.challenges_us, found.processor_us = times.quietest()


@dataclass(slots=True)
class _Times:
    """Challenges that were timed, and all empty ones: those before and after a challenge tell whether others disturbed it."""

    count: int
    """Challenges that count."""
    least_us: float
    """The shortest empty challenge before."""
    empties: list[float] = field(default_factory=list)
    """Microseconds, by the number of the challenge that follows."""
    challenges: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Microseconds and processor time, by its number."""
    began: float = 0.0

    def enough(self) -> bool:
        """True if enough challenges are undisturbed, or if this asked for others for too long."""
        self.began = self.began or time.monotonic()
        most = min(self.least_us, *self.empties) + BUSY_US
        return time.monotonic() > self.began + MORE_SECONDS or sum(self._long(one) <= most for one in self.challenges) >= self.count

    def quietest(self) -> tuple[list[float], list[float], list[float]]:
        """Of the least disturbed challenges: the empty ones before, the times and the processor times."""
        kept = sorted(sorted(self.challenges, key=self._long)[: self.count])
        times, processor = zip(*(self.challenges[number] for number in kept), strict=True)
        return [self.empties[number] for number in kept], [*times], [*processor]

    def _long(self, number: int) -> float:
        return max(self.empties[number : number + 2])


class _Inputs:
    """Draws challenges. The inputs of the last one stay, because the processes still map them while the clock runs for the next one."""

    def __init__(self, case: Case, calls: int) -> None:
        self.case, self.calls = case, calls
        self.blocks: list[shared_memory.Block] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._leave(0)

    def draw(self) -> Challenge:
        """The next challenge. Raises as `challenge.draw`."""
        self._leave(1)
        drawn = challenge.draw(self.case, self.calls)
        self.blocks.append(drawn.inputs)
        return drawn

    def _leave(self, count: int) -> None:
        while len(self.blocks) > count:
            self.blocks.pop(0).close()


def limit_of_empty(before: Sequence[float], after: Sequence[float]) -> float:
    """What an empty challenge beside a plugin counts as, at most: the highest decile of those without the plugin's process.

    Those after its end tell how slow the host has become. A plugin could leave work to the host, such as files to write. So they raise the
    limit by the factor BUSY at most.
    """
    return min(_highest_decile([*before, *after]), BUSY * _highest_decile(before))


def _highest_decile(samples: Sequence[float]) -> float:
    return statistics.quantiles(samples, n=10, method="inclusive")[-1] if len(samples) > 1 else samples[0]


def memory_of(device: str) -> int:
    """Bytes of the GPU's memory; 0 on the CPU. Not those that are free: a plugin of a run could fill them, for short challenges."""
    return torch.cuda.get_device_properties(0).total_memory if device == "cuda" else 0


def too_large(case: Case, calls: int) -> str:
    """Why the device cannot hold a judgement; empty if it can.

    Beside the shared blocks, the judge's process has the inputs of three calls, or of a problem of all, and one output, and the plugin's
    process a call's tensors.
    """
    inputs, outputs = input_layout(case)[1], output_layout(case)[1]
    needed = (2 + is_whole(case)) * calls * inputs + output_bytes(case, calls) + 4 * inputs + 2 * outputs
    if case.device == "cuda":
        torch.cuda.empty_cache()  # of earlier judgements
        free = torch.cuda.mem_get_info()[0]
    else:
        free = free_memory()
    return f"a judgement needs about {size(needed)}; {size(free)} are free; choose a smaller shape" if needed > free else ""


def calls_of(case: Case, memory: int) -> int:
    """Calls of a challenge: as many as its bytes and a GPU's `memory` have room for.

    A plugin's process may still map the last challenge's inputs while the next ones are drawn.
    """
    inputs, outputs = input_layout(case)[1], output_layout(case)[1]
    calls = WHOLE_CALLS[case.device] if is_whole(case) else CALLS[case.device]
    most = min(calls, CALL_BYTES[case.device] // (inputs + outputs))
    if case.device == "cuda":
        fixed = output_bytes(case, 0) + FLUSH_BYTES
        each = (2 + is_whole(case)) * inputs + (output_bytes(case, 2) - output_bytes(case, 0)) // 2
        most = min(most, (int(MEMORY_SHARE * memory) - fixed) // each)
    return max(LEAST_CALLS, most)
