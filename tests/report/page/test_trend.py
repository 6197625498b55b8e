"""Many runs of one machine: the curve of each cell group, and its change points."""

import math
from dataclasses import replace

import pytest

from softbench.core.errors import ResultsError
from softbench.report.page import trend


@pytest.fixture
def runs(make_row):
    def cell(backend, N, fraction):
        return make_row(backend, N=N, of_copy=fraction, gbps=fraction * 1000, labels="")

    def made(*speeds, noise=0.002):
        return [
            (f"c{i}", [cell(name, N, 0.5 * (speed if name == "ours" else 1) * (1 + noise * ((i + k) % 3))) for name in ("ours", "torch")
                       for k, N in enumerate((256, 512, 1024, 2048))])
            for i, speed in enumerate(speeds)
        ]  # fmt: skip

    return made


def found(runs):
    return [(change.group[0], change.run) for change in trend.changes(trend.logs(runs))]


def test_a_change_beyond_the_margin_is_a_change_point(runs):
    assert found(runs(1, 1, 0.8, 0.8, 1)) == [("ours", 2), ("ours", 4)]
    (slower, faster) = trend.changes(trend.logs(runs(1, 1, 0.8, 0.8, 1)))
    assert (slower.ratio, faster.ratio) == (pytest.approx(0.8, abs=0.01), pytest.approx(1.25, abs=0.01))


def test_changes_within_the_margin_or_the_noise_are_none(runs):
    assert found(runs(1, 1.03, 1, 0.98)) == []
    assert found(runs(1, 0.93, noise=0.3)) == []


def test_a_run_without_the_backend_is_left_out(runs):
    made = runs(1, 1, 0.8)
    made[1] = (made[1][0], [row for row in made[1][1] if row.backend != "ours"])
    assert found(made) == [("ours", 2)]


def test_a_group_keeps_the_cells_that_all_runs_have(runs):
    made = runs(1, 1)
    made[1] = (made[1][0], made[1][1][1:])
    (_, ours), *_ = trend.logs(made).items()
    assert [{case.N for case in cells} for cells in ours] == [{512, 1024, 2048}] * 2
    assert math.exp(next(iter(ours[0].values()))) == pytest.approx(0.5, rel=0.01)
    noisy = [(label, [replace(row, labels="noisy") if row.N == 256 else row for row in rows]) for label, rows in runs(1, 1)]
    assert {case.N for cells in trend.logs(noisy).values() for case in cells[0]} == {512, 1024, 2048}


def test_a_panel_has_the_mean_of_each_run(runs):
    values = trend.logs(runs(1, 1, 0.8))
    (panel,) = trend.panels(values, trend.changes(values))
    assert {name: len(means) for name, means in panel["means"].items()} == {"ours": 3, "torch": 3}
    assert panel["means"]["ours"][2] == pytest.approx(0.4, rel=0.01)
    assert panel["changes"] == [["ours", 2, "-20%"]]


def test_runs_without_a_trend_are_refused(runs):
    made = runs(1, 1)
    other = [(label, [replace(row, device=label) for row in rows]) for label, rows in made]
    for some, message in (
        (made[:1], "needs two runs"),
        (other, "the runs are of c0, c1"),
        ([("a", []), ("b", [])], "no cell has a fraction"),
    ):
        with pytest.raises(ResultsError, match=message):
            trend.logs(some)
