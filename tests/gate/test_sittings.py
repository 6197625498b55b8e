"""Sittings: how runs form them, how unchanged code differs between them, and what that does to verdicts and baselines."""

import random
import re
from dataclasses import replace

import numpy as np
import pytest
from documents import undigested
from gating import dice, on_day, stored, write_run
from sampled import sampled
from simulate_gate import STORED, Noise, Stored, families

from softbench.gate import baselines, next_step, sittings, unpaired
from softbench.gate.inference import proportion_bounds
from softbench.gate.samples import SITTING_S, join
from softbench.gate.verdicts import Rules, State

RULES = Rules(margin=unpaired.MARGIN)


def at(run, times):
    return replace(run, sittings=tuple(one._replace(times=times) for one in run.by_sitting))


def run_at(number, times, **options):
    return at(stored(dice(number), 5, source=f"run-{number}", **options), times)


def test_runs_of_one_time_are_one_sitting_and_an_unknown_time_is_none_of_its_own():
    begin, end = on_day(1)
    soon, later = (end + SITTING_S - 1, end + SITTING_S + 5), (end + 3 * SITTING_S, end + 4 * SITTING_S)
    joined = join([run_at(1, later), run_at(2, (begin, end)), run_at(3, None), run_at(4, soon)])
    assert [one.times for one in joined.by_sitting] == [(begin, soon[1]), later]
    assert [sorted(one.processes) for one in joined.by_sitting] == [[*range(5, 20)], [*range(5)]]


def cells(sd, common, count, sittings_=2, processes=5):
    rng = random.Random(1)
    shifts = [rng.gauss(0, common) for _ in range(sittings_)]
    effects = [[shift + rng.gauss(0, sd) for shift in shifts] for _ in range(count)]
    return [[[[effect + rng.gauss(0, 0.003) for _ in range(processes)] for effect in row]] for row in effects]


def test_the_variance_between_sittings_is_recovered_with_its_degrees_of_freedom():
    own = sittings.estimate(cells(0.02, 0.0, 400))
    assert own.sd == pytest.approx(0.02, rel=0.1)
    assert (own.cell.df, own.common.df) == (399, 1)
    assert sittings.error_of(own.cell, own.common)[1] > 200
    shared = sittings.estimate(cells(0.0, 0.02, 400, sittings_=40))
    assert shared.common.variance == pytest.approx(0.02**2, rel=0.4)
    assert sittings.error_of(shared.cell, shared.common)[1] == pytest.approx(39, rel=0.1)  # not 400 times that
    few = sittings.estimate(cells(0.02, 0.0, 4))
    assert (few.cell.df, few.common.df) == (0, 1)
    assert sittings.error_of(few.cell, few.common)[1] == 1
    assert sittings.estimate([[[[0.0, 0.1]]]]) is None
    assert sittings.estimate([[[[0.0], [0.1]]]]).sd > 0.07  # a process each: what they differ by counts as that of the sittings


def slow_cell(base, times):
    return unpaired.compare(at(stored(dice(3), 3, slowdown=lambda i: 0.1 if i == 3 else 0), times), base, RULES)


def test_against_one_sitting_a_slowdown_that_sittings_explain_is_no_regression():
    base = stored(dice(4), 10)
    one = replace(base, sittings=(base.sittings[0]._replace(processes=tuple(range(10))),))
    report = slow_cell(one, on_day(9))
    (cell,) = [verdict for verdict in report.verdicts if verdict.state is not State.SAME]
    assert (cell.state, report.exit_code) == (State.AMBIGUOUS, 3)
    assert (
        "no cell has two sittings of the baseline: intervals assume a standard deviation of 0.3% between sittings, and no cell is called"
        in report.notes[0]
    )
    assert slow_cell(one, (on_day(1)[1] + 60, on_day(1)[1] + 90)).exit_code == 1  # at the same time
    report = slow_cell(base, on_day(9))
    assert (report.exit_code, report.summary) == (1, "FAIL: 1 cell slower, 39 cells same")
    assert report.notes == ()


@pytest.mark.parametrize("noise", sampled([one for one in STORED if one.endswith("2 %")], lambda one: one == "one sitting 2 %"))
def test_sittings_raise_no_alarm(noise):
    assert proportion_bounds(families(60, STORED[noise], 20, 0.0, 3, RULES.margin, 3, Stored).exits[1], 60)[0] <= 0.05


@pytest.mark.slow
def test_a_process_of_each_of_ten_sittings_raises_no_alarm():
    noise = Noise(sitting=0.04, common_sitting=0.02, sittings=10)
    assert proportion_bounds(families(60, noise, 20, 0.0, 3, RULES.margin, 1, Stored).exits[1], 60)[0] <= 0.05


def test_cells_of_one_sitting_each_do_not_show_how_sittings_differ(tmp_path):
    runs = [run_at(1, on_day(1)), run_at(2, on_day(2))]
    parts = [replace(run, cells={key: one for key, one in run.cells.items() if i == key.N % 2}) for i, run in enumerate(runs)]
    base = join(parts)
    report = slow_cell(base, on_day(9))
    assert (report.exit_code, "no cell has two sittings" in report.notes[0]) == (3, True)
    step = next_step.after_new_processes(report, "softbench gate", base, 3)
    assert step.startswith("if the code of the baseline is still there, add a sitting to it: measure the same code after")
    assert baselines.open_baseline(str(baselines.save([base], "parts", tmp_path)[0])).processes == 10


def simulated(sitting, runs):
    return Stored(np.random.default_rng(1), Noise(sitting=sitting, sittings=runs), 40).base


def test_a_baseline_of_several_runs_shows_how_sittings_differ():
    assert unpaired.between_sittings(simulated(0.02, 5)).sd == pytest.approx(0.02, rel=0.3)
    assert unpaired.between_sittings(simulated(0.0, 5)).sd < 0.002
    assert unpaired.between_sittings(simulated(0.02, 1)) is None
    moving, still = (simulated(sd, 5).cells for sd in (0.02, 0.0))
    launch_bound = {key: replace(one, host_bound="so") for key, one in moving.items()}
    some = {key: one for key, one in still.items() if key.backend == "copy" or key.N % 2}
    for cells, sd in ((launch_bound, 0.02), ({**launch_bound, **some}, 0.001)):  # such cells count if there are no others
        assert unpaired.between_sittings(replace(simulated(0.0, 5), cells=cells)).sd == pytest.approx(sd, rel=0.3)


def test_a_stored_baseline_keeps_its_sittings(tmp_path):
    joined = join([run_at(1, on_day(1)), run_at(2, on_day(2))])
    file, warnings = baselines.save([joined], "two", tmp_path)
    assert (baselines.open_baseline(str(file)).by_sitting, warnings) == (joined.by_sitting, [])
    text = file.read_text()
    file.write_text(undigested(text).replace('"sittings": [[0', '"sittings": [["x"'))
    with pytest.raises(Exception, match="is damaged"):
        baselines.open_baseline(str(file))


def test_a_baseline_of_one_sitting_says_how_to_add_one(main, tmp_path):
    baselines.save([run_at(1, on_day(1))], "h200", tmp_path / "results" / "baselines")
    today = write_run(tmp_path, stored(dice(2), 5))
    code, _, err = main("baseline", "save", today, "--name", "now")
    assert code == 0
    assert re.search(r"one sitting, so that at another time the gate finds only slowdowns of \d+% and more; to add one, measure", err)
    assert err.endswith("softbench run --M 4096 --processes 5 && softbench baseline save now results/latest.csv --name now --force\n")
    assert "one sitting" not in main("baseline", "save", "h200", today, "--name", "h200", "--force")[2]
    found = baselines.open_baseline("h200")
    assert (found.processes, len(found.by_sitting)) == (10, 2)
    assert "80 cells, 10 processes, 2 sittings on NVIDIA H200" in main("baseline", "list")[1]


@pytest.mark.parametrize("output", ["-o out/h200", "--output=out/h200", "--output out/h200"])
def test_the_commands_that_add_a_sitting_save_what_they_measure(output):
    commands = unpaired.add_sitting(replace(run_at(1, on_day(1)), command=f"softbench run {output} --M 4"), "h200")
    assert commands.endswith(" && softbench baseline save h200 out/h200/latest.csv --name h200 --force")
