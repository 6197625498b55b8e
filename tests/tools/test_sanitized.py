"""tools/sanitized.py with a program in place of compute-sanitizer."""

import importlib.util
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "sanitized.py"
PROGRAM = """
import os, sys
given = sys.argv[1:]
assert given[:4] == ["--tool", "racecheck", "--error-exitcode", "9"] and os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1"
way, function, part = given[6], given[8], given[given.index("--part") + 1]
if (way, function, part) != NONE:
    print("0: warp, 5 rows, 80 bytes", "1: block, 3 rows, 60 bytes", sep="\\n")
sys.exit(9 if (way, function, part) == WRONG else 0)
"""


@pytest.fixture
def sanitized():
    spec = importlib.util.spec_from_file_location("sanitized", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("wrong", "code"), [(None, 0), (("triton", "logprob", "2/2"), 1)])
def test_all_functions_run_and_an_error_is_told(sanitized, tmp_path, monkeypatch, capsys, wrong, code):
    program = tmp_path / "program.py"
    program.write_text(f"WRONG, NONE = {wrong!r}, None{PROGRAM}")
    monkeypatch.setattr(sys, "argv", ["sanitized.py", "racecheck", "--out", str(tmp_path / "out"), "--jobs", "2"])
    assert sanitized.main((sys.executable, str(program))) == code
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(list((tmp_path / "out").glob("*.log"))) == 16
    assert all("    2 launches" in line for line in lines), lines
    assert [line.split()[0] for line in lines if line.endswith("code 9")] == (["triton-logprob-2"] if wrong else [])


def test_a_process_that_launched_nothing_is_an_error(sanitized, tmp_path, monkeypatch, capsys):
    program = tmp_path / "program.py"
    program.write_text(f"WRONG, NONE = None, ('cuda', 'logprob', '1/2'){PROGRAM}")
    monkeypatch.setattr(sys, "argv", ["sanitized.py", "racecheck", "--out", str(tmp_path / "out"), "--jobs", "2"])
    assert sanitized.main((sys.executable, str(program))) == 1
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines() if "    0 launches" in line] == ["cuda-logprob-1"]
