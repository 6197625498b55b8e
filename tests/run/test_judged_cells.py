"""`softbench run --judge separate`: cells that the judge refuses, and disputed results."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from softbench.core.outcome import Judged, Profile, Status
from softbench.results.records import disputed, merge
from softbench.run.judged_cells import CellJudge, refused

SMALL = ("--device", "cpu", "--M", "16", "--N", "96", "--quick")


@pytest.mark.slow
def test_a_cell_wrong_before_the_judge_has_no_result(cli, plugins):
    attack = plugins / "wrong" / "judge_attacks.py"
    done = cli("run", "--plugin", attack, "--backends", "forks-when-judged,torch", *SMALL, "--judge", "separate")
    rows = {row["backend"]: row for row in cli.rows()}
    assert (done.returncode, rows["copy"]["status"]) == (1, "ok"), done.stderr
    assert (rows["forks-when-judged"]["status"], rows["forks-when-judged"]["gbps"]) == ("wrong", "")
    assert "judge: time: it started a process" in rows["forks-when-judged"]["reason"]
    assert cli.document()["settings"]["judge"] == "separate"
    assert cli.document()["seconds"]["judge"] > 0
    judged = {cell["backend"]: cell["outcome"].get("judged") for cell in cli.document()["cells"]}
    assert (judged["copy"], judged["torch"]["judgements"]) == (None, 1)
    assert judged["torch"]["at_most_us"] > 0


def judge_on(device, timer):
    plan = SimpleNamespace(settings=SimpleNamespace(judge="", device=device, timeout={}), infos=[], device=device, timer=timer)
    return CellJudge(plan, SimpleNamespace(waiting=lambda *_: nullcontext()))


def test_workers_free_their_buffers_before_the_judge_takes_memory(make_record):
    events = []
    judge = judge_on("cpu", "host")
    records = [make_record("copy", [1.0] * 3), make_record("mine", [1.0] * 3)]
    assert judge.judged(records, 0, lambda: events.append("release")) == records
    judge.process = SimpleNamespace(ask=lambda *_: (events.append("judge"), {"status": "ok"})[1])
    judge.origins = {"mine": None}
    assert judge.judged(records, 1, lambda: events.append("release")) == records
    assert not events
    assert [record.backend for record in judge.judged(records, 0, lambda: events.append("release"))] == ["copy", "mine"]
    assert events == ["release", "judge"]


def with_judged(record, **times):
    return replace(record.outcome, judged=Judged(1, **times))


def test_a_time_below_the_judges_clock_is_disputed(make_record):
    short, close = (make_record("mine", [us] * 3) for us in (96.0, 96.1))
    assert disputed(close.case, with_judged(close, us=100.0, low_us=99.0)) is None
    failed = disputed(short.case, outcome := with_judged(short, us=100.0, low_us=99.0))
    assert (failed.status, failed.reason) == (Status.UNVERIFIED, "disputed: 96 us a call by its worker's clock, 100 us by the judge's")
    assert disputed(short.case, with_judged(short)) is None
    assert disputed(short.case, short.outcome) is None
    on_cpu = replace(short.case, device="cpu")  # where only several times the median are a reason
    assert disputed(on_cpu, with_judged(short, us=900.0, low_us=900.0, least_us=470.0)) is None
    assert disputed(on_cpu, with_judged(short, us=900.0, low_us=900.0)) is None
    assert disputed(on_cpu, with_judged(short, us=900.0, low_us=900.0, least_us=490.0)).status is Status.UNVERIFIED
    assert disputed(short.case, replace(outcome, timing=replace(outcome.timing, kind="host"))) is None


def test_later_process_sets_are_compared_with_the_judges_time(make_record):
    """The first set alone is judged, and the published median is that of all sets."""
    first, fast = make_record("mine", [100.0] * 3), make_record("mine", [50.0] * 3)
    judged = replace(first, outcome=with_judged(first, us=100.0, low_us=99.0))
    assert merge([judged, first]).outcome.judged == judged.outcome.judged
    found = merge([judged, fast, fast])
    assert (found.status, found.outcome.reason) == (
        Status.UNVERIFIED,
        "disputed: 50 us a call by its worker's clock, 100 us by the judge's",
    )


@pytest.mark.parametrize(
    ("us", "asked", "status"),
    [
        ((100.0, 90.0), 2, None),
        ((90.0,), 1, None),
        ((100.0, 100.0, 90.0), 2, Status.UNVERIFIED),
        (("wrong",), 1, Status.WRONG),
        ((100.0, "wrong"), 2, Status.WRONG),
    ],
)
def test_a_disputed_cell_is_judged_once_more(make_record, us, asked, status):
    replies = iter([{"status": "wrong", "reason": ""} if one == "wrong" else {"status": "ok", "us": one, "low_us": one} for one in us])
    judge, count = judge_on("cuda", "do_bench"), []
    judge.process, judge.origins = SimpleNamespace(ask=lambda *_: (count.append(1), next(replies))[1]), {"mine": None}
    (record,) = judge.judged([make_record("mine", [90.0] * 3)], 0, lambda: None)
    assert (len(count), getattr(record.outcome, "status", None)) == (asked, status)
    if status is None:
        assert record.outcome.judged == Judged(asked, us[-1], us[-1])


def test_a_claimed_host_time_ends_no_dispute(make_record):
    """The worker measures it, so a plugin could claim any."""
    record = make_record("mine", [20.0] * 3)
    claimed = replace(with_judged(record, us=100.0, low_us=99.0), profile=Profile(host_us=(500.0,)))
    assert disputed(record.case, claimed).status is Status.UNVERIFIED


@pytest.mark.parametrize(("status", "expected"), [("wrong", Status.WRONG), ("timeout", Status.TIMEOUT), ("skipped", Status.UNVERIFIED)])
def test_a_judgement_without_a_time_takes_the_cells(status, expected):
    failed = refused({"status": status, "reason": "a reason"})
    assert (failed.status, failed.reason) == (expected, "judge: a reason")
