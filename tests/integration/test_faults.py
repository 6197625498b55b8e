"""Plugins that crash, hang or fail: each loses its own cells only."""

import re
import time

import pytest

SMALL = ("--device", "cpu", "--M", "8")


def table(cli):
    return {(row["backend"], row["N"]): row for row in cli.rows()}


@pytest.mark.slow
def test_every_fault_has_a_reason_and_other_cells_are_measured(cli, plugins):
    names = ("correct/logsumexp", "wrong/zeros", "faulty/raises_at_import", "faulty/hangs_at_import", "faulty/faults")
    cli.env |= {"PATH": "/nonexistent", "CC": "", "CXX": ""}  # no compiler: the deadlines can be shorter than a cold compilation
    given = [part for name in names for part in ("--plugin", plugins / f"{name}.py")]
    done = cli("run", *given, *SMALL, "--N", "16,32", "--quick", "--timeout", "import=5,build=2,check=40,time=40", timeout=500)
    assert done.returncode == 1, done.stderr
    found = table(cli)
    healthy = ["copy", "naive", "torch", "logsumexp", "prints"]
    expected = {
        "zeros": ("wrong", "should be"),
        "raises_at_import": ("failed", "import: ImportError: no module named the_missing_library; pip install the-missing-library"),
        "hangs_at_import": ("timeout", "import took longer than 5 s (in <module>, hangs_at_import.py:5: time.sleep(3600))"),
        "raises-in-prepare": ("failed", "build: RuntimeError: this kernel does not build"),
        "dies-by-sigsegv": (
            "failed",
            "crashed (SIGSEGV) in build: in <lambda>, faults.py:55: Faulty(",
        ),
        "sleeps-for-ever": ("timeout", "build took longer than 2 s (in <lambda>, faults.py:"),
        "exits": ("failed", "exited with code 7 in build"),
    }
    sources = ["triton-compiled", "triton-op", "triton-custom-op", "cuda-op"]
    peers = ["quack", "liger", "flaggems", "flashinfer", "helion", "cudnn", "cupy", "numba"]
    reasons = cli("show", "--long").stdout
    assert {name for name, _ in found} == {*healthy, *expected, *sources, *peers, "compile", "cuda", "triton", "triton-row", "triton-tile"}
    assert {found[name, "16"]["status"] for name in ("compile", "cuda", *sources, *peers)} == {"unavailable"}
    assert found["triton", "16"]["status"] in ("checked", "unavailable")  # the interpreter of an older Triton fails with a newer numpy
    for N in ("16", "32"):
        for name in healthy:
            assert found[name, N]["status"] == "ok", (name, found[name, N]["reason"])
            assert float(found[name, N]["gbps"]) > 0
        for name, (status, part) in expected.items():
            row = found[name, N]
            assert row["status"] == status, (name, row)
            assert part in row["reason"], (name, row["reason"])
            assert row["gbps"] == row["median_us"] == ""
            assert re.search(rf"^{name} +│ +{status} +│ +{status} *$", done.stdout, re.MULTILINE)
            assert f"{name}: {status} (2 cells, " in reasons
    assert "4 reasons more: --wide or --long shows all" in done.stdout
    assert found["zeros", "16"]["class"] == "wrong"
    assert "Traceback" not in done.stderr
    (log,) = (cli.folder / "results").glob("run-*.log")
    kept = log.read_text()
    assert "== raises-in-prepare ==" in kept
    assert "second line: a long compiler log" in kept  # of which the table has the first line
    assert "== torch ==" not in kept
    assert log.name in done.stderr


@pytest.mark.slow
def test_phases_have_deadlines_and_late_faults_fail_one_cell(cli, plugins):
    (cli.folder / "late.toml").write_text(f"""
plugins = "{plugins / "faulty" / "faults.py"}"
backends = "torch,{",".join(LATE)}"
rounds = 2
[timeout]
check = 6
time = 60
[[sweep]]
M = 1
N = 524288
""")
    start = time.monotonic()
    done = cli("run", "--config", "late.toml", "--device", "cpu", "--quick", "--timeout", "time=3", timeout=200)
    assert time.monotonic() - start < 60
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    found = {name: row for (name, _), row in table(cli).items()}
    assert found["torch"]["status"] == found["copy"]["status"] == "ok"
    for name, (status, part) in LATE.items():
        assert found[name]["status"] == status, (name, found[name])
        assert part in found[name]["reason"], (name, found[name]["reason"])
        assert found[name]["gbps"] == found[name]["median_us"] == ""


LATE = {
    "aborts-in-check": ("failed", "crashed (SIGABRT) in check"),
    "hangs-in-check": ("timeout", "check took longer than 6 s (in "),
    "hangs-in-time": ("timeout", "time took longer than 3 s (in "),
    "dies-in-time": ("failed", "crashed (SIGSEGV) in time: in <lambda>, faults.py:"),
    "raises-in-time": ("failed", "time: RuntimeError: shape '[-1, 7]' is invalid"),
    "asks-for-too-much": ("oom", "out of memory, as it asked for 1024 TiB: free memory"),
}


def test_right_values_that_fail_an_output_check_are_wrong(cli, plugins):
    done = cli("run", "--plugin", plugins / "wrong" / "contract.py", "--backends", ",".join(CONTRACT), *SMALL, "--N", "16", "--quick")
    assert done.returncode == 1, done.stderr
    found = {name: row["reason"] for (name, _), row in table(cli).items() if row["status"] == "wrong"}
    assert found.pop("keeps-its-output").startswith("returned the output of an earlier input: y[")
    assert found == {name: reason for name, reason in CONTRACT.items() if reason}


CONTRACT = {
    "returns-none": "returned NoneType, not a torch.Tensor",
    "returns-float64": "returned dtype torch.float64, not torch.float32",
    "returns-a-row-less": "returned shape (7, 16), not (8, 16)",
    "returns-a-subclass": "returned Wrapped, not a torch.Tensor",
    "returns-its-input": "returned its input's memory",
    "changes-its-input": "changed its input, which a call may only read",
    "keeps-its-output": "",
}


def test_a_selected_plugin_that_fails_to_load_is_an_error(cli, plugins):
    file = plugins / "faulty" / "raises_at_import.py"
    done = cli("run", "--plugin", file, "--backends", "raises_at_import", *SMALL, "--N", "16")
    assert done.returncode == 2
    assert "no module named the_missing_library" in done.stderr


@pytest.mark.slow
def test_a_broken_file_named_like_a_backend_has_a_row(cli):
    (cli.folder / "naive.py").write_text("raise ValueError('broken')")
    cli.env |= {"PATH": "/nonexistent", "CC": "", "CXX": ""}
    done = cli("run", "--plugin", "naive.py", "--backends", "naive", *SMALL, "--N", "8", "--quick")
    assert done.returncode == 1, done.stderr
    assert table(cli)["naive", "8"]["status"] == "ok"
    assert table(cli)["naive.py", "8"]["reason"] == "import: ValueError: broken (in <module>, naive.py:1)"
    done = cli("run", "--plugin", "naive.py", "--backends", "mine", *SMALL, "--N", "8")
    assert "unknown backend 'mine'" in done.stderr
    assert "naive.py could not be loaded: import: ValueError: broken (in <module>, naive.py:1)" in done.stderr


def test_a_plugin_that_does_not_load_is_never_passed_over(cli):
    (cli.folder / "broken.py").write_text("import torch\n\nraise ValueError('broken')")
    given = ("--plugin", "broken.py", "--device", "cpu")
    text = "could not be loaded: import: ValueError: broken (in <module>, broken.py:3)"
    done = cli("run", *given, "--backends", "torch", "--M", "8", "--N", "8", "--quick")
    assert done.returncode == 1, done.stderr
    assert f"softbench: plugin broken.py: {text}" in done.stderr.splitlines()
    assert table(cli)["torch", "8"]["status"] == "ok"
    assert (table(cli)["broken", "8"]["status"], table(cli)["broken", "8"]["reason"]) == ("failed", text.partition(": ")[2])
    done = cli("check", *given, "--backends", "torch", "--case", "shape 37x1", "--dtype", "fp32", "--direction", "forward")
    assert done.returncode == 1, done.stderr
    assert f"broken: {text.partition(': ')[2]}" in done.stderr
    for command in (("inspect", "torch", *given), ("gate", "--candidate", "torch", "--reference", "naive", *given, "--M", "8", "--N", "8")):
        done = cli(*command)
        assert (done.returncode, done.stderr) == (2, f"softbench: plugin broken.py: {text}\n")
    (cli.folder / "broken.py").write_text("x = (")
    assert "SyntaxError: '(' was never closed (broken.py:1)" in cli("list", "torch", *given).stdout


def test_nothing_measured_is_never_success(cli, plugins):
    file = plugins / "correct" / "logsumexp.py"
    done = cli("run", "--plugin", file, "--backends", "logsumexp", "--direction", "both", *SMALL, "--N", "8")
    assert done.returncode == 1
    assert "logsumexp: skipped (both fp32 8x8): autograd is not wired up" in done.stdout
