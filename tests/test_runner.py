"""The order of things, with workers that only pretend."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pytest

from softbench import ensemble, runner
from softbench import plan as planning
from softbench.config import Settings
from softbench.lane import MAX_DEATHS, Lane
from softbench.model import Case, Direction, Failed, Gpu, Measured, Probe, Record, Skipped, Status
from softbench.plan import Plan
from softbench.pool import Lost, Worker
from softbench.registry import Offer, Origin, offer_to_json

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


def offer(name, **fields):
    return Offer(name, Origin("file", name, f"/x/{name}.py", name), **fields)


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
            replies[key] = answer or (GOOD[op] if op != "load" else {"offers": [offer_to_json(offer(worker.label))]})
        return replies


def make(names=("copy", "a", "b"), cases=1, free=2**40, **settings):
    offers = tuple(name if isinstance(name, Offer) else offer(name) for name in names)
    found = tuple(Case(8, 2**i, "fp32", Direction.FORWARD, "cuda") for i in range(cases))
    groups = (tuple(o.name for o in offers),)
    settings = Settings(**{"rounds": 4, "max_rounds": settings.get("rounds", 4), **settings})
    return Plan(settings, found, offers, "cuda", "fake", {}, free, groups, {}, ())


def measure(plan, pool, case=0):
    group = ensemble.Ensemble(plan, pool, [Lane(o) for o in plan.offers], 0)
    return {record.backend: record for record in group.measure(plan.cases[case])}


def test_a_cell_is_built_then_checked_then_timed_in_rounds_of_rotating_order():
    pool = FakePool()
    records = measure(make(), pool)
    ops = [op for _, op in pool.log]
    rounds = ["renew"] * 3 + ["time"] * 3 + ["verify"] * 3
    assert ops == ["load"] * 3 + ["build"] * 3 + ["check"] * 3 + rounds * 4 + ["host"] * 3 + ["trace"] * 3 + ["calls"] * 3 + ["profile"] * 3
    one_by_one = [asked for asked in pool.gathered if asked[0] in ("host", "trace", "calls", "profile")]
    assert one_by_one == [*[["host"]] * 3, ["trace"] * 3, *[["calls"]] * 3, ["profile"] * 3]
    timed = "".join(name[0] for name, op in pool.log if op == "time")
    assert [timed[i : i + 3] for i in range(0, 12, 3)] == ["cab", "bac", "abc", "cba"]
    assert [batch.position for batch in records["a"].outcome.timing.batches] == [1, 1, 0, 2]


def test_beside_a_gpu_hosts_work_at_once_between_batches_that_have_it_for_themselves_and_on_a_cpu_never():
    beside = [["renew"] * 3, ["time"], ["time"], ["time"], ["verify"] * 3]
    for device, free, one_round in (
        ("cuda", 2**40, beside),
        ("cpu", 2**40, [["renew"], ["time"], ["verify"]] * 3),
        ("cuda", 0, [["renew"], ["time"], ["verify"], ["release"]] * 3),  # they take turns
    ):
        pool, plan = FakePool(), make(free=free, rounds=2)
        measure(replace(plan, device=device), pool)
        rounds = [asked for asked in pool.gathered if asked[0] in ("renew", "time", "verify", "release")]
        first = rounds.index(one_round[0])
        assert rounds[first : first + 2 * len(one_round)] == one_round * 2, device


def test_of_a_round_only_who_was_renewed_is_timed_and_only_who_was_timed_is_verified():
    lost = Lost(Status.FAILED, "crashed")
    wrong = {"accuracy": {"grade": "wrong", "worst": 9.0, "detail": "in a timed call: off"}}
    pool = FakePool({("copy", "renew"): [lost], ("a", "time"): [lost], ("b", "verify"): [None, wrong]})
    records = measure(make(), pool)
    assert pool.log.count(("copy", "time")) == pool.log.count(("a", "verify")) == 0
    assert [records[name].outcome.reason for name in ("copy", "a", "b")] == ["crashed", "crashed", "in a timed call: off"]
    assert (records["b"].outcome.status, records["b"].outcome.stage, pool.log.count(("b", "time"))) == (Status.WRONG, "time", 2)


STEADY, WILD = ({"samples_us": samples, "kind": "fake"} for samples in ([10.0] * 20, [5.0, 15.0] * 10))


def test_a_backend_whose_figure_is_known_sits_out_and_the_reason_for_stopping_is_recorded():
    pool = FakePool({("copy", "time"): STEADY, ("a", "time"): STEADY, ("b", "time"): WILD, ("torch", "time"): STEADY})
    records = measure(make(("copy", "a", "b", "torch"), rounds=2, max_rounds=5), pool)
    timings = {name: record.outcome.timing for name, record in records.items()}
    assert {name: len(timing.batches) for name, timing in timings.items()} == {"copy": 5, "a": 2, "b": 5, "torch": 5}
    assert {name: timing.stopped for name, timing in timings.items()} == {
        **dict.fromkeys(("copy", "a", "torch"), "precise"),
        "b": "limit",
    }


def test_when_all_is_known_nobody_is_asked_again():
    pool = FakePool({(name, "time"): STEADY for name in ("copy", "a", "b")})
    records = measure(make(rounds=3, max_rounds=10), pool)
    assert {len(record.outcome.timing.batches) for record in records.values()} == {3}
    assert {record.outcome.timing.stopped for record in measure(make(), FakePool()).values()} == {"fixed"}


def test_workers_start_all_at_once_and_only_the_first_set_is_profiled():
    pool = FakePool()
    plan = make()
    group = ensemble.Ensemble(plan, pool, [Lane(o) for o in plan.offers], 1)
    group.measure(plan.cases[0])
    assert pool.gathered[:3] == [["load"] * 3, ["build"] * 3, ["check"] * 3]
    assert "profile" not in [op for _, op in pool.log]


@pytest.mark.parametrize(("profile", "asked"), [("on", ["host", "trace", "calls", "profile"]), ("off", ["profile"])])
def test_without_profiles_nothing_is_called_but_memory_and_recompilations_are_still_told(profile, asked):
    pool = FakePool()
    measure(make(profile=profile), pool)
    ops = [op for name, op in pool.log if name == "a"]
    assert ops[ops.index("check") + 1 :] == ["renew", "time", "verify"] * 4 + asked


class Kept:
    """A run that has the cells of some sets of processes."""

    def __init__(self, sets):
        self.sets, self.added = sets, []

    def keep_log(self, label, text):
        """Nothing fails here that has a log."""

    def has(self, process, names, case):
        return process in self.sets

    def add(self, process, records):
        self.added.append(process)


class Watching:
    def __init__(self):
        self.cells = 0

    def advance(self, case, cells, *, stored=False):
        self.cells += cells


@pytest.mark.parametrize(("device", "order"), [("cuda", ["open 1", "open 2", "close 1", "close 2"]), ("cpu", ["open 1", "close 1"] * 2)])
def test_beside_a_gpu_the_next_sets_nursery_starts_while_one_measures(monkeypatch, device, order):
    """Sets 0, 1 and 3 of four are left; the pool of the first is the caller's. The CPU's next pool opens after the one before has ended."""
    log = []

    class Opened(FakePool):
        def __init__(self, spent=None):
            super().__init__()
            self.number, self.closed = len([line for line in log if line.startswith("open")]) + 1, False

        def __enter__(self):
            log.append(f"open {self.number}")
            return self

        def close(self):
            if not self.closed:
                log.append(f"close {self.number}")
            self.closed = True

        def __exit__(self, *_):
            self.close()

    monkeypatch.setattr(runner, "Pool", Opened)
    plan, kept, watching = replace(make(processes=4), device=device), Kept({2}), Watching()
    caller = FakePool()
    caller.spent = {}
    runner.execute(plan, kept, watching, caller, [Lane(o) for o in plan.offers])
    assert kept.added == [0, 1, 3]
    assert watching.cells == 4 * 3
    assert [line.split()[0] for line in log] == [line.split()[0] for line in order]


def reading(throttled=""):
    fields = {"sm_clock_mhz": 1980, "memory_clock_mhz": 3201, "power_w": 500.0, "temperature_c": 60, "reasons": 0}
    return {**GOOD["verify"], "telemetry": {**fields, "throttled": throttled}}


def patient(pool, rounds=2):
    plan = make(("a",), rounds=rounds)
    group = ensemble.Ensemble(plan, pool, [Lane(o) for o in plan.offers], 0)
    pauses = []
    group.pause = pauses.append
    (record,) = group.measure(plan.cases[0])
    return record, pauses, group


def test_a_throttled_batch_is_marked_kept_and_taken_again_after_a_pause():
    record, pauses, _ = patient(FakePool({("a", "verify"): [reading("too hot"), reading("too hot"), reading(), reading()]}))
    batches = record.outcome.timing.batches
    assert [(batch.round, batch.throttled) for batch in batches] == [(0, True), (0, True), (0, False), (1, False)]
    assert pauses == list(ensemble.PAUSES_SECONDS[:2])


def test_of_a_round_only_whose_batches_were_throttled_are_taken_again_after_one_pause_for_all():
    hot = [reading("too hot"), reading(), None]
    pool, plan, pauses = FakePool({("a", "verify"): list(hot), ("b", "verify"): list(hot)}), make(rounds=2), []
    group = ensemble.Ensemble(plan, pool, [Lane(o) for o in plan.offers], 0)
    group.pause = pauses.append
    records = {record.backend: record for record in group.measure(plan.cases[0])}
    marks = {
        name: [(b.round, b.position, b.throttled) for b in records[name].outcome.timing.batches if b.round == 0]
        for name in ("copy", "a", "b")
    }
    assert marks == {"copy": [(0, 0, False)], "a": [(0, 1, True), (0, 1, False)], "b": [(0, 2, True), (0, 2, False)]}
    assert pauses == [ensemble.PAUSES_SECONDS[0]]


def test_a_card_that_is_always_too_hot_is_measured_as_it_is_and_not_waited_for_for_ever():
    record, pauses, group = patient(FakePool({("a", "verify"): reading("too hot")}), rounds=40)
    assert isinstance(record.outcome, Measured)
    assert {batch.round for batch in record.outcome.timing.batches} == set(range(40))
    assert sum(pauses) <= ensemble.PATIENCE_SECONDS
    assert group.patience_seconds < ensemble.PAUSES_SECONDS[0]


def test_each_cell_has_the_device_and_host_time_of_its_call():
    profile = measure(make(), FakePool())["a"].outcome.profile
    assert (profile.device_us, profile.host_us, profile.kernels) == ((0.5, 0.6), (9.0,), ("softmax_kernel",))


def test_two_backends_alternate_ab_ba_ba_ab():
    lanes = [Lane(offer("A")), Lane(offer("B"))]
    assert ["".join(lane.name for lane in ensemble.round_order(lanes, turn)) for turn in range(4)] == ["AB", "BA", "BA", "AB"]


def test_what_is_wrong_is_never_timed():
    wrong = {"accuracy": {"grade": "wrong", "worst": 99.0, "detail": "y[0, 0] is off"}}
    pool = FakePool({("a", "check"): wrong})
    records = measure(make(), pool)
    assert records["a"].status is Status.WRONG
    assert ("a", "time") not in pool.log
    assert isinstance(records["b"].outcome, Measured)


def test_a_lost_worker_costs_its_cell_only_and_is_replaced():
    pool = FakePool({("a", "time"): [Lost(Status.FAILED, "crashed (SIGSEGV) in time")]})
    plan = make(cases=2)
    group = ensemble.Ensemble(plan, pool, [Lane(o) for o in plan.offers], 0)
    first, second = ({r.backend: r for r in group.measure(case)} for case in plan.cases)
    assert first["a"].outcome.reason == "crashed (SIGSEGV) in time"
    assert first["a"].outcome.build is not None
    assert isinstance(first["b"].outcome, Measured)
    assert isinstance(second["a"].outcome, Measured)
    assert pool.spawned == 4


def test_a_poisoned_worker_is_not_used_again():
    failed = {"failed": {"status": "failed", "stage": "check", "reason": "CUDA error"}, "poisoned": True}
    pool = FakePool({("a", "check"): [failed]})
    measure(make(), pool)
    assert ("a", "discard") in pool.log


def test_a_backend_whose_workers_keep_dying_is_given_up_with_the_reason():
    pool = FakePool({("a", "build"): Lost(Status.TIMEOUT, "build took longer than 1 s")})
    plan = make(cases=MAX_DEATHS + 2)
    group = ensemble.Ensemble(plan, pool, [Lane(o) for o in plan.offers], 0)
    outcomes = [next(r for r in group.measure(case) if r.backend == "a").outcome for case in plan.cases]
    assert [outcome.status for outcome in outcomes] == [Status.TIMEOUT] * (MAX_DEATHS + 2)
    assert outcomes[-1].reason == "not tried: 3 cases in a row ended its worker; the last build took longer than 1 s"
    assert pool.log.count(("a", "build")) == MAX_DEATHS


def test_only_cases_in_a_row_count(make_record):
    lost, wrong = Lost(Status.FAILED, "crashed"), {"accuracy": {"grade": "wrong", "worst": 9.0, "detail": "off"}}
    pool = FakePool({("a", "build"): [lost, None, lost, None, lost, None], ("a", "check"): [wrong] * 3})
    plan = make(cases=6)
    group = ensemble.Ensemble(plan, pool, [Lane(o) for o in plan.offers], 0)
    statuses = [next(r for r in group.measure(case) if r.backend == "a").status for case in plan.cases]
    assert statuses == [Status.FAILED, Status.WRONG] * 3


@pytest.mark.parametrize(
    ("op", "answer"),
    [
        ("build", {"built": True}),
        ("build", {"build": 3}),
        ("check", {"accuracy": {"grade": "excellent", "worst": 0, "detail": ""}}),
        ("time", {"samples_us": [], "kind": "x"}),
        ("time", {"samples_us": [-1.0], "kind": "x"}),
        ("time", {"samples_us": "fast", "kind": "x"}),
        ("verify", {"accuracy": {"grade": "excellent", "worst": 0, "detail": ""}}),
        ("verify", {"verified": True}),
        ("profile", {"profile": {"device_us": [-1.0]}}),
        ("profile", {"profile": {"speed": 1}}),
        ("profile", {"profile": {"peak_bytes": "much"}}),
        ("verify", {**GOOD["verify"], "telemetry": {"sm_clock_mhz": "fast"}}),
        ("verify", {**GOOD["verify"], "telemetry": [3]}),
    ],
)
def test_an_answer_that_is_none_fails_its_cell_only(op, answer):
    records = measure(make(), FakePool({("a", op): answer}))
    outcome = records["a"].outcome
    stage = "time" if op in ("profile", "verify") else op
    assert (outcome.status, outcome.stage) == (Status.FAILED, stage)
    assert outcome.reason == f"{stage}: its process gave an answer that is none"
    assert isinstance(records["b"].outcome, Measured)


def test_out_of_memory_is_tried_once_more_in_a_fresh_worker_with_the_others_buffers_released():
    oom = {"failed": {"status": "oom", "stage": "build", "reason": "OutOfMemoryError: tried to allocate 9 GiB"}}
    pool = FakePool({("a", "build"): [oom]})
    records = measure(make(), pool)
    assert isinstance(records["a"].outcome, Measured)
    assert pool.log.index(("copy", "release")) < len(pool.log) - pool.log[::-1].index(("a", "build"))
    again = measure(make(), FakePool({("a", "build"): oom}))
    assert again["a"].status is Status.OOM
    assert isinstance(again["b"].outcome, Measured)


def test_where_buffers_do_not_fit_together_workers_take_turns_holding_them():
    pool = FakePool()
    plan = make(free=2 * 2**30, rounds=2)
    assert plan.takes_turns(plan.cases[0], 3)
    assert not make().takes_turns(plan.cases[0], 3)
    measure(plan, pool)
    holding: set[str] = set()
    for name, op in pool.log:
        if op in ("build", "time"):
            holding.add(name)
        elif op == "release":
            holding.discard(name)
        assert len(holding) <= 1
    assert not holding


def test_who_has_no_worker_makes_nobody_take_turns():
    idle = [offer(f"idle-{i}", unavailable="no package") for i in range(8)]
    plan, pool = make(("copy", "a", *idle), free=5 * 2**30), FakePool()
    assert plan.takes_turns(plan.cases[0], 10)
    assert not plan.takes_turns(plan.cases[0], 2)
    measure(plan, pool)
    assert "release" not in {op for _, op in pool.log}


def test_workers_that_are_needed_are_started_at_once():
    pool = FakePool()
    measure(make(), pool)
    assert [op for _, op in pool.log[:4]] == ["load", "load", "load", "build"]


def test_unavailable_and_broken_backends_are_rows_with_their_reasons():
    pool = FakePool()
    plan = make(("copy", offer("gone", unavailable="no nvcc"), offer("bad", broken="import took longer than 3 s", broken_status="timeout")))
    records = measure(plan, pool)
    assert records["gone"].outcome == Skipped("no nvcc", unavailable=True)
    assert records["bad"].outcome == Failed(Status.TIMEOUT, "import", "import took longer than 3 s")
    assert isinstance(records["copy"].outcome, Measured)
    assert pool.spawned == 1


def test_a_skip_carries_its_reason():
    records = measure(make(), FakePool({("a", "build"): {"skip": "only aligned N"}}))
    assert records["a"].outcome == Skipped("only aligned N")


CASE = Case(8, 8, "fp32", Direction.FORWARD)


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ({"copy": "ok", "a": "ok"}, 0),
        ({"copy": "ok", "a": "ok", "b": "unavailable"}, 0),
        ({"copy": "ok", "a": "ok", "b": "wrong"}, 1),
        ({"copy": "ok", "a": "ok", "b": "timeout"}, 1),
        ({"copy": "ok", "a": "skipped"}, 1),
        ({"copy": "ok"}, 0),
        ({}, 1),
    ],
)
def test_the_exit_code_says_whether_something_was_measured_and_nothing_failed(make_record, statuses, code):
    def record(name, status):
        if status == "ok":
            return make_record(name, [1.0])
        if status in ("skipped", "unavailable"):
            return Record(name, CASE, Skipped("why", unavailable=status == "unavailable"))
        return Record(name, CASE, Failed(Status(status), "check", "why"))

    assert runner.exit_code([record(name, status) for name, status in statuses.items()]) == code


def gpu(name="H200", mode="default", free=2**37):
    return Gpu(name, "GPU-" + name, free, free, mode, {})


def test_the_device_is_chosen_by_what_the_probe_saw():
    nothing = Probe("2.13", "torch is built without CUDA", (), "EPYC", 2**34, {})
    two = Probe("2.13", "", (gpu("A"), gpu("B")), "EPYC", 2**34, {})
    assert planning.choose_device("auto", nothing) == ("cpu", None)
    assert planning.choose_device("cuda:1", two) == ("cuda", gpu("B"))
    assert planning.choose_device("cpu", two) == ("cpu", None)
    with pytest.raises(planning.UsageError, match="built without CUDA; use --device cpu"):
        planning.choose_device("cuda", nothing)
    with pytest.raises(planning.UsageError, match="there are cuda:0 A, cuda:1 B"):
        planning.choose_device("cuda:2", two)


def test_other_processes_on_the_gpu_are_told_of():
    busy = replace(gpu(), facts={"gpu_other_processes": 2})
    look = Probe("2.13", "", (busy,), "EPYC", 2**34, {})
    pool = FakePool({("probe", "probe"): {"probe": asdict(look)}})
    plan, _ = planning.make(pool, {}, {"backends": ("copy",), "relative_to": "copy"}, quick=True)
    assert plan.notes == ("others use the GPU (2 processes): what they do disturbs the figures",)


def test_workers_that_cannot_be_alive_together_are_grouped():
    assert planning.grouped(["a", "b", "c"], 2) == (("a", "b"), ("c",))
    assert planning.grouped(["a", "b"], 2, ["has-no-worker"]) == (("a", "b", "has-no-worker"),)
    assert planning.grouped([], 2, ["has-no-worker"]) == (("has-no-worker",),)
    big = [Case(2**15, 2**15, "fp32", Direction.FORWARD)]
    assert planning.most_alive(big, "cuda", 44 * 2**30) == 4
    assert planning.most_alive(big, "cuda", 2**30) == 1
