"""The process of one card: what it sends."""

import io
import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from softbench.core.case import Case, Direction
from softbench.core.errors import WorkersError
from softbench.core.json import to_json
from softbench.ops import registry
from softbench.plan.config_file import load
from softbench.plan.deal import Shard
from softbench.plan.settings import from_flags
from softbench.results.records import record_from_json
from softbench.run.fleet import card
from softbench.run.fleet.card import Link, Sent, serve
from softbench.run.request import RunRequest, request_from_json, request_to_json

SHORT = {"rounds": 1, "warmup_ms": 1, "batch_ms": 5}


def request(**flags):
    return RunRequest(
        {}, from_flags({"M": ["8"], "N": ["16,32"], "backends": ["torch"], **SHORT, **flags}), False, Path("x"), False, "c", "0"
    )


def talked(*messages, **more):
    """What a card sends when it gets these messages, after `open`."""
    out = io.StringIO()
    first = {"op": "open", "request": request_to_json(request(processes=2)), "operations": {}, "device": "cpu", "processors": [], **more}
    left = [first, *messages, None]
    with ExitStack() as end:
        serve(Link(out), lambda: left.pop(0), end)
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(("message", "expected"), [({"of_node": [1, 2]}, {1}), ({"processors": [0], "of_node": [1, 2]}, {0}), ({}, None)])
def test_a_card_runs_on_its_share_of_its_node(monkeypatch, message, expected):
    ran = []
    monkeypatch.setattr(card.os, "sched_setaffinity", lambda process, some: ran.append(set(some)))
    monkeypatch.setattr(card.processors, "of_node", lambda number, count: frozenset({number}))
    monkeypatch.setattr(card, "in_turn", lambda *_: (_ for _ in ()).throw(WorkersError("stop here")))
    with pytest.raises(WorkersError, match="stop here"):
        talked(**message)
    assert ran == ([expected] if expected else [])


LEAVING = """
import os, signal, sys, time
from softbench.core.errors import UsageError
from softbench.run.fleet import card
def serve(link, receive, end):
    def late():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
        print("ended", file=sys.stderr)
    end.callback(late)
    raise UsageError("no such backend")
card.serve = serve
card.main()
"""


def test_nothing_interrupts_a_card_that_ends_its_workers():
    """A fleet closes stdin when another card has failed, and this card may end at the same time."""
    process = subprocess.Popen([sys.executable, "-c", LEAVING], stdin=-1, stdout=-1, stderr=-1, text=True)
    assert process.stderr.readline() == "ended\n"
    assert json.loads(process.stdout.readlines()[-1]) == {"op": "error", "text": "no such backend", "code": 2}
    process.communicate()
    assert process.returncode == 2


CASES = [to_json(Case(8, N, "fp32", Direction.FORWARD, "cpu")) for N in (16, 32)]


def test_a_card_sends_its_machine_and_each_cases_records():
    found = talked(
        {"op": "measure", "cases": CASES, "stored": [[0, CASES[0]]]}, {"op": "measure", "cases": CASES[1:], "backends": ["copy"]}
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
    first = RunRequest(load("operations"), flags, quick, Path("out"), True, "softbench run", "1", Shard(1, 2))
    again = request_from_json(json.loads(json.dumps(request_to_json(first))))
    mine, its = first.settings("cpu"), again.settings("cpu")
    assert its.plugins == (Path(f"new={tmp_path / 'mine.py'}"),)
    assert (its.sweep, its.timeout, its.seed, its.measuring()) == (mine.sweep, mine.timeout, mine.seed, mine.measuring())
    assert (again.shard, again.gives("seed"), again.gives("rounds")) == (Shard(1, 2), True, False)
    assert registry.files() == ()
