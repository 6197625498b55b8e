"""The lines of the table of cells."""

from softbench.report.page import cells
from softbench.report.page.source import Source
from softbench.results import rows


def test_each_column_of_a_line_is_that_of_the_head(make_record):
    """Of several files, the file stands behind the backend, where it is seen without scrolling."""
    row = rows.row(make_record("ours", [20.0]), None, None, device="H200", run="r")
    for names in (["a.csv"], ["a.csv", "b.csv"]):
        sources = [Source(name, [row]) for name in names]
        found = [dict(zip(cells.columns(sources), line.texts, strict=True)) for line in cells.lines(sources)]
        assert [line.get("file") for line in found] == (names if len(names) > 1 else [None])
        assert {(line["backend"], line["pass"], line["median"]) for line in found} == {("ours", "forward", "20 us")}
        assert [*found[0]][:2] == (["backend", "file"] if len(names) > 1 else ["backend", "pass"])
