"""tools/on_gpus.py with steps that need no GPU."""

import os
import signal
import sys
import tarfile
import threading
import time
from pathlib import Path

import on_gpus
import pytest
from on_gpus import STEPS, Step

SAY = "echo $CUDA_VISIBLE_DEVICES > {out}/gpu; date +%s%N > {out}/start; sleep 0.2; date +%s%N > {out}/end"


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """`run(steps, *options)`: the exit code, the lines of the table by step, and the folder."""

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def start(steps, *options, count=2):
        monkeypatch.setattr(sys, "argv", ["on_gpus.py", "--out", str(tmp_path / "out"), *options])
        code = on_gpus.main(tuple(steps), [str(i) for i in range(count)], build="pass")
        lines = capsys.readouterr().out.splitlines()
        return code, {line.split()[0]: line for line in lines}, tmp_path / "out"

    return start


def number(file):
    return int(file.read_text())


def test_each_gpu_has_one_step_at_a_time(run):
    code, lines, out = run([*(Step(f"one-{i}", 1, SAY) for i in range(4)), Step("all", 1, SAY, every=True)])
    assert code == 0
    assert all(" ok " in line for line in lines.values())
    assert (out / "all" / "gpu").read_text() == "\n"
    spans = {f"one-{i}": [number(out / f"one-{i}" / name) for name in ("gpu", "start", "end")] for i in range(4)}
    assert {gpu for gpu, _, _ in spans.values()} == {0, 1}
    for gpu in (0, 1):
        first, second = sorted(span[1:] for span in spans.values() if span[0] == gpu)
        assert first[1] <= second[0]
    assert number(out / "all" / "end") <= min(start for _, start, _ in spans.values())


def test_failures_and_long_steps_are_told_and_the_rest_runs(run):
    late = "trap 'echo kept > {out}/file; exit 1' INT; for i in $(seq 100); do sleep 0.1; done"
    steps = [Step("fails", 1, "echo a reason; exit 3"), Step("hangs", 0.5, late), Step("right", 1, "echo fine"), Step("long", 99, "true")]
    code, lines, out = run(steps, "--seconds", "60", count=1)
    assert code == 1
    assert "exit code 3" in lines["fails"] and lines["fails"].endswith("a reason")
    assert "interrupted" in lines["hangs"] and (out / "hangs" / "file").read_text() == "kept\n"
    assert " ok " in lines["right"]
    assert "left out" in lines["long"]
    assert not (out / "long").exists()


def gone(file):
    """Whether the process that wrote its number into a file has ended."""
    return not Path(f"/proc/{number(file)}").exists()


@pytest.mark.parametrize("every", [False, True])
def test_a_signal_ends_running_steps_and_leaves_out_the_others(run, every):
    """A step has its own session, so that no terminal's Ctrl-C reaches it."""
    handler = signal.getsignal(signal.SIGTERM)
    steps = [Step(f"long-{i}", 30, "echo $$ > {out}/pid; sleep 30", every=every) for i in range(3)]
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    begin = time.monotonic()
    code, lines, out = run(steps)
    assert time.monotonic() - begin < 10
    assert (code, signal.getsignal(signal.SIGTERM)) == (1, handler)
    assert ["left out: interrupted" in line for line in lines.values()] == [False, every, True]
    assert "  interrupted " in lines["long-0"] and gone(out / "long-0" / "pid")


def test_what_a_step_leaves_behind_ends_with_it(run):
    code, _, out = run([Step("leaves", 9, "sleep 60 & echo $! > {out}/pid")], count=1)
    assert code == 0
    end = time.monotonic() + 5
    while not gone(out / "leaves" / "pid") and time.monotonic() < end:
        time.sleep(0.01)
    assert gone(out / "leaves" / "pid")


def test_a_step_without_a_log_fails_and_the_rest_runs(run, tmp_path):
    (tmp_path / "out" / "unwritable.log").mkdir(parents=True)
    code, lines, _ = run([Step("unwritable", 1, "true"), Step("right", 1, "true")], count=1)
    assert code == 1
    assert "failed: [Errno" in lines["unwritable"] and " ok " in lines["right"]


def test_each_gpu_has_its_own_cores(run):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core")
    steps = [Step(f"cores-{i}", 1, "taskset -pc $$ > {out}/cores; sleep 0.3") for i in range(2)]
    _, _, out = run(steps)
    assert len({(out / step.name / "cores").read_text().rpartition(":")[2] for step in steps}) == 2
    assert sorted(os.sched_getaffinity(0)) == cores


def test_gpus_are_counted_without_cuda(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert on_gpus.gpus() == []
    listing = "GPU 0: NVIDIA H200 (UUID: GPU-1)\nGPU 1: NVIDIA H200 (UUID: GPU-2)"
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '{listing}\\n'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert on_gpus.gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,GPU-3")
    assert on_gpus.gpus() == ["1", "GPU-3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert on_gpus.gpus() == []


def test_steps_of_two_gpus_are_left_out_on_one(run):
    code, lines, _ = run([Step("both", 1, "true", every=True), Step("one", 1, "true")], count=1)
    assert code == 1
    assert "left out: it needs two GPUs" in lines["both"] and " ok " in lines["one"]


def test_chosen_steps_are_packed(run, tmp_path):
    code, lines, _ = run(
        [Step("a-1", 1, "echo x > {out}/x"), Step("b", 1, "exit 1")], "--steps", "a-*", "--pack", str(tmp_path / "p.tar.gz")
    )
    assert (code, [*lines]) == (0, ["a-1"])
    with tarfile.open(tmp_path / "p.tar.gz") as pack:
        assert {"out/a-1/x", "out/a-1.log"} <= set(pack.getnames())


@pytest.mark.parametrize(("options", "error"), [(("--steps", "c"), "no step has this name"), ((), "no NVIDIA GPU")])
def test_bad_input_is_told(run, capsys, options, error):
    with pytest.raises(SystemExit):
        run([Step("a", 1, "true")], *options, count=0)
    assert error in capsys.readouterr().err


def test_steps_are_known_once_and_their_files_exist():
    assert len({step.name for step in STEPS}) == len(STEPS)
    for step in STEPS:
        for word in step.command.split():
            assert not word.startswith(("tools/", "tests/")) or (on_gpus.ROOT / word).is_file(), step
