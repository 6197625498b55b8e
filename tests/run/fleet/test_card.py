"""The process of one card: what it sends."""

import io
import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from softbench.core.case import Case, Direction
from softbench.core.errors import UsageError, WorkersError
from softbench.core.json import to_json
from softbench.ops import registry
from softbench.plan.config_file import load
from softbench.plan.deal import Shard
from softbench.plan.settings import from_flags
from softbench.processes.worker_pool import Pool
from softbench.results.records import record_from_json
from softbench.run.fleet import card
from softbench.run.fleet.card import Link, Sent, serve
from softbench.run.request import RunRequest, request_from_json, request_to_json


def request(**flags):
    return RunRequest(
        {}, from_flags({"M": ["8"], "N": ["16,32"], "backends": ["torch"], "rounds": 1, **flags}), False, Path("x"), False, "c", "0"
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


@pytest.mark.slow
def test_a_gpu_that_is_gone_costs_only_its_card(monkeypatch):
    """An earlier command saw it: the card is lost and the run goes on. Without that, the request is wrong."""
    forgotten = []
    monkeypatch.setattr(card.info_cache, "forget_machine", lambda: forgotten.append(True))
    first = {"op": "open", "request": request_to_json(request()), "operations": {}, "device": "cuda:99", "processors": []}
    for remembered, kind in ((True, WorkersError), (False, UsageError)):
        with pytest.raises(kind, match="--device cuda:99: "), ExitStack() as end:
            serve(Link(io.StringIO()), lambda first={**first, "remembered": remembered}: first, end)
    assert forgotten == [True]


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


LATE = """
import time
from pathlib import Path
import torch
end = time.monotonic() + 50
while not Path({file!r}).exists():
    if time.monotonic() > end:
        raise TimeoutError("copy was not measured while this loaded")
    time.sleep(0.02)
def softmax(x): return torch.softmax(x, -1)
"""


@pytest.mark.slow
def test_copy_is_measured_while_the_other_backends_load(tmp_path, monkeypatch):
    """A backend's import waits for a file, which is made after two comparisons. Its results then follow in one worker of copy."""
    monkeypatch.setattr(card, "DISTURBED", ())
    (tmp_path / "late.py").write_text(LATE.format(file=str(tmp_path / "compared")))
    copy = {"op": "measure", "cases": CASES[:1], "backends": ["copy"]}
    asked = request_to_json(request(backends=["late"], plugins=[tmp_path / "late.py"]))
    left = [
        {"op": "open", "request": asked, "operations": {}, "device": "cpu", "processors": [], "wait": False, "staged": True},
        *(copy, copy, {"op": "load"}),
        {"op": "measure", "cases": CASES[1:]},
        None,
    ]
    out, started = io.StringIO(), []

    def receive():
        message = left.pop(0)
        if message and message["op"] == "load":
            (tmp_path / "compared").touch()
        return message

    spawn = Pool.spawn
    monkeypatch.setattr(Pool, "spawn", lambda self, label, env=None: started.append(label) or spawn(self, label, env))
    with ExitStack() as end:
        serve(Link(out), receive, end)
    found = [message for line in out.getvalue().splitlines() if (message := json.loads(line))["op"] != "note"]
    assert [one["op"] for one in found] == ["ready", "records", "done", "records", "done", "opened", "records", "done"]
    assert [one["label"] for one in found[0]["infos"]] == ["copy"]
    records = [[record_from_json(data) for data in one["records"]] for one in found if one["op"] == "records"]
    assert [[record.backend for record in some] for some in records] == [["copy"], ["copy"], ["copy", "late"]]
    assert {record.status for some in records for record in some} == {"ok"}
    assert sorted(started) == ["copy", "late", "probe"]


@pytest.mark.slow
def test_a_card_of_the_cpu_loads_before_it_is_compared():
    """What other workers import would disturb copy."""
    assert talked(staged=True)[0]["op"] == "opened"


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
