"""What commands print: counters, levels, the command that continues a run; outputs that cannot be written; work that grows with cells."""

import json
import os
import random
import re
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


SMALL = ("--device", "cpu", "--M", "8", "--N", "16,32", "--quick")
FAILS = """
def softmax(x):
    raise ValueError("no luck")
"""


@pytest.fixture
def without_compilers(cli):
    cli.env |= {"PATH": "/nonexistent", "CC": "", "CXX": ""}
    return cli


@pytest.mark.slow
def test_a_quiet_run_prints_the_answer_and_failures(cli):
    (cli.folder / "fails.py").write_text(FAILS)
    done = cli("run", "-q", "--backends", "torch", *SMALL)
    assert done.returncode == 0, done.stderr
    busy = "softbench: not measurable now: "  # an error of a busy host
    assert [line for line in done.stderr.splitlines() if not line.startswith(busy)] == []
    answer = [line.split()[0] for line in done.stdout.splitlines() if line[0] != " "]
    assert answer[0] == "fastest"
    assert set(answer) <= {"fastest", "speed-up", "of", "correct", "missing", "doubtful"}
    shown = cli("show", "results/latest.csv").stdout.splitlines()
    assert done.stdout.splitlines() == shown[1 : 1 + len(done.stdout.splitlines())]
    assert shown[0].startswith("results/latest.csv: 4 cells on ")
    done = cli("run", "--quiet", "--backends", "torch,fails", "--plugin", "fails.py", *SMALL, "--json", "-")
    assert done.returncode == 1
    assert len(json.loads(done.stdout)["cells"]) == 6
    (line,) = done.stderr.splitlines()
    assert line.startswith("softbench: fails: failed (2 cells, ")
    assert line.endswith("build: ValueError: no luck (in softmax, fails.py:3)")


@pytest.mark.slow
def test_a_verbose_run_tells_cells_and_phases(cli):
    plain, verbose = cli("run", "--backends", "torch", *SMALL), cli("run", "--backends", "torch", *SMALL, "-v")
    assert plain.returncode == verbose.returncode == 0, verbose.stderr
    progress = re.compile(r"^softbench: forward-fp32-8x(16|32): \d+ of \d+ cells", re.MULTILINE)
    assert progress.findall(plain.stderr) == []
    assert progress.findall(verbose.stderr) == ["16", "32"]
    phases = [text.partition("took ")[2].count(" s") for text in (plain.stderr, verbose.stderr)]
    assert phases[0] < phases[1]


@pytest.mark.slow
def test_a_verbose_plan_tells_all_reasons(without_compilers):
    plain, verbose = without_compilers("run", *SMALL, "--dry-run"), without_compilers("run", *SMALL, "--dry-run", "--verbose")
    assert "no C++ compiler" not in plain.stdout
    assert "no C++ compiler" in verbose.stdout


@pytest.mark.slow
def test_a_quiet_dry_run_prints_its_plan_without_notes(without_compilers):
    given = ("run", "--backends", "torch,compil?", *SMALL, "--dry-run")
    plain, quiet = without_compilers(*given), without_compilers(*given, "-q")
    assert quiet.stdout.splitlines()[0].split()[0] == "forward-fp32-8x16"
    assert "2 cases x 2 backends (copy, torch) = 4 cells" in quiet.stdout
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, plain.stdout, "")
    many = ("run", "--backends", "torch", "--device", "cpu", "--M", "8", "--N", "1:150:1", "--dry-run")
    assert "and 50 more cases" in without_compilers(*many).stdout
    assert "forward-fp32-8x150 " in without_compilers(*many, "-v").stdout


LEFT_OUT = "softbench: mine is left out: it has no softmax, only rms_norm; see docs/plugins.md"
"""A plugin that the user named: `--quiet` tells of it."""


@pytest.mark.parametrize("more", [("--dry-run",), pytest.param((), marks=pytest.mark.slow)])
def test_a_quiet_run_tells_what_it_leaves_out(cli, more):
    (cli.folder / "mine.py").write_text("def rms_norm(x, gamma):\n    return x")
    done = cli(
        "run", "-q", "--backends", "all,!compile*", "--plugin", "mine.py", "--device", "cpu", "--M", "8", "--N", "16", "--quick", *more
    )
    assert [line for line in done.stderr.splitlines() if "not measurable now" not in line] == [LEFT_OUT]


def test_a_quiet_check_tells_what_a_problem_leaves_out(cli):
    (cli.folder / "problem.py").write_text(
        "import torch\ncases = [dict(N=4), dict(N=7)]\n\ndef inputs(N):\n return torch.randn(3, N)\n\n"
        "def reference(x):\n return x.view(3, 2, -1).sum(1)\n"
    )
    (cli.folder / "mine.py").write_text("def problem(x):\n    return x.view(3, 2, -1).sum(1)")
    done = cli("check", "-q", "--op", "problem.py", "--plugin", "mine.py", "--device", "cpu")
    (line,) = done.stderr.splitlines()
    assert line.startswith("softbench: problem(N=7) is left out: RuntimeError: shape")
    assert (done.returncode, done.stdout) == (0, "")


def test_a_quiet_check_prints_errors_only(cli):
    (cli.folder / "fails.py").write_text(FAILS)
    (cli.folder / "broken.py").write_text("raise ValueError('broken')")
    given = ("check", "--device", "cpu", "--case", "one NaN", "--dtype", "fp32", "--direction", "forward")
    done = cli(*given, "-q", "--backends", "torch")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = cli(*given, "-q", "--backends", "torch,fails", "--plugin", "fails.py", "--plugin", "broken.py")
    assert (done.returncode, done.stdout) == (1, "")
    broken, failed, command = done.stderr.splitlines()
    assert broken == "softbench: broken: import: ValueError: broken (in <module>, broken.py:1)"
    assert failed.startswith("softbench: fails failed: ValueError: no luck")
    assert command.startswith("  softbench check --backends fails")


def test_long_is_verbose_in_check(cli):
    given = ("check", "--device", "cpu", "--case", "one NaN", "--dtype", "fp32", "--direction", "forward", "--backends", "torch")
    assert cli(*given, "-v").stdout == cli(*given, "--long").stdout != cli(*given).stdout


@pytest.mark.parametrize("words", [("run", "-q", "-v"), ("check", "-q", "--long"), ("gate", "-q", "--verbose", "a.csv", "--baseline", "b")])
def test_quiet_and_verbose_contradict_each_other(main, words):
    code, out, text = main(*words)
    assert (code, out) == (2, "")
    assert text == "softbench: --quiet: does not go with --verbose or --long; leave out one of them\n"


@pytest.mark.slow
def test_a_quiet_gate_prints_its_conclusion_only(cli):
    given = ("gate", "--candidate", "torch", "--reference", "naive", "--device", "cpu", "--M", "8", "--N", "16", "--margin", "100")
    done = cli(*given, "-q", "--rounds", "6", "--processes", "1")
    assert done.returncode in (0, 3), done.stderr
    assert done.stderr == ""
    assert "new/old" not in done.stdout
    assert done.stdout.splitlines()[0].startswith(("PASS: ", "INCONCLUSIVE: "))


def test_a_dry_run_writes_its_plan_as_json(without_compilers):
    given = ("run", "--backends", "torch,compile", "--device", "cpu", "--M", "8", "--N", "16,1000000000000", "--dry-run")
    done = without_compilers(*given, "--json", "-")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["device"] == "cpu"
    assert plan["estimate_s"] > 0
    found = {(cell["backend"], cell["N"]): cell for cell in plan["cells"]}
    assert found["torch", 16]["status"] == "planned"
    assert found["compile", 16]["status"] == "unavailable"
    assert "no C++ compiler" in found["compile", 16]["reason"]
    assert found["copy", 10**12]["status"] == "oom"
    assert found["torch", 16]["tensor_bytes"] == 8 * 16 * 4
    done = without_compilers(*given, "--json", "plan.json")
    assert "2 cases x 2 backends (copy, torch)" in done.stdout
    assert ", 3 to 6 rounds" in done.stdout
    cells = json.loads((without_compilers.folder / "plan.json").read_text())["cells"]
    assert [cell["status"] for cell in cells] == [cell["status"] for cell in plan["cells"]]
    assert not (without_compilers.folder / "results").exists()
