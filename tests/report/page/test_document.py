"""The page of results in a browser: what it shows, that it asks for nothing, and that clicks and keys work."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from softbench.core.text import figure
from softbench.report.page import document
from softbench.report.page.read import source
from softbench.results.csv import read_csv, to_csv

RESULTS = Path(__file__).parents[3] / "results" / "h200"
MANY = 1500
MAX_BYTES_OF_1000 = 5e6
PARTS = ("overview", "curves", "heat", "cells", "wrong", "environment")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def many(folder):
    """A CSV of 1500 cells without JSON: one case of a committed file at many N."""
    rows, _ = read_csv(RESULTS / "frontier.csv")
    first = [row for row in rows if row.case == rows[0].case]
    lines = [replace(row, N=N) for N in range(64, 64 * MANY, 64) for row in first]
    file = folder / "many.csv"
    file.write_text(to_csv(lines[:MANY]))
    return file


@pytest.fixture(scope="module")
def page(folder, many):
    """Makes the page of a results file once."""
    made = {}

    def of(name):
        if name not in made:
            file = many if name == "many" else RESULTS / f"{name}.csv"
            made[name] = document.write([source(file, read_csv(file)[0])], folder / f"{name}.html")
        return made[name]

    return of


def csv_of(name, many):
    with (many if name == "many" else RESULTS / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", ["odd", "frontier", "strategies", "many"])
def test_page_has_the_numbers_of_the_csv_and_no_request(browser, page, many, name):
    file, rows = page(name), csv_of(name, many)
    assert file.stat().st_size <= MAX_BYTES_OF_1000 * max(1, len(rows) / 1000)
    browser.open(file)
    for part in PARTS:
        browser.click(f"#tab-{part}")
        (shown,) = [section for section in browser.all("main > section") if section.is_displayed()]
        assert shown.get_attribute("id") == f"part-{part}"
        assert shown.text.strip()
    assert not re.search(r"\b(nan|undefined|null)\b", browser.run("return document.body.innerText"))
    data = browser.run("return page.data")
    texts = browser.run("return page.all('#cell-table tbody tr').map((row) => [...row.cells].map((cell) => cell.textContent))")
    assert len(texts) == len(rows) == len(data["cells"])
    for values, line, row in zip(data["cells"], texts, rows, strict=True):
        found = dict(zip(data["columns"], values, strict=True))
        assert all(same(found[name], text) for name, text in row.items())
        assert line[0] == row["backend"]
        assert line[8] == (figure(float(row["gbps"])) if row["gbps"] else "")
    assert browser.console() == []
    assert browser.requests() == [file.as_uri()]


def same(value, text):
    """True if a value of the page's data is what the CSV has."""
    if value is None or value == "":
        return text == ""
    return float(value) == float(text) if isinstance(value, int | float) or value == "inf" else value == text.lstrip("'")


def shown_rows(browser):
    """The texts of the rows that no filter hides."""
    rows = "page.all('#cell-table tbody tr').filter((row) => !row.hidden)"
    return browser.run(f"return {rows}.map((row) => [...row.cells].map((cell) => cell.textContent))")


def test_filters_and_sorting_follow_clicks_and_keys(browser, page, many):
    browser.open(page("frontier"), "cells")
    rows = csv_of("frontier", many)
    browser.run("page.find('select[data-column=backend]').focus()")
    browser.keys("qua")
    assert {line[0] for line in shown_rows(browser)} == {"quack"}
    assert browser.find("#shown").text == f"{sum(row['backend'] == 'quack' for row in rows)} of {len(rows)} cells"
    browser.click("#search")
    browser.keys("backward 8192")
    assert {(line[1], line[3]) for line in shown_rows(browser)} == {("backward", "4096x8192")}
    browser.click("#filters button[type=reset]")
    browser.click("#doubtful")
    marked = [row for row in rows if {"noisy", "launch-bound"} & set(row["labels"].split())]
    assert len(shown_rows(browser)) == len(marked)
    browser.click("#doubtful")
    browser.click("th[data-sort=gbps] button")
    ordered = [line[8] for line in shown_rows(browser)]
    lacking = sum(not row["gbps"] for row in rows)
    assert [float(text) for text in ordered[: len(rows) - lacking]] == sorted(
        float(figure(float(row["gbps"]))) for row in rows if row["gbps"]
    )
    assert ordered[len(rows) - lacking :] == [""] * lacking
    browser.click("th[data-sort=gbps] button")
    assert browser.find("th[data-sort=gbps]").get_attribute("aria-sort") == "descending"
    assert float(shown_rows(browser)[0][8]) == max(float(text) for text in ordered if text)
    assert browser.console() == []


def test_row_opens_to_samples_and_every_column(browser, page, many):
    browser.open(page("frontier"), "cells")
    browser.click("#cell-table tr[data-c='5'] button.open")
    row = csv_of("frontier", many)[5]
    pairs = browser.run("return page.all('.detail dl div').map((pair) => [...pair.children].map((part) => part.textContent))")
    found = {name: text for name, text in pairs if name not in ("file", "op")}  # older files have no column op
    assert found.keys() == {name for name, text in row.items() if text}
    assert all(text == row[name] or float(text) == float(row[name]) for name, text in found.items())
    command = browser.find(".detail .command").text
    assert command == "softbench run --backends copy,torch,triton-row --M 4096 --N 1024 --dtype bf16 --direction forward"
    dots = len(browser.all(".detail .strip circle"))
    assert 100 < dots <= int(row["n"])
    browser.click(".detail summary")
    record = json.loads((RESULTS / "frontier.json").read_text())["cells"][5]["outcome"]["timing"]["batches"][0]
    texts = [cell.text for cell in browser.all(".detail details tbody tr:first-child td")]
    assert texts[:4] == ["0", "0", str(record["position"]), str(len(record["samples_us"]))]
    assert f"{record['telemetry']['sm_clock_mhz']} MHz" in texts
    values, left = texts[-1].split(" (")
    assert left == f"{len(values.split())} of {len(record['samples_us'])} are shown)"
    assert {float(value) for value in values.split()} <= {float(f"{us:.4g}") for us in record["samples_us"]}
    browser.click("#cell-table tr[data-c='5'] button.open")
    assert browser.all(".detail") == []


def test_page_without_samples_says_so(browser, page):
    browser.open(page("many"), "cells")
    assert "many.json is not beside many.csv" in browser.find(".note").text
    browser.click("#cell-table tr[data-c='1'] button.open")
    assert "many.json is not beside many.csv" in browser.find(".detail").text


def test_points_speak_to_mouse_and_keyboard_alike(browser, page, many):
    browser.open(page("frontier"), "curves")
    point = next(point for point in browser.all("figure.chart:not([hidden]) svg [data-c]") if "cuda" in point.get_attribute("aria-label"))
    row = csv_of("frontier", many)[int(point.get_attribute("data-c"))]
    browser.hover(point)
    text = browser.find("#tip").text
    assert text == point.get_attribute("aria-label")
    assert text.startswith(f"cuda, forward bf16 {row['M']}x{row['N']}")
    assert all(part in text for part in ("95 % interval", "of copy", "of its bound", "softbench run --backends copy,torch,cuda"))
    browser.run("page.find('figure.chart:not([hidden]) svg [data-c][tabindex=\"0\"]').focus()")
    first = browser.driver.switch_to.active_element.get_attribute("data-c")
    browser.keys("\ue014")  # the right arrow
    second = browser.driver.switch_to.active_element
    assert second.get_attribute("data-c") != first
    assert browser.find("#tip").text == second.get_attribute("aria-label")
    browser.keys("\ue007")  # Enter
    assert browser.find("tr.detail .command").text == second.get_attribute("aria-label").splitlines()[-1]
    assert browser.console() == []


def test_legend_hides_a_line_in_every_figure(browser, page):
    browser.open(page("frontier"), "curves")
    shown = "return page.all('figure.chart:not([hidden]) svg [data-c]').filter((point) => point.getClientRects().length).length"
    before = browser.run(shown)
    browser.click(".legend button[data-name=cuda]")
    assert browser.find(".legend button[data-name=cuda]").get_attribute("aria-pressed") == "false"
    hidden = before - browser.run(shown)
    assert hidden > 10
    browser.run("page.find('[name=slice]').focus()")
    browser.keys("\ue015")  # the next shapes
    assert browser.find(".legend button[data-name=cuda]").get_attribute("aria-pressed") == "false"
    browser.click(".legend button[data-name=cuda]")
    browser.run("page.find('[name=slice]').focus()")
    browser.keys("\ue013")
    assert browser.run(shown) == before


def test_heat_map_shows_the_speed_up_over_a_chosen_backend(browser, page, many):
    browser.open(page("odd"), "heat")
    rows = csv_of("odd", many)
    place = next(place for place in browser.all(".heat td[data-c]"))
    row = rows[int(place.get_attribute("data-c"))]
    assert place.text.startswith("cuda +")
    browser.run("page.find('#heat-show').focus()")
    browser.keys("speed-up of the fastest over torch")
    assert place.text == f"{float(row['speedup']):.2f}x cuda"
    browser.click(".heat td[data-c]")
    assert browser.find(".detail .command").is_displayed()
