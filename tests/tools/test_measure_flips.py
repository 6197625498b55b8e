"""Every stored file, damaged in every way of tools/measure_flips.py: refused, left out and named, or without effect."""

import random

import measure_flips
import pytest


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("flips"))
        patch.setattr("sys.argv", [])
        yield {target.name: target for target in measure_flips.targets(measure_flips.Path())}


@pytest.mark.parametrize("file", ["CSV", "JSON (.json.gz)", "JSON (.json)", "baseline", "journal", "journal of a fleet"])
def test_no_damage_is_missed(targets, file):
    for name in measure_flips.DAMAGES:
        found, missed = measure_flips.measure(targets[file], name, 3 if name == "byte" else 1, random.Random(f"{file} {name}"))
        assert (found["missed"], missed) == (0, [])
        assert found.total() > 0


def test_a_change_without_a_word_is_missed():
    before, file = measure_flips.Said(0, "1 us\n2 us\n", ""), measure_flips.Path("run-1.csv")
    for after, found in (
        (before, "no effect"),
        (before._replace(out="1 us\n3 us\n"), "missed"),
        (before._replace(out="1 us\n"), "missed"),
        (before._replace(out="1 us\n", err="run-1.csv: line 2 is damaged\n"), "left out"),
        (measure_flips.Said(2, "", "run-1.csv: line 2 is damaged\n"), "refused"),
        (measure_flips.Said(2, "", "run-1.csv: line 2\nis damaged\n"), "missed"),
        (measure_flips.Said(-1, "", "KeyError: 'run-1'\n"), "missed"),
    ):
        assert measure_flips.judged(before, after, file, cut=False) == found
