"""Cards that only pretend: they answer the fleet at once, and fail as a test tells them to."""

import queue
import time
from dataclasses import asdict, replace
from pathlib import Path

from softbench import __version__
from softbench.core.case import YARDSTICK
from softbench.core.machine import Gpu, Machine
from softbench.core.outcome import Accuracy, Batch, Build, Failed, Grade, Measured, Record, Status, Timing
from softbench.plugins.info import BackendInfo, info_to_json
from softbench.plugins.source import PluginSource
from softbench.results.records import case_from_json, record_to_json
from softbench.run.request import RunRequest, request_from_json

BACKENDS = ("copy", "torch", "naive")


class Note(list):
    """An observer that keeps its notes, and those of losses apart too."""

    pace = None

    def __init__(self):
        super().__init__()
        self.losses = []

    def watch(self, doing):
        """Nothing is shown."""

    def begin(self, plan, pace, name):
        self.pace = pace

    def advance(self, case):
        """Nothing is shown."""

    def note(self, text, *, error=False):
        self.append(text)
        if error:
            self.losses.append(text)


def request(folder, N=range(256, 1536, 256), resume=False, **flags):
    given = {"M": (4096,), "N": tuple(N), "backends": ("torch", "naive"), "rounds": 1, "max_rounds": 1, **flags}
    return RunRequest({}, given, False, Path(folder), resume, "softbench run --devices all", __version__)


class Events(queue.Queue):
    """The events of fake cards. Those that do not hang say something while the fleet waits."""

    def __init__(self, cards):
        super().__init__()
        self.cards = cards

    def get(self, timeout):
        if self.empty():
            time.sleep(timeout)
            for number in range(len(self.cards.models)):
                if number not in {*self.cards.hung, *self.cards.killed}:
                    self.put((number, {"op": "beat", "doing": "time of torch", "left": 1.0}))
        return super().get(timeout=timeout)


class FakeCards:
    """Cards of one host. `us` is the latency of every call, by number; `models` the GPUs."""

    def __init__(self, models=("H200", "H200"), us=(), **about):
        self.models, self.us = models, dict(enumerate(us))
        self.names = [f"cuda:{number}" for number in range(len(models))]
        self.opening = [{"device": name, "processors": []} for name in self.names]
        self.events = Events(self)
        self.hung = set()
        self.dealt, self.killed, self.closed = [], [], False
        self.fails = about.pop("fails", {})
        """By number: after so many cases, what happens: `dies`, `hangs`, `copy fails`, or `forgets`."""
        self.about = about
        self.measured = dict.fromkeys(range(len(models)), 0)
        self.infos, self.requests = {}, {}
        self.log = []
        """What was asked of which card, in order; `copy` is the comparison."""

    def machine(self):
        gpus = tuple(
            Gpu(model, f"GPU-{number}", 2**37, 2**37, "default", {"gpu": model, "gpu_index": number})
            for number, model in enumerate(self.models)
        )
        return Machine("2.13", "", gpus, "EPYC", 2**34, {"python": "3.12", "overrides": {"torch._native": ["_foreach_mm"]}}, "node1")

    def send(self, number, message):
        if number in self.killed:
            return
        self.log.append((number, "copy" if message.get("backends") else message["op"]))
        if message["op"] == "open":
            self.requests[number] = request_from_json(message["request"])
            self._open(number)
        else:
            self._measure(number, message)

    def _open(self, number):
        if text := self.about.get("unopened", {}).get(number):
            self.events.put((number, {"op": "error", "text": text, "code": 1}))
            return
        machine = replace(self.machine(), torch=self.about.get("torch", {}).get(number, "2.13"))
        sources = [BackendInfo(name, PluginSource("entry point", name, "x:y", "x"), source=f"hash of {name}") for name in BACKENDS]
        opened = {"softbench": __version__, "machine": asdict(machine), "gpu": number, "unit": f"node1/{number}/0000000{number}"}
        infos = [{"label": info.name, "info": info_to_json(info)} for info in sources]
        self.events.put((number, {"op": "opened", **opened, "infos": infos, "unsupported": []}))

    def _measure(self, number, message):
        backends = message.get("backends") or BACKENDS
        comparing = bool(message.get("backends"))
        self.dealt += [] if comparing else [(number, [case_from_json(case).N for case in message["cases"]])]
        stored = [(process, case_from_json(case)) for process, case in message.get("stored", ())]
        settings = self.requests[number].settings("cuda")
        for process in range(1 if comparing else settings.processes):
            for case in map(case_from_json, message["cases"]):
                if (process, case) in stored:
                    continue
                after, what = self.fails.get(number, (None, ""))
                failing = not comparing and after is not None and self.measured[number] >= after
                if failing and what == "dies":
                    self.events.put((number, {"op": "ended", "text": "its process was killed (SIGKILL)"}))
                    return
                if failing and what == "hangs":
                    self.hung.add(number)
                    return
                if failing and what == "forgets":
                    continue
                bad = failing and what == "copy fails"
                records = [self._record(number, name, case, process, bad=bad) for name in backends]
                self.measured[number] += not comparing
                self.events.put((number, {"op": "records", "process": process, "records": [record_to_json(one) for one in records]}))
        self.events.put((number, {"op": "done", "seconds": {"time": 1.0}}))

    def _record(self, number, name, case, process, *, bad):
        if bad:
            return Record(name, case, Failed(Status.FAILED, "time", "CUDA error: unspecified launch failure"), f"hash of {name}")
        us = self.us.get(number, 100.0)
        batches = (Batch(process, 0, 0, (us * 0.99, us, us * 1.01)),)
        grade = Grade.YARDSTICK if name == YARDSTICK else Grade.PASS
        outcome = Measured(Build(0.1, ""), Accuracy(grade, 0.1, ""), Timing(batches, "queued", "cold", "fixed"))
        return Record(name, case, outcome, f"hash of {name}")

    def kill(self, number):
        self.killed.append(number)

    def close(self):
        self.closed = True
