"""`--quiet` prints errors and the result only; `--verbose` prints what is otherwise left out."""

import json
import re

import pytest

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
def test_a_quiet_run_prints_the_file_and_failures(cli):
    (cli.folder / "fails.py").write_text(FAILS)
    done = cli("run", "-q", "--backends", "torch", *SMALL)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert (cli.folder / line).read_text() == (cli.folder / "results" / "latest.csv").read_text()
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
    given = ("run", "--backends", "torch,compil?", "--device", "cpu", "--M", "8", "--N", "16,1000000000000", "--dry-run")
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
    cells = json.loads((without_compilers.folder / "plan.json").read_text())["cells"]
    assert [cell["status"] for cell in cells] == [cell["status"] for cell in plan["cells"]]
    assert not (without_compilers.folder / "results").exists()
