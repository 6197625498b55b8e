"""A pool whose workers only pretend, and plans and measurements with it."""

from dataclasses import dataclass, field
from pathlib import Path

from softbench.core.case import Case, Direction
from softbench.core.messages import INVALID_REPLY, Built, Done, Graded, Loaded, Profiled, Timed, Verified, reply_from_json
from softbench.core.outcome import Accuracy, Build, Grade, Profile, Status
from softbench.plan.plan import Plan
from softbench.plan.settings import Settings
from softbench.plugins.info import BackendInfo, info_to_json
from softbench.plugins.source import PluginSource
from softbench.processes.slot import WorkerSlot
from softbench.processes.worker_pool import Lost, Worker
from softbench.run.scheduler import Scheduler

PASS = Accuracy(Grade.PASS, 0.5, "")
GOOD = {
    "build": Built(Build(0.1, "")),
    "check": Graded(PASS),
    "renew": Done(),
    "time": Timed((1.0, 2.0, 3.0)),
    "verify": Verified(PASS, None),
    "host": Done(),
    "trace": Done(),
    "calls": Done(),
    "profile": Profiled(Profile((0.5, 0.6), (9.0,), ("softmax_kernel",))),
    "release": Done(),
}
"""A successful reply to each request."""


def info(name, **fields):
    return BackendInfo(name, PluginSource("file", name, f"/x/{name}.py", name), **fields)


@dataclass
class FakePool:
    """Replies from a script: {(backend, op): reply or list of replies}, else as `GOOD`.

    A dict is the JSON of a reply, which is read as the pool reads it.
    """

    script: dict = field(default_factory=dict)
    log: list = field(default_factory=list)
    spawned: int = 0
    gathered: list = field(default_factory=list)
    restarts: int = 0

    def spawn(self, label, env=None, python=""):
        self.spawned += 1
        return Worker(self.spawned, None, Path(), label)

    def tell(self, listener):
        """Nothing fails here that has a log."""

    def discard(self, *workers):
        self.log += [(worker.label, "discard") for worker in workers]

    def ask(self, worker, request, seconds, phase):
        return self.gather({0: (worker, request)}, seconds, phase)[0]

    def gather(self, requests, seconds, phase):
        replies = {}
        self.gathered.append([request.op for _, request in requests.values()])
        for key, (worker, request) in requests.items():
            self.log.append((worker.label, request.op))
            reply = self.script.get((worker.label, request.op))
            if isinstance(reply, list):
                reply = reply.pop(0) if reply else None
            if isinstance(reply, dict):
                try:
                    reply = reply_from_json(request, reply)
                except ValueError:
                    self.discard(worker)
                    reply = Lost(Status.FAILED, f"{phase}: {INVALID_REPLY}", invalid=True)
            replies[key] = reply or GOOD.get(request.op) or Loaded([info_to_json(info(worker.label))])
        return replies


def make(names=("copy", "a", "b"), cases=1, free=2**40, **settings):
    infos = tuple(name if isinstance(name, BackendInfo) else info(name) for name in names)
    found = tuple(Case(8, 2**i, "fp32", Direction.FORWARD, "cuda") for i in range(cases))
    groups = (tuple(o.name for o in infos),)
    settings = Settings(**{"rounds": 4, "max_rounds": settings.get("rounds", 4), **settings})
    return Plan(settings, found, infos, "cuda", "fake", free, groups, {}, ())


def scheduler_of(plan, pool, process=0):
    scheduler = Scheduler(plan, pool, process, {})
    scheduler.take([WorkerSlot(o) for o in plan.infos])
    return scheduler


def measure(plan, pool, case=0):
    group = scheduler_of(plan, pool)
    return {record.backend: record for record in group.measure(plan.cases[case])}
