"""The scheduler: the order of its requests, with fake workers."""

from dataclasses import replace

import pytest
from pretended import GOOD, PASS, FakePool, info, make, measure, scheduler_of

from softbench.core.case import Case, Direction
from softbench.core.json import to_json
from softbench.core.messages import Done, Failure, Graded, Profiled, Skip, Timed, Verified
from softbench.core.outcome import Accuracy, Failed, Grade, Measured, Profile, Skipped, Status, Telemetry
from softbench.plan.plan import most_alive
from softbench.processes.slot import MAX_DEATHS, WorkerSlot
from softbench.processes.worker_pool import Lost
from softbench.run import scheduler
from softbench.run.profile_verdict import failed


def test_cells_are_built_checked_and_timed_in_rotating_order():
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


def test_only_gpu_workers_run_together_and_never_while_timed():
    beside = [["renew"] * 3, ["time"], ["time"], ["time"], ["verify"] * 3]
    for device, free, one_round in (
        ("cuda", 2**40, beside),
        ("cpu", 2**40, [["renew"], ["time"], ["verify"]] * 3),
        ("cuda", 2**20, [["renew"], ["time"], ["verify"], ["release"]] * 3),  # they take turns
    ):
        pool, plan = FakePool(), make(free=free, rounds=2)
        measure(replace(plan, device=device), pool)
        rounds = [asked for asked in pool.gathered if asked[0] in ("renew", "time", "verify", "release")]
        first = rounds.index(one_round[0])
        assert rounds[first : first + 2 * len(one_round)] == one_round * 2, device


def test_a_backend_that_fails_one_step_skips_the_next():
    lost = Lost(Status.FAILED, "crashed")
    wrong = Verified(Accuracy(Grade.WRONG, 9.0, "in a timed call: off"), None)
    pool = FakePool({("copy", "renew"): [lost], ("a", "time"): [lost], ("b", "verify"): [None, wrong]})
    records = measure(make(), pool)
    assert pool.log.count(("copy", "time")) == pool.log.count(("a", "verify")) == 0
    assert [records[name].outcome.reason for name in ("copy", "a", "b")] == ["crashed", "crashed", "in a timed call: off"]
    assert (records["b"].outcome.status, records["b"].outcome.stage, pool.log.count(("b", "time"))) == (Status.WRONG, "time", 2)


STEADY, WILD = (Timed(samples) for samples in ((10.0,) * 20, (5.0, 15.0) * 10))


def test_a_settled_backend_stops_early_with_a_recorded_reason():
    pool = FakePool({("copy", "time"): STEADY, ("a", "time"): STEADY, ("b", "time"): WILD, ("torch", "time"): STEADY})
    records = measure(make(("copy", "a", "b", "torch"), rounds=2, max_rounds=5), pool)
    timings = {name: record.outcome.timing for name, record in records.items()}
    assert {name: len(timing.batches) for name, timing in timings.items()} == {"copy": 5, "a": 2, "b": 5, "torch": 5}
    assert {name: timing.stopped for name, timing in timings.items()} == {
        **dict.fromkeys(("copy", "a", "torch"), "precise"),
        "b": "limit",
    }


SLOW = Timed((40.0,) * 20)


@pytest.mark.parametrize(
    ("copy", "max_rounds", "requests", "kept"),
    [
        ([STEADY] * 6, 5, 3, [0, 1, 2]),
        ([STEADY, SLOW, SLOW, *[STEADY] * 3], 5, 6, [5, 6, 7]),  # its rounds disagree
        ([SLOW] * 6, 5, 6, [5, 6, 7]),  # it is slower than what it judges, and so it stays
        ([SLOW] * 6, 3, 3, [0, 1, 2]),  # the number of rounds is fixed
    ],
)
def test_all_are_measured_again_once_if_copy_is_doubtful(copy, max_rounds, requests, kept):
    pool = FakePool({("copy", "time"): list(copy), ("a", "time"): STEADY, ("b", "time"): STEADY})
    records = measure(make(rounds=3, max_rounds=max_rounds), pool)
    assert pool.log.count(("copy", "time")) == requests
    assert [[batch.round for batch in records[name].outcome.timing.batches] for name in ("copy", "a", "b")] == [kept] * 3


def test_precise_cells_get_no_more_requests():
    pool = FakePool({(name, "time"): STEADY for name in ("copy", "a", "b")})
    records = measure(make(rounds=3, max_rounds=10), pool)
    assert {len(record.outcome.timing.batches) for record in records.values()} == {3}
    assert {record.outcome.timing.stopped for record in measure(make(), FakePool()).values()} == {"fixed"}


def test_workers_start_together_and_later_sets_are_not_profiled():
    pool = FakePool()
    plan = make()
    group = scheduler_of(plan, pool, process=1)
    group.measure(plan.cases[0])
    assert pool.gathered[:3] == [["load"] * 3, ["build"] * 3, ["check"] * 3]
    assert "profile" not in [op for _, op in pool.log]


@pytest.mark.parametrize(("built", "beside"), [(None, "torch"), (Skip("it takes no such rows"), None)])
def test_a_reference_that_cannot_run_a_case_is_not_called_beside_others(built, beside):
    """Its error would end their own host times."""
    names, asked = ("copy", "a", "torch"), []
    pool = FakePool({("torch", "build"): built, **{(name, "users"): Done() for name in names}})
    gather = pool.gather

    def gathered(requests, *given):
        asked.extend(request for _, request in requests.values() if request.op == "users")
        return gather(requests, *given)

    pool.gather = gathered
    measure(make(names, timer="host"), pool)
    assert {one.beside and one.beside[1] for one in asked} == {beside}


@pytest.mark.parametrize(("profile", "asked"), [("on", ["host", "trace", "calls", "profile"]), ("off", ["profile"])])
def test_without_profiles_only_memory_and_recompilations_are_asked_for(profile, asked):
    pool = FakePool()
    measure(make(profile=profile), pool)
    ops = [op for name, op in pool.log if name == "a"]
    assert ops[ops.index("check") + 1 :] == ["renew", "time", "verify"] * 4 + asked


def reading(throttled=""):
    fields = {"sm_clock_mhz": 1980, "memory_clock_mhz": 3201, "power_w": 500.0, "temperature_c": 60, "reasons": 0}
    return Verified(PASS, Telemetry(**fields, throttled=throttled))


def patient(pool, rounds=2):
    plan = make(("a",), rounds=rounds)
    group = scheduler_of(plan, pool, process=0)
    pauses = []
    group.pause = pauses.append
    (record,) = group.measure(plan.cases[0])
    return record, pauses, group


def test_a_throttled_batch_is_kept_and_repeated_after_a_pause():
    record, pauses, _ = patient(FakePool({("a", "verify"): [reading("too hot"), reading("too hot"), reading(), reading()]}))
    batches = record.outcome.timing.batches
    assert [(batch.round, batch.throttled) for batch in batches] == [(0, True), (0, True), (0, False), (1, False)]
    assert pauses == list(scheduler.PAUSES_SECONDS["cuda"][:2])


def test_only_throttled_batches_are_repeated_after_one_common_pause():
    hot = [reading("too hot"), reading(), None]
    pool, plan, pauses = FakePool({("a", "verify"): list(hot), ("b", "verify"): list(hot)}), make(rounds=2), []
    group = scheduler_of(plan, pool, process=0)
    group.pause = pauses.append
    records = {record.backend: record for record in group.measure(plan.cases[0])}
    marks = {
        name: [(b.round, b.position, b.throttled) for b in records[name].outcome.timing.batches if b.round == 0]
        for name in ("copy", "a", "b")
    }
    assert marks == {"copy": [(0, 0, False)], "a": [(0, 1, True), (0, 1, False)], "b": [(0, 2, True), (0, 2, False)]}
    assert pauses == [scheduler.PAUSES_SECONDS["cuda"][0]]


def test_pauses_for_a_throttled_gpu_are_limited():
    record, pauses, group = patient(FakePool({("a", "verify"): reading("too hot")}), rounds=40)
    assert isinstance(record.outcome, Measured)
    assert {batch.round for batch in record.outcome.timing.batches} == set(range(40))
    assert sum(pauses) <= scheduler.PATIENCE_SECONDS["cuda"]
    assert group.patience_seconds < scheduler.PAUSES_SECONDS["cuda"][0]


def test_pauses_for_a_busy_cpu_are_short():
    plan, pauses = replace(make(("a",), rounds=40), device="cpu"), []
    group = scheduler_of(plan, FakePool({("a", "verify"): reading("a thread waited")}))
    group.pause = pauses.append
    (record,) = group.measure(plan.cases[0])
    assert {batch.round for batch in record.outcome.timing.batches} == set(range(40))
    assert pauses[:2] == list(scheduler.PAUSES_SECONDS["cpu"])
    assert sum(pauses) <= scheduler.PATIENCE_SECONDS["cpu"]


def test_each_cell_has_device_and_host_time():
    profile = measure(make(), FakePool())["a"].outcome.profile
    assert (profile.device_us, profile.host_us, profile.kernels) == ((0.5, 0.6), (9.0,), ("softmax_kernel",))


def test_two_backends_alternate_ab_ba_ba_ab():
    slots = [WorkerSlot(info("A")), WorkerSlot(info("B"))]
    assert ["".join(slot.name for slot in scheduler.round_order(slots, turn)) for turn in range(4)] == ["AB", "BA", "BA", "AB"]


def test_what_is_wrong_is_never_timed():
    wrong = Graded(Accuracy(Grade.WRONG, 99.0, "y[0, 0] is off"))
    pool = FakePool({("a", "check"): wrong})
    records = measure(make(), pool)
    assert records["a"].status is Status.WRONG
    assert ("a", "time") not in pool.log
    assert isinstance(records["b"].outcome, Measured)


def test_a_lost_worker_costs_its_cell_only_and_is_replaced():
    pool = FakePool({("a", "time"): [Lost(Status.FAILED, "crashed (SIGSEGV) in time")]})
    plan = make(cases=2)
    group = scheduler_of(plan, pool, process=0)
    first, second = ({r.backend: r for r in group.measure(case)} for case in plan.cases)
    assert first["a"].outcome.reason == "crashed (SIGSEGV) in time"
    assert first["a"].outcome.build is not None
    assert isinstance(first["b"].outcome, Measured)
    assert isinstance(second["a"].outcome, Measured)
    assert pool.spawned == 4


def test_a_poisoned_worker_is_not_used_again():
    failed = Failure(Status.FAILED, "check", "CUDA error", poisoned=True)
    pool = FakePool({("a", "check"): [failed]})
    measure(make(), pool)
    assert ("a", "discard") in pool.log


def test_a_backend_is_not_tried_after_repeated_worker_deaths():
    pool = FakePool({("a", "build"): Lost(Status.TIMEOUT, "build took longer than 1 s")})
    plan = make(cases=MAX_DEATHS + 2)
    group = scheduler_of(plan, pool, process=0)
    outcomes = [next(r for r in group.measure(case) if r.backend == "a").outcome for case in plan.cases]
    assert [outcome.status for outcome in outcomes] == [Status.TIMEOUT] * (MAX_DEATHS + 2)
    assert (
        outcomes[-1].reason
        == "not tried: 3 cases in a row ended its worker; the last build took longer than 1 s; --timeout build=SECONDS allows more"
    )
    assert pool.log.count(("a", "build")) == MAX_DEATHS


def test_only_cases_in_a_row_count(make_record):
    lost, wrong = Lost(Status.FAILED, "crashed"), Graded(Accuracy(Grade.WRONG, 9.0, "off"))
    pool = FakePool({("a", "build"): [lost, None, lost, None, lost, None], ("a", "check"): [wrong] * 3})
    plan = make(cases=6)
    group = scheduler_of(plan, pool, process=0)
    statuses = [next(r for r in group.measure(case) if r.backend == "a").status for case in plan.cases]
    assert statuses == [Status.FAILED, Status.WRONG] * 3


@pytest.mark.parametrize(
    ("op", "fields"),
    [
        ("build", {"reply": "Timed", "samples_us": [1.0]}),
        ("build", {"build": 3}),
        ("check", {"accuracy": {"grade": "excellent", "worst": 0, "detail": ""}}),
        ("time", {"samples_us": []}),
        ("time", {"samples_us": [-1.0]}),
        ("time", {"samples_us": "fast"}),
        ("time", {"samples_us": [1.0, True]}),
        ("verify", {"accuracy": {"grade": "excellent", "worst": 0, "detail": ""}}),
        ("verify", {"verified": True}),
        ("profile", {"profile": {"device_us": [-1.0]}}),
        ("profile", {"profile": {"device_us": [True]}}),
        ("profile", {"speed": 1}),
        ("profile", {"profile": {"peak_bytes": "much"}}),
        ("profile", {"profile": {"peak_bytes": False}}),
        ("profile", {"profile": {"recompiles": -1}}),
        ("verify", {"telemetry": {"sm_clock_mhz": "fast"}}),
        ("verify", {"telemetry": {"power_w": True}}),
        ("verify", {"telemetry": [3]}),
        ("release", {"reply": "Failure", "status": "fine"}),
    ],
)
def test_an_invalid_reply_fails_its_cell_only(op, fields):
    invalid = {**to_json(GOOD[op]), **fields} if op != "verify" or "verified" not in fields else {"reply": "Verified", **fields}
    pool = FakePool({("a", op): invalid})
    records = measure(make(free=2 * 2**30) if op == "release" else make(), pool)
    outcome = records["a"].outcome
    stage = op if op in ("build", "check") else "time"
    assert (outcome.status, outcome.stage) == (Status.FAILED, stage)
    assert outcome.reason == f"{stage}: the worker sent an invalid reply"
    assert ("a", "discard") in pool.log
    assert isinstance(records["b"].outcome, Measured)


def test_a_worker_lost_in_its_profile_keeps_its_result():
    """As after a line that is not JSON, which the pool reports as a lost worker."""
    records = measure(make(), FakePool({("a", "profile"): Lost(Status.FAILED, "time: the worker sent an invalid reply")}))
    assert isinstance(records["a"].outcome, Measured)
    assert records["a"].outcome.profile.note == "time: the worker sent an invalid reply"


def test_a_case_of_which_no_kernel_was_seen_is_unverified():
    reason = "the profiler saw no kernel of 10 calls, so nothing shows that they computed"
    records = measure(make(), FakePool({("a", "profile"): Profiled(Profile(note=reason), reason)}))
    assert records["a"].status is Status.UNVERIFIED
    assert records["a"].outcome.reason == reason
    assert records["b"].outcome.profile.kernels == ("softmax_kernel",)


UNORDERED = "hidden runs on another stream"


@pytest.mark.parametrize(
    ("second", "status", "reason"),
    [
        (Profiled(Profile((0.5,)), unordered=UNORDERED), Status.WRONG, UNORDERED),
        (Profiled(Profile((0.5,))), Status.OK, ""),
        (Profiled(Profile(note="CUPTI is busy")), Status.UNVERIFIED, f"{UNORDERED}; a second trace failed: CUPTI is busy"),
        (Lost(Status.FAILED, "crashed"), Status.UNVERIFIED, f"{UNORDERED}; a second trace failed: crashed"),
    ],
)
def test_unordered_work_is_wrong_only_in_two_traces(second, status, reason):
    first = Profiled(Profile((0.5,)), unordered=UNORDERED)
    pool = FakePool({("a", "profile"): [first, second]})
    records = measure(make(), pool)
    assert records["a"].status is status
    assert getattr(records["a"].outcome, "reason", "") == reason
    assert pool.log.count(("a", "calls")) == 2
    assert pool.log.count(("b", "calls")) == 1
    assert records["b"].status is Status.OK


def test_a_case_that_cannot_fit_is_refused_before_it_starts():
    pool, plan = FakePool(), make(cases=2, free=2**40)
    huge = replace(plan.cases[0], M=10**7, N=10**7)
    records = measure(replace(plan, cases=(huge, plan.cases[1])), pool)
    assert {record.status for record in records.values()} == {Status.OOM}
    assert records["a"].outcome.reason == "its tensors need 727.6 TiB; 1 TiB are free"
    assert pool.log == []


def test_out_of_memory_is_tried_again_with_other_buffers_released():
    oom = Failure(Status.OOM, "build", "OutOfMemoryError: tried to allocate 9 GiB")
    pool = FakePool({("a", "build"): [oom]})
    records = measure(make(), pool)
    assert isinstance(records["a"].outcome, Measured)
    assert pool.log.index(("copy", "release")) < len(pool.log) - pool.log[::-1].index(("a", "build"))
    again = measure(make(), FakePool({("a", "build"): oom}))
    assert again["a"].status is Status.OOM
    assert isinstance(again["b"].outcome, Measured)


def test_workers_take_turns_if_their_buffers_do_not_fit():
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


def test_losses_without_logits_take_turns_on_one_gpu_and_stay_interleaved():
    loss = Case(8192, 128256, "bf16", Direction.FUSED, "cuda", "linear_cross_entropy")
    for gib, turns in ((80, True), (139, True), (600, False)):
        plan = make([f"b{i}" for i in range(9)], free=gib * 2**30)
        assert plan.takes_turns(loss, 9) is turns
        assert most_alive([loss], "cuda", 0.9 * gib * 2**30) >= 9
        assert not plan.takes_turns(CASE, 9)


def test_slot_without_a_worker_leaves_the_memory_rule_unchanged():
    idle = [info(f"idle-{i}", unavailable="no package") for i in range(8)]
    plan, pool = make(("copy", "a", *idle), free=5 * 2**30), FakePool()
    assert plan.takes_turns(plan.cases[0], 10)
    assert not plan.takes_turns(plan.cases[0], 2)
    measure(plan, pool)
    assert "release" not in {op for _, op in pool.log}


def test_unavailable_and_broken_backends_are_rows_with_their_reasons():
    pool = FakePool()
    plan = make(("copy", info("gone", unavailable="no nvcc"), info("bad", broken="import took longer than 3 s", broken_status="timeout")))
    records = measure(plan, pool)
    assert records["gone"].outcome == Skipped("no nvcc", unavailable=True)
    assert records["bad"].outcome == Failed(Status.TIMEOUT, "import", "import took longer than 3 s")
    assert isinstance(records["copy"].outcome, Measured)
    assert pool.spawned == 1


def test_a_skip_carries_its_reason():
    records = measure(make(), FakePool({("a", "build"): Skip("only aligned N")}))
    assert records["a"].outcome == Skipped("only aligned N")


CASE = Case(65536, 4096, "bf16", Direction.FORWARD, "cuda")  # 1 GiB moved
PLAN = replace(make(), facts={"peak_gbps": 4917.0, "gpu_l2_bytes": 50 * 2**20})


@pytest.mark.parametrize(("us", "fits"), [(10.0, False), (180.0, False), (220.0, True), (900.0, True)])
def test_kernels_too_short_for_the_bytes_leave_no_result(us, fits):
    found = failed(Profile((us,)), "", "", CASE, PLAN)
    if fits:
        assert found is None
    else:
        reason = f"the profiler saw kernels of {us:.1f} us, too short to move 1 GiB at 4917 GB/s"
        assert found == Failed(Status.UNVERIFIED, "time", reason)


def test_unknown_facts_and_profiles_take_nothing_away():
    assert failed(Profile((1.0,)), "", "", CASE, replace(PLAN, facts={})) is None
    assert failed(Profile(note="no profiler"), "", "", CASE, PLAN) is None
    small = replace(CASE, M=64)
    assert failed(Profile((1.0,)), "", "", small, PLAN) is None
