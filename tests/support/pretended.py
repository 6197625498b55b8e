"""A pool whose workers only pretend, and plans and measurements with it."""

from dataclasses import dataclass, field
from pathlib import Path

from softbench.core.case import Case, Direction
from softbench.plan.plan import Plan
from softbench.plan.settings import Settings
from softbench.plugins.info import BackendInfo, info_to_json
from softbench.plugins.source import PluginSource
from softbench.processes.pool import Worker
from softbench.processes.slot import WorkerSlot
from softbench.run.scheduler import Scheduler

GOOD = {
    "build": {"build": {"seconds": 0.1, "cache": ""}},
    "check": {"accuracy": {"grade": "pass", "worst": 0.5, "detail": ""}},
    "renew": {"renewed": True},
    "time": {"samples_us": [1.0, 2.0, 3.0], "kind": "fake"},
    "verify": {"accuracy": {"grade": "pass", "worst": 0.5, "detail": ""}},
    "host": {"issued": 1},
    "trace": {"tracing": True},
    "calls": {"traced": True},
    "profile": {"profile": {"device_us": [0.5, 0.6], "host_us": [9.0], "kernels": ["softmax_kernel"], "note": ""}},
    "release": {"released": True},
}


def info(name, **fields):
    return BackendInfo(name, PluginSource("file", name, f"/x/{name}.py", name), **fields)


@dataclass
class FakePool:
    """Answers from a script: {(backend, op): answer or list of answers}; what is not in it goes well."""

    script: dict = field(default_factory=dict)
    log: list = field(default_factory=list)
    spawned: int = 0
    gathered: list = field(default_factory=list)

    def spawn(self, label, env=None):
        self.spawned += 1
        return Worker(self.spawned, None, Path(), label)

    def tell(self, listener):
        """Nothing fails here that has a log."""

    def discard(self, *workers):
        self.log += [(worker.label, "discard") for worker in workers]

    def ask(self, worker, message, seconds, phase):
        return self.gather({0: (worker, message)}, seconds, phase)[0]

    def gather(self, requests, seconds, phase):
        replies = {}
        self.gathered.append([message["op"] for _, message in requests.values()])
        for key, (worker, message) in requests.items():
            op = message["op"]
            self.log.append((worker.label, op))
            answer = self.script.get((worker.label, op))
            if isinstance(answer, list):
                answer = answer.pop(0) if answer else None
            replies[key] = answer or (GOOD[op] if op != "load" else {"infos": [info_to_json(info(worker.label))]})
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
