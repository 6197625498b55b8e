"""`softbench gallery`: the list of strategies, the ladder of a run, and its picture."""

import io
from pathlib import Path

from rich.console import Console

from softbench.cli.output import show
from softbench.report import gallery

STRATEGIES = Path(__file__).parents[2] / "results" / "h200" / "strategies.csv"


def test_strategies_are_listed_by_lines_of_code(main):
    _, out, _ = main("gallery")
    names = [line.split(" ")[0] for line in out.splitlines()[2:-1]]
    assert names[:2] == ["eager", "compiled"] and {*names[-2:]} == {"triton", "cuda"} and len(names) == 15
    assert "softbench run --config gallery" in out


def test_the_list_fits_a_narrow_terminal():
    log = io.StringIO()
    show(gallery.catalog(), Console(width=80, file=log))
    lines = log.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines == [line.rstrip() for line in lines]


def test_a_run_becomes_a_ladder_and_a_picture(main, tmp_path):
    _, out, _ = main("gallery", str(STRATEGIES), "--markdown", "--plot", "ladder.svg")
    head, _, *lines = out.splitlines()
    assert head == "| strategy | lines | build | forward, of copy | backward, of copy | what it is |"
    shares = {line.split("`")[1]: int(line.split(" | ")[3].removesuffix("%").strip() or -1) for line in lines}
    assert shares["cupy"] < shares["triton-row"] < shares["triton-tile"] < shares["cuda"] <= 100
    picture = (tmp_path / "ladder.svg").read_text()
    assert len(picture) > 10_000 and "Not measured: compiled, " in picture


def test_what_has_no_ladder_is_one_line(main):
    code, _, err = main("gallery", str(STRATEGIES.with_name("losses.csv")))
    assert code == 2 and "no strategy of the gallery has run there; measure them: softbench run --config gallery" in err
    code, _, err = main("gallery", "--plot", "ladder.png")
    assert code == 2 and "gallery: --plot shows results; name the CSV" in err
