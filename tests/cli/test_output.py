"""The command that continues a run, the check that an output can be written, and counters.

The work of commands that read results grows with the cells of the file, not with their square."""

import os
import random
import sys
import threading
import time
from pathlib import Path

import pytest
from gating import cell_samples, run_samples, write_run
from sampled import sampled

from softbench.cli.actions import try_file, typed_command
from softbench.cli.output import LOG_SECONDS, counter
from softbench.gate.samples import CellKey

CALLS_PER_CELL = 7000
"""`show --long` has 17 columns. It made 12000 calls a cell when rich measured each cell of a table four times."""


def results(folder, cells, name, *, seed):
    """Five backends on some N and a quarter as many M."""
    rng, found = random.Random(seed), {}
    for i in range(cells // 5):
        for backend in ("copy", "a", "b", "c", "d"):
            times = [(20 * (1 + rng.gauss(0, 0.003)),) for _ in range(5)]
            found[CellKey(backend, "forward", "bf16", 256 * (1 + i % 5), 128 * (1 + i // 5))] = cell_samples(*times)
    return write_run(folder, run_samples(found, source=name), name=name)


def calls(main, *arguments):
    """The calls of functions, of Python and C, that a command makes; they are the same on a busy machine."""
    count = 0

    def observe(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(observe)
    try:
        code = main(*arguments)[0]
    finally:
        sys.setprofile(None)
    assert code == 0
    return count


COMMANDS = {
    "show": ("show", "A"),
    "show --long": ("show", "--long", "A"),
    "show --markdown": ("show", "--markdown", "A"),
    "show --costs": ("show", "--costs", "A"),
    "compare": ("compare", "A", "B"),
    "gate": ("gate", "A", "--baseline", "B"),
    "plot": ("plot", "A", "-o", "plot.png"),
}


@pytest.mark.parametrize("command", sampled(COMMANDS, lambda command: command == "show"))
def test_work_grows_linearly_with_the_cells(main, tmp_path, command):
    counts = []
    for cells in (25, 100, 400):  # the first fills caches and imports modules
        files = {name: results(tmp_path, cells, f"{name}{cells}", seed=seed) for seed, name in enumerate("AB")}
        counts.append(calls(main, *(files.get(argument, argument) for argument in COMMANDS[command])))
    assert counts[2] < 5 * counts[1]
    assert (counts[2] - counts[1]) / 300 < CALLS_PER_CELL


def test_a_counter_names_a_long_case_in_a_log(monkeypatch, capsys):
    monkeypatch.setattr("softbench.cli.output.LOG_SECONDS", 0.1)
    for quiet in (False, True):
        monkeypatch.setattr("softbench.cli.verbosity.quiet", lambda quiet=quiet: quiet)
        with counter("cases") as advance:
            advance(2, 9, "shape 37x1, forward fp32")
            time.sleep(0.35)  # one long case
        time.sleep(0.15)
        lines = capsys.readouterr().err.splitlines()
        assert set(lines) == (set() if quiet else {"softbench: 2 of 9 cases; now shape 37x1, forward fp32"})
        assert quiet or 2 <= len(lines) <= 3
    assert LOG_SECONDS == 30


@pytest.fixture
def program(tmp_path, monkeypatch):
    """An installed softbench; it is on PATH."""
    file = tmp_path / "bin" / "softbench"
    file.parent.mkdir()
    file.write_text("")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", str(file.parent))
    monkeypatch.chdir(tmp_path)
    return file


def test_the_program_is_named_as_it_was_called(program, monkeypatch):
    arguments = ["run", "--output", "/data/my results", "--plugin", "new=/home/me/a.py"]
    monkeypatch.setattr(sys, "argv", [str(program), *arguments])
    assert typed_command() == "softbench run --output '/data/my results' --plugin new=/home/me/a.py"
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "argv", ["bin/softbench", "run"])
    assert typed_command() == "bin/softbench run"
    monkeypatch.setattr(sys, "argv", [str(program.parent / "softbench" / "__main__.py"), "run"])
    assert typed_command() == "python -m softbench run"


def test_a_tried_file_is_neither_left_nor_lost(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.json").symlink_to("target.json")
    (tmp_path / "there.json").write_text("kept")
    for name in ("new.json", "link.json", "there.json"):
        try_file(Path(name))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "there.json"]
    assert (tmp_path / "there.json").read_text() == "kept"


def test_a_pipe_is_not_opened_before_it_is_written(tmp_path):
    """Its reader would get an end at once, and the command would wait for another reader."""
    os.mkfifo(tmp_path / "pipe")
    trying = threading.Thread(target=try_file, args=[tmp_path / "pipe"], daemon=True)
    trying.start()
    trying.join(5)
    assert not trying.is_alive()


def test_two_outputs_of_one_name_are_refused_before_any_work(main):
    code, _, err = main("check", "--device", "cpu", "--backends", "torch", "--json", "same.x", "--junit", "same.x")
    assert (code, err) == (2, "softbench: --json same.x: another argument of this command is that file, or its results; name another one\n")
