"""Sittings: their variance, the term of the test, and the self-test against a baseline."""

import random

import numpy as np
import pytest
from gating import dice, stored, write_run
from simulate_gate import Noise, Stored

from softbench.core.errors import InconclusiveError
from softbench.gate import baselines, sittings, unpaired
from softbench.gate.inference import between_groups_sd
from softbench.gate.samples import join
from softbench.gate.verdicts import Rules

RULES = Rules(margin=unpaired.MARGIN)


def test_the_variance_between_groups_is_recovered():
    rng, cells = random.Random(1), []
    for _ in range(400):
        effects = [rng.gauss(0, 0.02) for _ in range(3)]
        cells.append([[effect + rng.gauss(0, 0.01) for _ in range(5)] for effect in effects])
    assert between_groups_sd(cells) == pytest.approx(0.02, rel=0.1)
    assert between_groups_sd([[[0.0, 0.1], [0.1, 0.0]]]) == 0
    assert between_groups_sd([[[0.0, 0.1]]]) is None
    assert between_groups_sd([[[0.0], [0.1]]]) is None


def simulated(sitting, runs, *, seed=1):
    return Stored(np.random.default_rng(seed), Noise(sitting=sitting), 40, sittings=runs)


def test_a_baseline_of_several_runs_shows_how_sittings_differ():
    assert unpaired.sitting_sd(simulated(0.02, 5).base) == pytest.approx(0.02, rel=0.3)
    assert unpaired.sitting_sd(simulated(0.0, 5).base) < 0.002
    assert unpaired.sitting_sd(simulated(0.02, 1).base) == unpaired.SITTING_SD


def test_the_sitting_widens_the_interval():
    """Without the term, sittings that differ by 2 % made cells slower that have not changed."""
    few, many = (unpaired.judge(stored(dice(1), 3), simulated_base(sitting), RULES) for sitting in (0.0, 0.02))
    assert width(many) > 3 * width(few)


def simulated_base(sitting):
    """A baseline of two runs whose cells differ by this."""
    rng = dice(2)
    runs = [stored(rng, 5, slowdown=lambda i, sign=sign: sign * sitting, source=f"run {sign}") for sign in (-1, 1)]
    return join(runs)


def width(report):
    return sum(verdict.interval[1] - verdict.interval[0] for verdict in report.verdicts)


def test_a_stored_baseline_keeps_its_sittings(tmp_path):
    joined = join([stored(dice(i), 5, source=str(i)) for i in (1, 2)])
    assert joined.by_sitting == ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9))
    file, _ = baselines.save([joined], "two", tmp_path)
    assert baselines.open_baseline(str(file)).by_sitting == joined.by_sitting
    text = file.read_text()
    file.write_text("\n".join(line for line in text.splitlines() if '"sittings"' not in line))
    assert baselines.open_baseline(str(file)).by_sitting == (tuple(range(10)),)  # a file of an earlier version
    file.write_text(text.replace('"sittings": [[0', '"sittings": [["x"'))
    with pytest.raises(Exception, match="is damaged"):
        baselines.open_baseline(str(file))


def test_the_self_test_judges_each_sitting_against_the_baseline():
    base = stored(dice(2), 10, source="base")
    quiet = sittings.analyse([stored(dice(i), 3, source=f"r{i}") for i in (3, 4, 5)], base, RULES)
    assert (quiet.families, quiet.alarms, quiet.passed, quiet.exit_code) == (3, 0, 3, 0)
    assert quiet.sitting_sd < 0.002
    slow = sittings.analyse([stored(dice(i), 3, source=f"r{i}", slowdown=lambda i: 0.1 * (i % 2)) for i in (3, 4)], base, RULES)
    assert (slow.alarms, slow.exit_code) == (2, 1)
    assert slow.sitting_sd > 0.02
    assert slow.document()["false_alarm_rate_at_most"] == 1
    with pytest.raises(InconclusiveError, match="needs 3 processes"):
        sittings.analyse([stored(dice(3), 2, source="r")], base, RULES)


def test_the_command_measures_the_variance_between_sittings(main, tmp_path):
    base = write_run(tmp_path, stored(dice(2), 10), name="base")
    runs = [write_run(tmp_path, stored(dice(i), 3), name=f"r{i}") for i in (3, 4)]
    code, out, err = main("gate", "--self-test", "--baseline", base, *runs)
    assert (code, err) == (0, "")
    assert "false alarms: 0 of 2 families (at most 77.64%" in out
    assert "standard deviation between sittings: 0." in out
