"""The forest plot: a line for each cell with a ratio, and the ids of its points."""

import pytest
from svg import as_svg

from softbench.core.errors import ResultsError
from softbench.gate.samples import CellKey
from softbench.gate.verdicts import GateReport, Rules, State, Verdict
from softbench.report import gate_figures, style


def verdict(N, state, ratio, **changes):
    interval = ratio and (ratio * 0.98, ratio * 1.02)
    return Verdict(CellKey("ours", "forward", "bf16", 4096, N), state, "", ratio=ratio, interval=interval, margin=0.05, **changes)


def report(*verdicts):
    return GateReport("b against a", list(verdicts), Rules(0.05), ())


def points(figure):
    return {line.get_gid(): line for line in figure.axes[0].lines if line.get_gid()}


def test_each_verdict_has_its_state_and_a_point_if_it_has_a_ratio():
    cells = (
        verdict(1, State.SLOWER, 1.2),
        verdict(2, State.MISSING, None),
        verdict(3, State.FASTER, 0.8),
        verdict(4, State.SAME, 1.0, gated=False),
    )
    figure = gate_figures.figure(report(*cells))
    found = points(figure)
    assert [line.get_xdata()[0] for line in found.values()] == [1.2, 0.8, 1.0]
    labels = [f"ours  forward-bf16-4096x{N}: {state}" for N, state in enumerate(("slower", "missing", "faster", "same"), 1)]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == labels
    assert [text.get_text() for text in figure.axes[0].texts] == [" no ratio"]
    assert [line.get_markerfacecolor() == style.PAPER for line in found.values()] == [False, False, True]
    assert len({line.get_marker() for line in found.values()}) == 3
    assert all(f'id="{gid}"' in as_svg(figure) for gid in ("verdict-0", "verdict-1", "verdict-2", "verdict-3"))


def test_cells_that_fail_are_never_left_out():
    many = [verdict(N, State.SAME, 1.04) for N in range(1, gate_figures.MAX_CELLS + 10)]
    figure = gate_figures.figure(report(verdict(9999, State.SLOWER, 1.02), *many))
    assert len(points(figure)) == gate_figures.MAX_CELLS
    assert figure.axes[0].get_yticklabels()[0].get_text() == "ours  forward-bf16-4096x9999: slower"
    assert figure.axes[0].get_title().endswith("(10 cells of least interest left out)")


def test_a_report_without_a_ratio_has_no_plot(tmp_path):
    with pytest.raises(ResultsError, match=r"f.png: no cell has a ratio"):
        gate_figures.write(report(verdict(1, State.MISSING, None)), tmp_path / "f.png")
