"""tools/on_gpus.py with steps that need no GPU."""

import itertools
import os
import re
import signal
import sys
import tarfile
import threading
from pathlib import Path

import on_gpus
import pytest
from on_gpus import STEPS, Step
from timed import wait_for

SAY = "echo $CUDA_VISIBLE_DEVICES > {out}/gpu; date +%s%N > {out}/start; sleep 0.1; date +%s%N > {out}/end"
LONG = 300
"""Seconds that no step here takes, however busy the machine is."""


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """`run(steps, *options)`: the exit code, the lines of the table by step, and the folder."""

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would the steps

    def start(steps, *options, count=2):
        monkeypatch.setattr(sys, "argv", ["on_gpus.py", "--out", str(tmp_path / "out"), *options])
        code = on_gpus.main(tuple(steps), [str(i) for i in range(count)], build="pass")
        lines = capsys.readouterr().out.splitlines()
        return code, {line.split()[0]: line for line in lines}, tmp_path / "out"

    yield start
    signal.signal(signal.SIGINT, before)


def number(file):
    return int(file.read_text())


def test_each_gpu_has_one_step_at_a_time(run):
    code, lines, out = run([*(Step(f"one-{i}", LONG, SAY) for i in range(4)), Step("all", LONG, SAY, every=True)])
    assert code == 0
    assert all(" ok " in line for line in lines.values())
    assert (out / "all" / "gpu").read_text() == "\n"
    spans = {f"one-{i}": [number(out / f"one-{i}" / name) for name in ("gpu", "start", "end")] for i in range(4)}
    assert {gpu for gpu, _, _ in spans.values()} == {0, 1}
    for gpu in (0, 1):
        of_gpu = sorted(span[1:] for span in spans.values() if span[0] == gpu)
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(of_gpu))
    assert number(out / "all" / "end") <= min(start for _, start, _ in spans.values())


def test_failures_and_long_steps_are_told_and_the_rest_runs(run, monkeypatch):
    """The step that hangs takes too long as soon as it waits for its end."""
    late = "trap 'echo kept > {out}/file; exit 1' INT; touch {out}/waits; while :; do sleep 0.05; done"
    waits = on_gpus.Gpus._wait

    def wait(process, seconds, stop):
        if seconds == on_gpus.END_SECONDS or "waits" not in process.args[-1]:
            return waits(process, seconds, stop)
        (folder,) = re.findall(r"touch (\S+)/waits", process.args[-1])
        wait_for((Path(folder) / "waits").exists)
        return waits(process, 0, stop)

    monkeypatch.setattr(on_gpus.Gpus, "_wait", staticmethod(wait))
    steps = [Step("fails", LONG, "echo a reason; exit 3"), Step("hangs", LONG, late), Step("right", LONG, "echo fine")]
    code, lines, out = run([*steps, Step("long", 9999, "true")], "--seconds", "5000", count=1)
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
def test_a_signal_ends_running_steps_and_leaves_out_the_others(run, tmp_path, every):
    """A step has its own session, so that no terminal's Ctrl-C reaches it."""
    handler = signal.getsignal(signal.SIGTERM)
    steps = [Step(f"long-{i}", LONG, f"echo $$ > {{out}}/pid; sleep {LONG}", every=every) for i in range(3)]
    running = [tmp_path / "out" / f"long-{i}" / "pid" for i in range(1 if every else 2)]

    def end_when_running():
        try:
            wait_for(lambda: all(file.exists() and file.read_text() for file in running))
        finally:  # on a host where they start too late the test fails, and does not wait for the steps
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_when_running).start()
    code, lines, out = run(steps)
    assert (code, signal.getsignal(signal.SIGTERM)) == (1, handler)
    assert ["left out: interrupted" in line for line in lines.values()] == [False, every, True]
    assert "  interrupted " in lines["long-0"] and gone(out / "long-0" / "pid")


def test_a_step_without_a_log_fails_and_the_rest_runs(run, tmp_path):
    (tmp_path / "out" / "unwritable.log").mkdir(parents=True)
    code, lines, _ = run([Step("unwritable", LONG, "true"), Step("right", LONG, "true")], count=1)
    assert code == 1
    assert "failed: [Errno" in lines["unwritable"] and " ok " in lines["right"]


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


def test_chosen_steps_are_packed(run, tmp_path):
    code, lines, _ = run(
        [Step("a-1", LONG, "echo x > {out}/x"), Step("b", LONG, "exit 1")], "--steps", "a-*", "--pack", str(tmp_path / "p.tar.gz")
    )
    assert (code, [*lines]) == (0, ["a-1"])
    with tarfile.open(tmp_path / "p.tar.gz") as pack:
        assert {"out/a-1/x", "out/a-1.log"} <= set(pack.getnames())


def test_steps_are_known_once_and_their_files_exist():
    assert len({step.name for step in STEPS}) == len(STEPS)
    for step in STEPS:
        for word in step.command.split():
            assert not word.startswith(("tools/", "tests/")) or (on_gpus.ROOT / word).is_file(), step
