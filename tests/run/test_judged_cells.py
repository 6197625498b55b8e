"""`softbench run --judge separate`: cells that the judge refuses, and disputed figures."""

import csv
from dataclasses import replace

import pytest

from softbench.core.outcome import Profile, Status
from softbench.run.judged_cells import disputed, refused

SMALL = ("--device", "cpu", "--M", "16", "--N", "96", "--quick")


def test_a_cell_wrong_before_the_judge_has_no_figure(cli, plugins):
    attack = plugins / "wrong" / "judge_attacks.py"
    done = cli("run", "--plugin", attack, "--backends", "forks-when-judged", *SMALL, "--judge", "separate")
    with (cli.folder / "results" / "latest.csv").open() as file:
        rows = {row["backend"]: row for row in csv.DictReader(file)}
    assert (done.returncode, rows["copy"]["status"]) == (1, "ok"), done.stderr
    assert (rows["forks-when-judged"]["status"], rows["forks-when-judged"]["gbps"]) == ("wrong", "")
    assert "judge: time: it started a process" in rows["forks-when-judged"]["reason"]
    assert cli.document()["settings"]["judge"] == "separate"
    assert cli.document()["seconds"]["judge"] > 0


def test_a_figure_below_the_judges_clock_is_disputed(make_record):
    found = {"status": "ok", "us": 100.0, "low_us": 99.0}
    short, close = (make_record("mine", [us] * 3).outcome for us in (96.0, 96.1))
    assert disputed(found, close) is None
    failed = disputed(found, short)
    assert (failed.status, failed.reason) == (Status.UNVERIFIED, "disputed: 96 us a call by its worker's clock, 100 us by the judge's")
    assert disputed(found | {"us": None, "low_us": None}, short) is None


def test_a_host_bound_cell_is_not_disputed(make_record):
    """Its host time and an allowance are as long. 0.97 x 99 us are 96.03 us."""
    found = {"status": "ok", "us": 100.0, "low_us": 99.0}
    short = make_record("mine", [20.0] * 3).outcome
    assert disputed(found, replace(short, profile=Profile(host_us=(56.1,)))) is None
    assert disputed(found, replace(short, profile=Profile(host_us=(10.0, 56.1, 900.0)))) is None
    assert disputed(found, replace(short, profile=Profile(host_us=(55.9,)))) is not None
    assert disputed(found, replace(short, profile=Profile(host_us=()))) is not None


@pytest.mark.parametrize(("low", "status"), [(41.2, None), (41.3, Status.UNVERIFIED)])
def test_a_call_shorter_than_the_allowance_is_not_disputed(make_record, low, status):
    found = {"status": "ok", "us": 60.0, "low_us": low}
    failed = disputed(found, make_record("mine", [5.0] * 3).outcome)
    assert (failed.status if failed else None) == status


@pytest.mark.parametrize(("status", "expected"), [("wrong", Status.WRONG), ("timeout", Status.TIMEOUT), ("skipped", Status.UNVERIFIED)])
def test_a_judgement_without_a_figure_takes_the_cells(status, expected):
    failed = refused({"status": status, "reason": "a reason"})
    assert (failed.status, failed.reason) == (expected, "judge: a reason")
