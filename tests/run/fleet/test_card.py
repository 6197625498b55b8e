"""The process of one card: what it sends."""

import io
import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from softbench.core.case import Case, Direction
from softbench.core.json_types import to_json
from softbench.ops import registry
from softbench.plan.config_file import load
from softbench.plan.deal import Shard
from softbench.plan.flags import from_flags
from softbench.results.records import record_from_json
from softbench.run.fleet.card import Link, Sent, serve
from softbench.run.request import Request, request_from_json, request_to_json


def request(**flags):
    return Request(
        {}, from_flags({"M": ["8"], "N": ["16,32"], "backends": ["torch"], "rounds": 1, **flags}), False, Path("x"), False, "c", "0"
    )


def talked(*messages):
    """What a card sends when it gets these messages, after `open`."""
    out = io.StringIO()
    first = {"op": "open", "request": request_to_json(request(processes=2)), "operations": [], "device": "cpu", "processors": []}
    left = [first, *messages, None]
    with ExitStack() as end:
        serve(Link(out), lambda: left.pop(0), end)
    return [json.loads(line) for line in out.getvalue().splitlines()]


CASES = [to_json(Case(8, N, "fp32", Direction.FORWARD, "cpu")) for N in (16, 32)]


def test_a_card_sends_its_machine_and_each_cases_records():
    found = talked(
        {"op": "measure", "cases": CASES, "stored": [[0, CASES[0]]]},
        {"op": "measure", "cases": CASES[1:], "backends": ["copy"]},
    )
    opened = found[0]
    assert opened["op"] == "opened" and opened["gpu"] is None and opened["unit"].count("/") == 2
    assert {one["label"] for one in opened["infos"]} == {"copy", "torch"}
    sent = [(one["process"], [record_from_json(data) for data in one["records"]]) for one in found if one["op"] == "records"]
    assert [(process, records[0].case.N, len(records)) for process, records in sent] == [(0, 32, 2), (1, 16, 2), (1, 32, 2), (0, 32, 1)]
    assert all(record.unit == opened["unit"] for _, records in sent for record in records)
    assert [one["op"] for one in found].count("done") == 2


def test_stored_process_sets_are_not_measured_again():
    sent = Sent(Link(io.StringIO()), {(1, Case(8, 16, "fp32", Direction.FORWARD, "cpu"))})
    assert sent.has(1, ["torch"], Case(8, 16, "fp32", Direction.FORWARD, "cpu"))
    assert not sent.has(0, ["torch"], Case(8, 16, "fp32", Direction.FORWARD, "cpu"))


@pytest.mark.parametrize("quick", [False, True])
def test_a_request_crosses_processes_unchanged(quick, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").touch()
    flags = from_flags({"op": ["softmax"], "set": ["scale=0.5"], "plugins": [Path("new=mine.py")], "timeout": ["import=9"], "seed": 3})
    first = Request(load("operations"), flags, quick, Path("out"), True, "softbench run", "1", Shard(1, 2))
    again = request_from_json(json.loads(json.dumps(request_to_json(first))))
    mine, its = first.settings("cpu"), again.settings("cpu")
    assert its.plugins == (Path(f"new={tmp_path / 'mine.py'}"),)
    assert (its.sweep, its.timeout, its.seed, its.measuring()) == (mine.sweep, mine.timeout, mine.seed, mine.measuring())
    assert (again.shard, again.gives("seed"), again.gives("rounds")) == (Shard(1, 2), True, False)
    assert registry.files() == ()
