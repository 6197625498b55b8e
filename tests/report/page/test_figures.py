"""The SVG of a page: no style attributes, few bytes, and points that name their cell."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from softbench.report import plots, style
from softbench.report.page import figures
from softbench.results.csv import read_csv

RESULTS = Path(__file__).parents[3] / "results" / "h200"


def test_figure_becomes_a_small_part_of_the_page():
    rows, _ = read_csv(RESULTS / "odd.csv")
    drawing = next(plots.drawings([(Path("odd.csv"), rows)]))
    numbers = {gid: i for i, gid in enumerate(drawing.points)}
    whole = figures.as_svg(drawing.figure)
    text = figures.compact(whole, "f0-", numbers)
    assert len(text) < 0.65 * len(whole)
    root = ElementTree.fromstring(text)
    every = list(root.iter())
    assert not [element for element in every if "style" in element.attrib or ":" in element.tag]
    assert {int(element.get("data-c")) for element in every if element.get("data-c")} == set(numbers.values())
    points = [element for element in every if element.get("data-c")]
    assert all(re.fullmatch(r"k\d+", point.get("class")) for point in points)
    ids = [element.get("id") for element in every if element.get("id")]
    assert len(ids) == len(set(ids))
    assert {name.removeprefix("f0-").isdigit() for name in ids} == {True}
    used = set(re.findall(r'(?:href="#|url\(#)([^)"]+)', text))
    assert used == set(ids)
    assert "#0072b2" not in text and "var(--c0)" in text
    assert [entry.name for entry in figures.legend(drawing, rows, style.styles(rows))] == ["torch", "cuda", "copy (yardstick)"]


def test_hostile_names_are_text_in_the_figure():
    rows, _ = read_csv(RESULTS / "odd.csv")
    changed = [replace(row, device="<script>x</script>&\"'\ufffe\uffff") for row in rows]
    drawing = next(plots.drawings([(Path("odd.csv"), changed)]))
    text = figures.picture(drawing.figure, "f0-", {})
    assert "<script" not in text
    assert "&lt;script&gt;x&lt;/script&gt;&amp;\"'??" in text


def test_a_page_decides_the_colours_of_text():
    with style.look():
        figure, ((panel,),) = style.subplots(1, 1, (2, 2))
        panel.plot([1, 2], [1, 2], marker="o", markerfacecolor=style.PAPER, color=style.GREY, gid="series-0-p0-line-0")
        panel.text(1, 1, "a <b> & c")
    svg = figures.as_svg(figure)
    assert svg.startswith("<svg ")
    absent = (style.INK, style.PAPER, "#000000", "<style", "<!DOCTYPE", "dc:date")
    assert [text for text in absent if text in svg] == []
    assert "currentColor" in svg
    assert "var(--paper)" in svg
    assert "a &lt;b&gt; &amp; c" in svg
    assert svg == figures.as_svg(figure)
