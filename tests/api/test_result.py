"""A result reads every file that a run writes, and earlier ones; its tables, frames and pictures have the file's cells."""

import json
import shutil
from io import StringIO
from pathlib import Path

import pytest
from gating import dice, interleaved, stored_run
from rich.console import Console
from rich.table import Table
from rich.text import Text

from softbench.api.result import Pictures, Result, Shown
from softbench.core.errors import ResultsError, UsageError
from softbench.results.csv import COLUMNS, read_csv
from softbench.results.document import load

ROOT = Path(__file__).parents[2]
H200 = ROOT / "results" / "h200"


@pytest.fixture(scope="module")
def strategies():
    return Result.load(H200 / "strategies.csv")


@pytest.mark.parametrize("name", ["odd", "strategies"])
def test_csv_and_json_of_a_run_have_the_same_cells(name):
    by_csv, by_json = (Result.load(H200 / f"{name}.{suffix}") for suffix in ("csv", "json.gz"))
    assert [(row.backend, row.case, row.status) for row in by_csv.rows] == [(row.backend, row.case, row.status) for row in by_json.rows]
    medians = [(one.median_us, other.median_us) for one, other in zip(by_csv.rows, by_json.rows, strict=True) if one.median_us]
    assert all(abs(a / b - 1) < 1e-5 for a, b in medians)
    assert by_csv.samples == by_json.samples


def test_a_folder_is_its_latest_run(tmp_path):
    for file in H200.glob("odd.[cj]s*"):
        shutil.copy(file, tmp_path)
    found = Result.load(tmp_path)
    assert (found.csv, len(found.notes)) == (tmp_path / "odd.csv", 1)
    with pytest.raises(ResultsError, match="is a folder without results"):
        (tmp_path / "odd.csv").unlink()
        Result.load(tmp_path)


def test_the_csv_and_the_json_of_an_interrupted_run_say_so(tmp_path):
    run = stored_run(tmp_path, interleaved(dice(1), 1, processes=1), interrupted=True, command="softbench run")
    for file in (run.csv, run.json):
        assert Result.load(file).notes == (f"{file}: is of an interrupted run, and not whole; continue with: softbench run --resume",)


def test_a_frame_is_tidy(strategies):
    frame = strategies.frame()
    assert (list(frame.columns), len(frame)) == (list(COLUMNS), len(strategies.rows))
    best = frame[frame["status"] == "ok"].groupby("backend")["of_copy"].mean()
    assert best["cuda"] > 0.5
    import pandas

    samples = pandas.DataFrame(strategies.samples)
    assert set(samples["backend"]) == {row.backend for row in strategies.rows if row.status == "ok"}


def test_ok_is_the_exit_code_of_the_run(strategies):
    assert Result.load(H200 / "odd.csv").ok
    assert not strategies.ok
    assert "a cell is wrong or failed" in repr(strategies)
    assert not Result([], Path("none.csv")).ok


def test_tables_have_the_numbers_of_show(main, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")  # as wide as a log
    result = Result.load(H200 / "odd.csv")
    code, out, _ = main("show", H200 / "odd.csv")
    assert code == 0
    assert [line.split() for line in str(result.table()).splitlines()] == [line.split() for line in out.strip().splitlines()]
    assert str(result) == str(result.table())


def test_pictures_are_written_and_embedded(tmp_path):
    shutil.copy(H200 / "odd.csv", tmp_path / "odd.csv")
    rows = [row for row in read_csv(tmp_path / "odd.csv")[0] if (row.dtype, row.direction) == ("bf16", "forward")]
    result = Result(rows, tmp_path / "odd.csv")
    (file,) = result.plot()
    assert (file, file.read_bytes()[:4]) == (tmp_path / "odd.png", b"\x89PNG")
    assert (
        result.plot(tmp_path / "own.svg")
        ._repr_html_()
        .startswith('<img alt="own.svg" style="max-width: 100%" src="data:image/svg+xml;base64,')
    )
    assert [path.name for path in result.plot(tmp_path / "over.png", kind="speedup", relative_to="cuda")] == ["over.png"]
    with pytest.raises(UsageError, match="kind: unknown kind 'heat'; did you mean 'heatmap'"):
        result.plot(kind="heat")
    with pytest.raises(UsageError, match="must end in"):
        result.plot(tmp_path / "own.gif")


@pytest.mark.slow
def test_the_page_of_a_result_has_its_cells(tmp_path):
    for suffix in (".csv", ".json.gz"):
        shutil.copy((H200 / "odd.csv").with_suffix(suffix), tmp_path)
    result = Result.load(tmp_path / "odd.csv")
    assert result.report() == tmp_path / "odd.html"
    assert "1000000x5" in (tmp_path / "odd.html").read_text()
    assert result.report(tmp_path / "own.html").read_text() == (tmp_path / "odd.html").read_text()
    with pytest.raises(UsageError, match="is a results file; name another one"):
        result.report(tmp_path / "odd.csv")
    with pytest.raises(UsageError, match=r"^out .*page\.pdf: the page is HTML; give a name that ends in \.html$"):
        result.report(tmp_path / "page.pdf")
    assert not (tmp_path / "page.pdf").exists()


def damaged(change):
    document = load(H200 / "odd.json.gz")
    document["cells"] = document["cells"][:2]
    change(document)
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is damaged or not JSON"),
        ("{}", "is not a softbench run: it lacks cells"),
        (damaged(lambda document: document.pop("yardstick")), "its header is damaged: KeyError"),
        (damaged(lambda document: document["cells"][1].pop("case")), "cell 2 is damaged: KeyError"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, text, message):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ResultsError, match=message):
        Result.load(tmp_path / "run.json")


def test_samples_of_another_run_are_refused(tmp_path):
    shutil.copy(H200 / "odd.csv", tmp_path / "x.csv")
    with pytest.raises(ResultsError, match=r"x\.json\.gz: No such file"):
        _ = Result.load(tmp_path / "x.csv").samples
    (tmp_path / "x.json.gz").write_text(damaged(lambda document: document.update(run="run-1")))
    with pytest.raises(ResultsError, match="of another run; take both files of one run"):
        _ = Result.load(tmp_path / "x.csv").samples


def make(console):
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("text", no_wrap=True)
    table.add_row(Text("<b>[red]x"), Text("y" * 120, style="red"))
    return table


def test_text_has_no_control_sequences_and_cuts_nothing(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    text = str(Shown(make, 120))
    assert "<b>[red]x" in text
    assert "y" * 120 in text
    assert "\x1b" not in text
    assert repr(Shown(make, 120)) == text


def test_jupyter_gets_text_and_html_once(monkeypatch):
    """There rich would display what it prints, with nothing left for the text."""
    shown: list[object] = []
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *given: shown.append(given))
    assert "<b>[red]x" in str(Shown(make, 120))
    assert "\x1b" not in str(Shown(make, 120))
    assert "&lt;b&gt;[red]x" in Shown(make, 120)._repr_html_()
    assert shown == []


def test_html_is_escaped_and_has_its_own_colours():
    html = Shown(make, 120)._repr_html_()
    assert html.startswith("<pre style=")
    assert "&lt;b&gt;[red]x" in html
    assert "<b>" not in html
    assert "color: " in html


def test_a_rich_console_gets_colours():
    console = Console(file=StringIO(), force_terminal=True, width=200, color_system="standard")
    console.print(Shown(make, 120))
    assert "\x1b[31m" in console.file.getvalue()


def test_a_pdf_is_named(tmp_path):
    (tmp_path / "<a>.pdf").write_bytes(b"%PDF")
    assert Pictures([tmp_path / "<a>.pdf"])._repr_html_() == "<p>&lt;a&gt;.pdf</p>"
