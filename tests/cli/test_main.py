"""The command line, with real processes and measurements on the CPU."""

import errno
import json
import resource
import signal
import subprocess
import time

import pytest
import torch
from sampled import sampled

from softbench.cli import output
from softbench.core.errors import NotMeasurableError
from softbench.results.journal import line_of

SMALL = ("--device", "cpu", "--M", "8", "--quick")


def test_a_run_ends_with_table_csv_and_exit_0(cli):
    directions = ("--direction", "forward,both")
    done = cli.alone("run", "--backends", "naive,torch", *SMALL, "--N", "16", "--dtype", "fp32,bf16", *directions)
    assert done.returncode == 0, done.stderr
    assert "forward fp32, M=8" in done.stdout
    assert "~ low-precision" in done.stdout
    found = cli.rows()
    assert len(found) == 2 * 2 * 3
    assert {row["backend"] for row in found} == {"copy", "naive", "torch"}
    assert {row["class"] for row in found if row["backend"] == "naive" and row["dtype"] == "bf16"} == {"low-precision"}
    assert all(float(row["gbps"]) > 0 for row in found)
    assert all(int(row["n"]) >= 9 or int(row["throttled_batches"]) for row in found)  # a disturbed batch does not count
    assert all(float(row["speedup"]) == 1 for row in found if row["backend"] == "torch")
    document = cli.document()
    assert document["environment"]["torch"]
    assert document["command"].startswith("softbench run --backends naive,torch")
    assert document["fingerprint"]["rounds"] == 3
    batches = document["cells"][0]["outcome"]["timing"]["batches"]
    assert sorted({batch["round"] for batch in batches}) == [0, 1, 2]


@pytest.mark.slow
def test_torch_compile_is_cached_the_second_time(cli):
    N = 1000 + int(time.time()) % 50_000  # not in the cache; an empty one would compile the headers of C++ too
    for expected in ("cold", "cached"):
        done = cli("run", "--backends", "compile,torch", *SMALL, "--N", N)
        assert done.returncode == 0, done.stdout + done.stderr
        compiled = [row for row in cli.rows() if row["backend"] == "compile"]
        assert [(row["status"], row["class"]) for row in compiled] == [("ok", "pass")]
        assert [row["build_cache"] for row in compiled] == [expected]
        assert all(float(row["build_s"]) >= float(row["compile_s"]) > 0 for row in compiled)
        assert [row["recompiles"] for row in compiled] == ["0"]
        assert {row["compile_s"] + row["recompiles"] for row in cli.rows() if row["backend"] == "torch"} == {""}


RECOMPILES = """
import torch
class Recompiles:
    name = "recompiles"
    calls = 0
    def available(self): return None
    def supports(self, case): return None
    def prepare(self, case):
        compiled = torch.compile(lambda x, scale: torch.softmax(x * scale, -1), dynamic=False, backend="eager")
        def call(x):
            self.calls += 1
            return compiled(x, 1 if self.calls < 20 else True)
        return call
backend = Recompiles()
"""


@pytest.mark.slow
def test_a_recompilation_during_timing_is_counted(cli):
    (cli.folder / "recompiles.py").write_text(RECOMPILES)
    done = cli("run", "--backends", "recompiles", "--plugin", "recompiles.py", *SMALL, "--N", "16")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["recompiles"] for row in cli.rows()] == ["", "1"]


@pytest.mark.slow
def test_process_sets_are_fresh_and_all_recorded(cli):
    done = cli("run", "--backends", "torch", *SMALL, "--N", "16", "--processes", "2")
    assert done.returncode == 0, done.stderr
    assert cli.rows()[1]["processes"] == "2"
    batches = cli.document()["cells"][1]["outcome"]["timing"]["batches"]
    assert {(batch["process"], batch["round"]) for batch in batches} == {(process, turn) for process in (0, 1) for turn in range(3)}


@pytest.mark.slow
def test_too_little_memory_for_all_workers_ends_interleaving(cli):
    (cli.folder / "tight.toml").write_text('memory_share = 0.000001\nbackends = "torch"\nrounds = 2\n[[sweep]]\nM = 4\nN = [8, 16]\n')
    done = cli("run", "--config", "tight.toml", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "not interleaved: memory holds no more workers, so 1 of 2 backends are alive at a time" in done.stderr
    assert cli.document()["environment"]["interleaved"] is False
    assert all(float(row["speedup"]) > 0 for row in cli.rows())


@pytest.mark.slow
def test_a_dry_run_with_resume_counts_stored_cells(cli):
    given = ("run", "--backends", "torch", *SMALL, "--N", "16,32", "--dry-run", "--resume")
    assert cli(*given[:-2]).returncode == 0
    done = cli(*given)
    assert "nothing to resume in results: no interrupted run there; measuring everything" in done.stderr
    assert "2 cases x 2 backends (copy, torch) = 4 cells" in done.stdout
    header = cli.document()
    cells = [{"process": 0, **cell} for cell in header.pop("cells") if cell["case"]["N"] == 16]
    journal = cli.folder / "results" / "run-1.jsonl"
    journal.write_bytes(b"".join(line_of(line, number) for number, line in enumerate((header, *cells), 1)))
    done = cli(*given)
    assert "8x32" in done.stdout
    assert "8x16" not in done.stdout
    assert "run-1: 2 cells stored, 2 cells of 1 case and 2 backends (copy, torch) left, 3 rounds" in done.stdout
    resumed, whole = (json.loads(cli(*some, "--json", "-").stdout) for some in (given, given[:-1]))
    assert [resumed[key] for key in ("resumes", "cells_stored", "cells_left")] == ["run-1", 2, 2]
    assert [cell["status"] for cell in resumed["cells"]] == ["stored", "stored", "planned", "planned"]
    assert 0 < resumed["estimate_s"] < whole["estimate_s"]
    assert (whole["resumes"], whole["cells_stored"], whole["cells_left"]) == ("", 0, 4)
    assert journal.exists()


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_auto_says_so_in_one_line(cli):
    done = cli("run", "--dry-run")
    assert [line for line in done.stderr.splitlines() if "no GPU" in line] == [done.stderr.strip()]
    assert "): a short sweep on the CPU instead" in done.stderr
    for given in (("--M", 8, "--N", 8), ("--shape", "2x3x8")):
        assert "): measuring on the CPU instead" in cli("run", "--dry-run", *given).stderr


@pytest.mark.slow
def test_a_log_gets_no_colour_and_unbroken_tables(cli):
    done = cli("run", "--backends", "naive,torch", *SMALL, "--N", "16")
    assert "\x1b" not in done.stdout + done.stderr
    assert "16 │" in done.stdout


def test_doctor_reports_every_part_and_what_to_install(cli):
    cli.env = {**cli.env, "PATH": "/nonexistent", "CUDA_HOME": "/nonexistent", "CC": "", "CXX": ""}
    done = cli("doctor", "--json")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert document["healthy"] is False
    names = {one["name"] for one in document["findings"]}
    assert {"torch", "triton", "C compiler", "C++ compiler", "Python.h", "nvcc"} <= names
    (compiler,) = [one for one in document["findings"] if one["name"] == "C compiler"]
    assert compiler["state"] == "missing" and "apt install gcc" in compiler["text"]


@pytest.mark.slow
def test_a_missing_compiler_is_an_error_only_by_name(cli):
    cli.env = {**cli.env, "PATH": "/nonexistent", "CC": "", "CXX": ""}
    done = cli("run", *SMALL, "--N", "16")
    assert done.returncode == 0, done.stderr
    assert "(--long says why)" in done.stdout
    (row,) = [row for row in cli.rows() if row["backend"] == "compile"]
    assert row["status"] == "unavailable" and "install g++" in row["reason"]
    assert "install g++" in cli("show", "--long", "results/latest.csv").stdout
    done = cli("run", *SMALL, "--N", "16", "--backends", "compile")
    assert done.returncode == 1
    assert "--backends compile: unavailable: no C++ compiler" in done.stderr
    done = cli("run", *SMALL, "--N", "16", "--backends", "compile,torch")
    assert done.returncode == 0, done.stderr
    assert {row["backend"]: row["status"] for row in cli.rows()} == {"copy": "ok", "compile": "unavailable", "torch": "ok"}
    done = cli("check", "--backends", "compile,torch", "--case", "shape 37x1", "--dtype", "fp32", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "compile: unavailable: no C++ compiler" in done.stderr


def test_a_cpu_that_runs_out_of_memory_says_so(cli):
    done = cli("run", "--backends", "torch", "--device", "cpu", "--M", "1", "--N", "1000000000000", "--quick")
    assert done.returncode == 1
    assert cli.rows() == []
    assert "torch: oom" in done.stdout


def test_a_missing_home_folder_is_no_error(cli):
    cli.env = {**cli.env, "HOME": "/nonexistent"}
    assert cli("run", "--backends", "torch", *SMALL, "--N", "16").returncode == 0


@pytest.mark.slow
def test_odd_characters_reach_the_files_in_any_locale(cli):
    text = "\\udcff caf\u00e9 \\x07[31m\\tred"
    (cli.folder / "odd.py").write_text(f"def softmax(x): raise ValueError('{text}')", encoding="utf-8")
    cli.env = {**cli.env, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = cli("run", "--backends", "torch,odd", "--plugin", "odd.py", *SMALL, "--N", "16")
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    (cell,) = [row for row in cli.rows() if row["backend"] == "odd"]
    assert cell["reason"].startswith("build: ValueError: ? caf\u00e9 [31m red (in softmax, odd.py:1: def softmax(x): raise ")


@pytest.mark.slow
def test_closed_and_full_streams_are_no_tracebacks(cli):
    assert cli("run", "--backends", "torch", *SMALL, "--N", "16,32").returncode == 0
    show = " ".join(cli.command("show", "results/latest.csv"))
    for shell, code in (
        (f"{show} | true; exit ${{PIPESTATUS[0]}}", (0, 141)),
        (f"{show} >&-", (0,)),
        (f"{show} > /dev/full", (4,)),
        (f"{show} > /dev/full 2>&1", (4,)),
    ):
        done = subprocess.run(["bash", "-c", shell], cwd=cli.folder, env=cli.env, capture_output=True, text=True, check=False)
        assert done.returncode in code, (shell, done.stderr)
        assert "Traceback" not in done.stderr


def test_an_errors_exit_code_survives_a_full_disk_of_stderr(cli):
    show = " ".join(cli.command("show", "none.csv"))
    assert subprocess.run(["bash", "-c", f"{show} 2> /dev/full"], cwd=cli.folder, env=cli.env, check=False).returncode == 2


@pytest.mark.slow
def test_nohup_is_respected(cli):
    command = ["nohup", *cli.command("run", "--backends", "torch", *SMALL, "--N", "16:128:16")]
    process = subprocess.Popen(command, cwd=cli.folder, env=cli.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(1.5)
    process.send_signal(signal.SIGHUP)
    assert process.wait(120) in (0, NotMeasurableError.exit_code)  # the latter on a busy host
    assert [row["status"] for row in cli.rows()] == 2 * 8 * ["ok"]


BAD = {
    "an unknown backend": (("run", "--backends", "troch", *SMALL, "--N", "8"), "did you mean 'torch'?"),
    "N of zero": (("run", "--N", "0"), "--N: 0 is out of range"),
    "a mistyped dtype": (("run", "--dtype", "BF16"), "--dtype: unknown dtype 'BF16'; did you mean 'bf16'?"),
    "a mistyped direction": (("run", "--direction", "backwards"), "did you mean 'backward'?"),
    "a mistyped device": (("run", "--device", "cdua"), "did you mean 'cuda'?"),
    "a long text for an operation": (("run", "--op", 300 * "x"), "--op: unknown operation 'xxx"),
    "a long text for a problem": (("run", "--problem", 300 * "x" + ".py"), "xxx.py: File name too long"),
    "a mistyped timer": (("run", "--timer", "do-bench"), "did you mean 'do_bench'?"),
    "a mistyped kind of code": (("inspect", "torch", "--show", "ptxs"), "unknown kind 'ptxs'; did you mean 'ptx'?"),
    "a mistyped case": (
        ("check", "--device", "cpu", "--case", "shape 37x"),
        "unknown case 'shape 37x'; did you mean 'shape 37x2' or 'shape 37x1' or 'shape 37x33'? --case '' prints the ",
    ),
    "two patterns in one": (
        ("check", "--case", "shape 0x16,shape 16x0", "--device", "cpu"),
        "16x0'; each pattern needs its own --case; --case ''",
    ),
    "a pattern of no case": (("check", "--case", "no such*", "--device", "cpu"), "unknown case 'no such*'; --case '' prints the "),
    "an unknown dtype to check": (("check", "--dtype", "fp8"), "known are fp32, fp16, bf16"),
    "an unknown direction to check": (("check", "--direction", "bath"), "known are forward, backward, both"),
    "a check of the yardstick": (("check", "--backends", "copy", "--device", "cpu"), "--backends copy: the yardstick computes nothing"),
    "code of an unknown dtype": (("inspect", "torch", "--dtype", "fp8"), "unknown dtype 'fp8'"),
    "code of two cases": (("inspect", "torch", "--dtype", "fp32,bf16"), "one case"),
    "a folder of code that cannot be made": (("inspect", "torch", "--out", "/proc/x"), "--out /proc/x: cannot be written"),
    "a mistyped backend to list": (("list", "troch", "--device", "cpu"), "no backend matches 'troch'; did you mean 'torch'?"),
    "a mistyped backend to inspect": (("inspect", "troch", "--device", "cpu"), "unknown backend 'troch'; did you mean 'torch'?"),
    "an unknown L2": (("run", "--l2", "hot"), "--l2: unknown value 'hot'; known are cold, warm"),
    "a GPU's timer on the CPU": (("run", *SMALL, "--N", "8", "--timer", "device"), "--timer queued --l2 cold"),
    "a GPU's L2 on the CPU": (("run", *SMALL, "--N", "8", "--l2", "warm"), "--timer queued --l2 cold"),
    "a negative precision": (("run", "--precision", "-1"), "--precision: must be a number from 0 to 1"),
    "a missing plugin": (("run", "--plugin", "none.py"), "--plugin none.py: no such file"),
    "an unknown reference": (("run", *SMALL, "--N", "8", "--backends", "torch", "--relative-to", "naive"), "unknown backend 'naive'"),
    "a missing results file": (("show", "none.csv"), "none.csv: No such file"),
    "a torn results file": (("plot", "torn.csv"), "torn.csv: line 1: not a softbench results file"),
    "an unknown key": (("run", "--config", "unknown.toml"), "unknown key 'rouns'; did you mean 'rounds'?"),
    "a JSON file that cannot be written": (("run", *SMALL, "--N", "8", "--json", "none/x.json"), "--json none/x.json: cannot be written"),
    "a plugin path that is too long": (("run", "--plugin", "x" * 300), "File name too long"),
    "cases that exclude each other": (
        ("check", "--device", "cpu", "--case", "shape *", "--case", "!shape *"),
        "'!shape *': no case is left",
    ),
    "the file of an operation without its suffix": (("run", "--op", "torn"), "--op: unknown operation 'torn'; did you mean torn.py?"),
    "a mistyped file of an operation": (("run", "--op", "tron.py"), "tron.py: no such file; did you mean torn.py?"),
    "a folder for a plugin": (("run", "--plugin", "."), "--plugin .: is a folder; name a Python file in it"),
    "a folder to judge": (("judge", "."), "takes the file of one plugin, and here is .; name it: --plugin FILE"),
    "a torn plugin": (("run", "--plugin", "torn.py"), "--plugin torn.py: SyntaxError: '(' was never closed (torn.py:1)"),
    "a torn plugin to check": (("check", "--plugin", "torn.py"), "'(' was never closed (torn.py:1)"),
    "a plugin without a backend to check": (("check", "--plugin", "bare.py", "--device", "cpu"), "--plugin bare: import: its `backend`"),
    "a file of no run for a history": (("history", "torch", "torn.csv"), "no run in torn.csv has a time of it; torn.csv: is not a soft"),
    "a list of no operation": (("list", "--op", "sotfmax"), "--op: unknown operation 'sotfmax'; did you mean 'softmax'?"),
    "a list of half an operation": (("list", "--ops", "--op", "softmax(scale="), "'softmax(scale=' is no operation; write softmax, or"),
    "commits outside a repository": (("bisect", "a", "b"), "repository (or any of the parent directories): .git; run it in"),
    "an output that is a file": (("run", *SMALL, "--N", "8", "--output", "torn.csv"), "--output torn.csv: cannot be written"),
    "an output that cannot be made": (("run", *SMALL, "--N", "8", "--output", "/proc/none"), "--output /proc/none: cannot be written"),
}


@pytest.mark.parametrize("what", sampled(BAD, lambda what: [*BAD].index(what) % 2 == 0 and what != "a mistyped backend to inspect"))
def test_bad_input_is_one_clear_line_and_exit_2(main, tmp_path, what):
    (tmp_path / "torn.csv").write_text("backend,dir")
    (tmp_path / "torn.py").write_text("x = (")
    (tmp_path / "bare.py").write_text("x = 1")
    (tmp_path / "unknown.toml").write_text("rouns = 3")
    before = sorted(tmp_path.rglob("*"))
    arguments, part = BAD[what]
    code, out, err = main(*arguments)
    assert code == 2, err
    assert part in err
    assert "Traceback" not in err
    assert out == ""
    progress = ("import of", "start of a worker")  # of a slow machine
    lines = [line for line in err.splitlines() if not any(part in line for part in progress)]
    assert len(lines) == 1
    assert lines[0].startswith("softbench:")
    made = {*tmp_path.rglob("*")} - {*tmp_path.rglob("__pycache__"), *tmp_path.rglob("*.pyc"), tmp_path / "results"}  # Python's
    assert sorted(made) == before


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "shut/run.csv"), 2, "shut/run.csv: Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device"), 4, "the output: cannot be written: No space left on device; free space"),
    ],
)
def test_an_error_of_a_file_is_not_one_of_the_output(main, monkeypatch, error, code, text):
    """A path in a folder that may not be searched cannot even be asked for."""

    def app(**_):
        raise error

    monkeypatch.setattr("softbench.cli.main.app", app)
    found, _, err = main("show", "shut/run.csv")
    assert (found, err.startswith(f"softbench: {text}")) == (code, True), err


@pytest.mark.slow
def test_a_full_disk_shows_what_was_measured_and_is_resumed(cli):
    results = cli.folder / "results"
    results.mkdir()
    (results / "latest.csv").write_text("an earlier run")
    given = ("run", "--backends", "torch", "--device", "cpu", "--M", "8", "--N", "16,32,64", "--quick", "--rounds", "5")
    limit = 2000  # bytes per file: the journal's header fits, the first cells do not
    done = subprocess.run(
        cli.command(*given, "--json", "run.json"),
        cwd=cli.folder,
        env={**cli.env, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.returncode == 4, done.stderr
    assert "forward fp32, M=8" in done.stdout
    last = done.stderr.splitlines()[-1]
    assert "cannot be written: File too large; raise the limit of a file's size: ulimit -f; then continue with: " in last
    assert last.endswith(" --resume")
    assert (results / "latest.csv").read_text() == "an earlier run"
    done = cli(*given, "--resume")
    assert done.returncode == 0, done.stderr
    assert "resuming run-" in done.stderr
    assert len(cli.rows()) == 6


def test_a_stored_command_has_no_absolute_paths():
    given = ["run", "--output", "/data/a b.csv", "--plugin=/home/me/mine.py", "--config", "configs/own.toml", "--M", "1,2"]
    expected = "softbench run --output 'a b.csv' --plugin=mine.py --config configs/own.toml --M 1,2"
    assert output.command_line(given) == expected
