"""The gate's report: every cell is in every output, whatever its state."""

import io
from xml.etree import ElementTree

import pytest
from rich.console import Console
from svg import as_svg

from softbench.cli import output
from softbench.gate.samples import CellKey
from softbench.gate.verdicts import FAILING, TESTED, GateReport, Rules, State, Verdict
from softbench.report import gate_figures, gate_report

CASE = "forward-bf16-4096x7"


def cell_of(state, N=7, **changes):
    ratio = 1.2 if state in TESTED else None
    return Verdict(CellKey("ours", "forward", "bf16", 4096, N), state, "why so", ratio=ratio, interval=ratio and (1.1, 1.3), **changes)


def report(*cells):
    steady = [
        Verdict(CellKey("ours", "forward", "bf16", 4096, 4096 + n), State.SAME, "", ratio=1.0, interval=(1.0, 1.0)) for n in range(12)
    ]
    return GateReport("new against old", (*cells, *steady), Rules(0.05))


def text_of(made, *, long):
    console = Console(record=True, file=io.StringIO(), width=200)
    console.print(gate_report.text(made, long=long))
    return console.export_text()


STATES = [*((state, True) for state in State), (State.SLOWER, False), (State.AMBIGUOUS, False)]
"""Each with whether it is gated."""


def test_a_cell_of_every_state_is_in_the_figure():
    cells = [cell_of(state, 100 + i, gated=gated) for i, (state, gated) in enumerate(STATES)]
    drawn = as_svg(gate_figures.figure(report(*cells)))
    assert [cell.cell.case for cell in cells if cell.cell.case not in drawn] == []


def test_a_terminal_of_100_columns_breaks_no_line():
    reason = "slower by more than the margin of 5%, after correction for multiple tests (p=0.0012)"
    wide = Verdict(CellKey("compile", "backward", "bf16", 8192, 16384), State.SLOWER, reason, 1.078, (1.071, 1.085), n="10+3 processes")
    console = Console(file=io.StringIO(), width=100)
    output.show(gate_report.text(report(wide), long=False), console)
    shown = console.file.getvalue()
    assert max(map(len, shown.splitlines())) <= 100
    assert "10+3 processes" in " ".join(shown.split()) and "10+3 processes" in gate_report.markdown(report(wide))


@pytest.mark.parametrize(("state", "gated"), STATES)
def test_a_cell_of_every_state_is_in_every_output(state, gated):
    made = report(cell_of(state, gated=gated))
    outputs = [text_of(made, long=True), gate_report.markdown(made), str(made.document())]
    assert all(CASE in output for output in outputs)
    counted = 13 if state is State.SAME and gated else 1
    assert f"{counted} cell{'s' if counted > 1 else ''} {state}" in made.summary
    folded = {State.SAME: "same: 13 cells", State.UNMEASURED: "unmeasured: 1 cell of ours: why so"}
    assert folded.get(state, CASE) in text_of(made, long=False)
    suite = ElementTree.fromstring(gate_report.junit(made))
    (case,) = [one for one in suite if one.get("name") == CASE]
    kind = "failure" if state in FAILING and gated else "error" if state is State.FAILED else "skipped"
    quiet = gated and state in (State.SAME, State.FASTER, State.NEW)
    assert [one.tag for one in case] == ([] if quiet else [kind])
    inconclusive = state is State.FAILED or (gated and state in (State.CLOCK, State.AMBIGUOUS))
    assert made.exit_code == (1 if state in FAILING and gated else 3 if inconclusive else 0)


def test_many_advisory_cells_that_are_slower_are_no_pass():
    """19 of 20 calls of 9 us were 1.24 times slower: it was PASS, with one cell judged."""

    def exit_of(slow):
        cells = [
            Verdict(
                CellKey("ours", "forward", "bf16", 8, n), State.SLOWER, "advisory: short", ratio=1.24, interval=(1.2, 1.28), gated=False
            )
            for n in range(1, slow + 1)
        ]
        steady = [Verdict(CellKey("ours", "forward", "bf16", 8, 99 + n), State.SAME, "", ratio=1.0) for n in range(20 - slow)]
        return GateReport("", (*cells, *steady), Rules(0.05))

    assert exit_of(19).summary == (
        "INCONCLUSIVE: 19 of 20 cells are advisory and slower than the margin, more than 10%: "
        "1 cell same (advisory, never failing: 19 cells slower)"
    )
    assert [exit_of(slow).exit_code for slow in (19, 3, 2)] == [3, 3, 0]
