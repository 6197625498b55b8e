"""tools/sanitized.py with a program in place of compute-sanitizer."""

import importlib.util
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "sanitized.py"
PROGRAM = """
import os, signal, sys, time
given = sys.argv[1:]
assert given[:4] == ["--tool", "racecheck", "--error-exitcode", "9"] and os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1"
way, function, part = given[6], given[8], given[given.index("--part") + 1]
if (way, function, part) != NONE:
    print("0: warp, 5 rows, 80 bytes", "1: block, 3 rows, 60 bytes", sep="\\n", flush=True)
if (way, function, part) == SLOW:
    if DEAF:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("2: block, 3 rows, 60 bytes", flush=True)
    time.sleep(60)
if (way, function, part) != CUT:
    wrong = '"0: warp"' if (way, function, part) == WRONG else ""
    print('{"launches": {"warp": 1, "block": 1}, "large": {}, "wrong": [' + wrong + "]}")
found = (way, function, part) == FOUND
if (way, function, part) != BARE:
    print("========= RACECHECK SUMMARY: %d hazards displayed (%d errors, 0 warnings)" % (found, found))
sys.exit(9 if (way, function, part) == CODE else 0)
"""
ONE = ("triton", "logprob", "2/2")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """`run(*options, CODE=...)`: the exit code, the lines by process, and the last line. A name in capitals is what one process does."""
    spec = importlib.util.spec_from_file_location("sanitized", TOOL)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "sanitized", module)  # its dataclasses look for it there
    spec.loader.exec_module(module)

    def start(*options, **of_one):
        program = tmp_path / "program.py"
        settings = dict.fromkeys(("CODE", "NONE", "SLOW", "DEAF", "CUT", "WRONG", "FOUND", "BARE")) | of_one
        program.write_text("".join(f"{name} = {value!r}\n" for name, value in settings.items()) + PROGRAM)
        monkeypatch.setattr(sys, "argv", ["sanitized.py", "racecheck", "--out", str(tmp_path / "out"), "--jobs", "2", *options])
        code = module.main((sys.executable, str(program)))
        *lines, last = capsys.readouterr().out.splitlines()
        return code, {line.split()[0]: line for line in lines}, last

    return start


def test_all_functions_run_and_launches_are_summed(run, tmp_path):
    code, lines, last = run()
    assert code == 0
    assert len(lines) == len(list((tmp_path / "out").glob("*.log"))) == 20
    assert all(line.endswith("    2 launches, exit code 0") for line in lines.values()), lines
    each = "scaled_softmax 4, log_softmax 4, cross_entropy 4, logprob 4, masked_softmax 4"
    assert last == f"0 of 20 processes failed, 40 launches; cuda 20: {each}; triton 20: {each}"


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("CODE", "exit code 9"),
        ("FOUND", "exit code 0, the sanitizer found errors"),
        ("BARE", "exit code 0, the sanitizer printed no summary"),
        ("WRONG", "exit code 0, results are wrong"),
        ("CUT", "exit code 0, it did not reach its end"),
        ("NONE", "    0 launches, exit code 0"),
    ],
)
def test_what_is_wrong_with_one_process_is_told(run, what, told):
    code, lines, last = run("--functions", "logprob", **{what: ONE})
    assert code == 1
    assert lines.pop("triton-logprob-2").endswith(told)
    assert all(line.endswith("    2 launches, exit code 0") for line in lines.values())
    assert last.startswith("1 of 4 processes failed")


def test_only_chosen_functions_run(run):
    code, lines, last = run("--functions", "masked_softmax,logprob", "--parts", "1")
    assert code == 0
    assert list(lines) == ["cuda-logprob-1", "triton-logprob-1", "cuda-masked_softmax-1", "triton-masked_softmax-1"]
    assert last.endswith("cuda 4: logprob 2, masked_softmax 2; triton 4: logprob 2, masked_softmax 2")


@pytest.mark.parametrize("given", ["logprob,softmaxx", "", "logprob,"])
def test_an_unknown_function_is_refused_in_one_line(run, capsys, given):
    with pytest.raises(SystemExit) as refused:
        run("--functions", given)
    assert refused.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("sanitized.py: --functions has no ") and line.endswith(
        "choose from scaled_softmax, log_softmax, cross_entropy, logprob, masked_softmax"
    )


def test_a_missing_sanitizer_is_told(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    code, lines, _ = run("--functions", "logprob")
    assert code == 1
    assert all("not started: " in line for line in lines.values())


@pytest.mark.parametrize(("deaf", "code"), [(False, -signal.SIGINT), (True, -signal.SIGKILL)])
def test_an_interrupt_leaves_logs_and_sums(run, tmp_path, monkeypatch, deaf, code):
    """Also of a process that goes on: it is killed."""
    monkeypatch.setattr(sys.modules["sanitized"], "END_SECONDS", 1)
    log = tmp_path / "out" / "cuda-logprob-2.log"

    def interrupt():
        while not (log.is_file() and "2: block" in log.read_text()):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    start = time.monotonic()
    failed, lines, last = run("--functions", "logprob,masked_softmax", "--jobs", "1", SLOW=("cuda", "logprob", "2/2"), DEAF=deaf)
    thread.join()
    assert failed == 1
    assert time.monotonic() - start < 30
    assert lines.pop("cuda-logprob-1").endswith("2 launches, exit code 0")
    assert lines.pop("cuda-logprob-2").endswith(f"    3 launches, exit code {code}, interrupted")
    assert "1: block" in log.read_text()
    assert len(lines) == 6 and all(line.endswith("    0 launches, left out: interrupted") for line in lines.values())
    assert last == "7 of 8 processes failed, 5 launches; cuda 5: logprob 5, masked_softmax 0; triton 0: logprob 0, masked_softmax 0"
