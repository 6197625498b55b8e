"""The script that measures large files: its files are those of a run, and it says which target is missed."""

import measure_scale
import pytest

from softbench.gate import run_files
from softbench.results.compare import TwoFiles
from softbench.results.csv import read_csv


@pytest.fixture
def files(tmp_path):
    return measure_scale.written(tmp_path, 1000)


def test_its_files_are_of_one_run_and_differ_by_drift_and_few_cells(files):
    a, b = (read_csv(file)[0] for file in files)
    both = TwoFiles(a, b)
    assert len(a) == len(b) == 994  # 71 cases of 14 backends
    assert both.drift.usual.value == pytest.approx(1 / 1.03, rel=1e-3)
    assert 5 < sum(pair.changed for pair in both.pairs(0.05)) < 40
    assert [len(run_files.read(file).cells) for file in files] == [994, 994]
    assert run_files.read(files[0]).processes == measure_scale.PROCESSES


def test_a_missed_target_is_the_exit_code(tmp_path, monkeypatch, capsys):
    lines = [("fast", 1.0, 0.5, "s"), ("slow", 1.0, 2.0, "s"), ("told", float("inf"), 3.0, "MB")]
    monkeypatch.setattr(measure_scale, "MEASUREMENTS", {"some": lambda folder, number: lines})
    monkeypatch.setattr("sys.argv", ["measure_scale.py", "--folder", str(tmp_path)])
    assert measure_scale.main() == 1
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]] == ["yes", "NO", "MB"]
    lines.pop(1)
    assert measure_scale.main() == 0
