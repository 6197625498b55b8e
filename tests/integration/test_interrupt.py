"""Ctrl-C, SIGTERM and worse: what was measured is kept, nothing runs on, and --resume measures only the rest."""

import os
import signal
import time

import pytest
from forks import INDUCTORS
from sampled import sampled
from slurm import descendants
from timed import wait_for

from softbench.cli.output import AGAIN_SECONDS

ARGUMENTS = ("run", "--config", "sweep.toml", "--device", "cpu")
SWEEP = """
backends = "torch"
rounds = 4
warmup_ms = 1
batch_ms = 5
[[sweep]]
M = 64
N = "8:48:8"
"""
CASES, BACKENDS = 6, 2


@pytest.fixture(autouse=True)
def sweep(cli):
    (cli.folder / "sweep.toml").write_text(SWEEP)


def measured(cli):
    return cli.rows("run-*.csv")


def test_a_command_is_forked_after_inductor_compiled(cli, monkeypatch):
    """Otherwise it is a new process, and no command resumes what a fork began."""
    monkeypatch.setenv(INDUCTORS, "140412768144416")
    assert cli.forks().suit({**cli.env, INDUCTORS: "1"}) and cli.forks().suit(dict(os.environ))
    assert INDUCTORS not in type(cli)(cli.folder, cli.forks).env


@pytest.mark.parametrize(
    ("signum", "code"),
    sampled([(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 138)], lambda signum, _: signum == signal.SIGUSR1),
)
def test_an_interrupted_run_keeps_what_it_has_and_is_resumed(cli, signum, code):
    process = cli.start_fork(*ARGUMENTS)
    wait_for(lambda: len(measured(cli)) >= 2 * BACKENDS)
    start = time.monotonic()
    if signum == signal.SIGINT:
        os.killpg(process.pid, signum)  # as a terminal does
    elif signum == signal.SIGTERM:
        os.kill(process.pid, signum)
    else:
        for pid in (*descendants(process.pid), process.pid):  # as Slurm does; the command itself may come last
            os.kill(pid, signum)
    _, stderr = process.communicate(timeout=20)
    assert time.monotonic() - start < 15
    assert process.returncode == code
    assert "interrupted; what was measured is in" in stderr
    assert "--resume" in stderr
    assert "Traceback" not in stderr
    assert cli.left_behind() == []
    before = measured(cli)
    assert 2 * BACKENDS <= len(before) < CASES * BACKENDS
    assert len(before) % BACKENDS == 0
    assert not (cli.folder / "results" / "latest.csv").exists()
    (csv,) = (cli.folder / "results").glob("run-*.csv")
    merged = cli("merge", csv, "-o", "merged.csv")
    assert merged.returncode == 0 and f"{len(before)} cells of" in merged.stderr, merged.stderr
    assert "is of an interrupted run, and not whole" in cli("show", "merged.csv").stderr

    done = cli(*ARGUMENTS, "--resume")
    assert done.returncode == 0, done.stderr
    assert f"{len(before)} cells are there already" in done.stderr
    after = measured(cli)
    assert len(after) == CASES * BACKENDS
    assert after[: len(before)] == before
    assert len(cli.document()["cells"]) == CASES * BACKENDS
    assert not list((cli.folder / "results").glob("*.jsonl"))


def test_interrupting_while_workers_start_leaves_nothing_behind(cli):
    process = cli.start(*ARGUMENTS)
    wait_for(lambda: len(cli.left_behind()) >= 2)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in stderr


@pytest.mark.slow
def test_a_second_interrupt_ends_at_once(cli):
    process = cli.start_fork(*ARGUMENTS)
    wait_for(lambda: len(measured(cli)) >= BACKENDS)
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(1.2 * AGAIN_SECONDS)
    process.communicate(timeout=20)
    assert process.returncode == 130
    wait_for(lambda: cli.left_behind() == [], 10)


@pytest.mark.slow
def test_a_killed_run_leaves_no_worker_and_can_be_resumed(cli):
    process = cli.start_fork(*ARGUMENTS)
    wait_for(lambda: len(measured(cli)) >= 2 * BACKENDS)
    process.kill()
    process.communicate(timeout=20)
    wait_for(lambda: cli.left_behind() == [], 10)
    done = cli(*ARGUMENTS, "--resume")
    assert done.returncode == 0, done.stderr
    assert "cells are there already" in done.stderr


@pytest.mark.slow
def test_resuming_with_nothing_to_resume_measures_everything_and_says_so(cli):
    done = cli("run", "--backends", "torch", "--device", "cpu", "--M", "8", "--N", "16", "--quick", "--resume")
    assert done.returncode == 0
    assert "nothing to resume in results: no interrupted run there; measuring everything" in done.stderr
