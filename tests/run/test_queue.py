"""Runs on one device wait for each other."""

import fcntl
import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from softbench.core.errors import NotMeasurableError
from softbench.core.machine import Gpu
from softbench.processes.activity import Activity
from softbench.run import queue
from softbench.run.queue import Place

RUN = ("run", "--backends", "torch", "--M", 8, "--N", 8, "--device", "cpu", "--rounds", 1)


def gpu(uuid):
    return Gpu("H200", uuid, 1, 1, "default", {})


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("SOFTBENCH_QUEUE")
    monkeypatch.setattr(queue, "cache_folder", lambda: tmp_path / "cache")  # what is known of the machine stays in the user's folder
    return tmp_path / "cache" / "queue"


def test_a_second_run_waits_and_names_the_first():
    first, second, notes = Place(None), Place(None), []
    assert first.take()
    assert not second.take()
    first.tell("run-1")
    waiting = threading.Thread(target=second.wait, args=(activity := Activity(), notes.append))
    waiting.start()
    time.sleep(0.3)
    assert waiting.is_alive()
    assert activity.now.op == "queue"
    first.leave()
    waiting.join(10)
    assert activity.seconds["queue"] >= 0.2
    who = rf"run-1 \(process {os.getpid()}, since \d\d:\d\d:\d\d UTC\)"
    assert re.fullmatch(f"waiting for {who} to finish: .* on one CPU disturb .*; Ctrl-C gives up", notes[0])
    assert not Place(None).take()
    second.leave()
    assert Place(None).take()


def test_each_device_has_its_own_queue(monkeypatch):
    places = [Place(None), Place(gpu("A")), Place(gpu("B"))]
    assert all(place.take() for place in places)
    assert not Place(gpu("B")).take()
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {77})
    others = Place(None)
    assert others.take()


def test_commands_take_several_places_one_after_the_other():
    """Each of two commands at once could otherwise hold what the other waits for."""
    notes, inside = [], threading.Event()

    def second():
        with queue.several(notes.append):
            inside.set()

    waiting = threading.Thread(target=second)
    with queue.several(notes.append):
        assert not notes
        waiting.start()
        assert not inside.wait(0.3)
    assert inside.wait(10)
    waiting.join(10)
    assert len(notes) == 1 and notes[0].startswith("waiting until another command with several cards")


def test_without_a_queue_nothing_holds_several_places(monkeypatch):
    monkeypatch.setenv(queue.SWITCH, "off")
    with queue.several(pytest.fail), queue.several(pytest.fail):
        pass


def test_a_run_without_queue_or_folder_measures_at_once(monkeypatch, folder):
    first = Place(None)
    assert first.take()
    monkeypatch.setenv(queue.SWITCH, "off")
    assert Place(None).take()
    monkeypatch.delenv(queue.SWITCH)
    monkeypatch.setattr(queue, "cache_folder", lambda: Path("/proc/nowhere"))
    assert Place(None).take()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run": "a"}', '{"run": "a", "pid": "x", "since": 1}'])
def test_a_damaged_entry_still_makes_a_run_wait(folder, text):
    first, second, notes = Place(None), Place(None), []
    assert first.take()
    [file] = folder.glob("*.json")
    file.write_text(text)
    timer = threading.Timer(0.1, first.leave)
    timer.start()
    assert not second.take()
    second.wait(Activity(), notes.append)
    assert notes[0].startswith("waiting for another run to finish")


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (
            ("--backends", "torch", "--relative-to", "foo"),
            "--relative-to: unknown backend of this run 'foo'; known are copy, torch; --backends takes more",
        ),
        pytest.param(("--shape", "2x3x8", "--dim", 5), "--dim 5: 2x3x8 has the dimensions 0 to 2", marks=pytest.mark.slow),
        pytest.param(("--plugin", "mine.py", "--backends", "mien"), "unknown backend 'mien'; did you mean 'mine'", marks=pytest.mark.slow),
    ],
)
def test_what_a_run_refuses_is_refused_before_it_waits(main, tmp_path, flags, part):
    (tmp_path / "mine.py").write_text("def softmax(x):\n    return x\n")
    first = Place(None)
    assert first.take()
    code, _, err = main("run", "--device", "cpu", "--rounds", 1, *(flags if "--shape" in flags else ("--M", 8, "--N", 8, *flags)))
    first.leave()
    assert (code, "waiting for" in err) == (2, False)
    assert part in err


@pytest.mark.slow
def test_a_real_run_waits_and_stops_on_ctrl_c(cli, folder):
    cli.env |= {"SOFTBENCH_CACHE": str(folder.parent)}
    cli.env.pop("SOFTBENCH_QUEUE", None)
    first = Place(None)
    assert first.take()
    first.tell("run-20260101-000000")
    process = cli.start(*RUN)
    line = next(line for line in process.stderr if "waiting" in line)
    assert f"waiting for run-20260101-000000 (process {os.getpid()}" in line
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    process = cli.start(*RUN)
    assert any("waiting" in line for line in process.stderr)
    time.sleep(0.1)
    first.leave()
    assert process.wait(120) in (0, NotMeasurableError.exit_code)  # the latter on a busy host
    process.communicate()
    assert cli.document()["seconds"]["queue"] > 0
    assert {row["status"] for row in cli.rows()} == {"ok"}
    [file] = folder.glob("*.json")
    assert json.loads(file.read_text())["run"] == cli.document()["run"]
    with file.open() as free:
        fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)
