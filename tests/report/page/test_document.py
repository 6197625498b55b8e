"""The page of results in a browser: what it shows, that it asks for nothing, and that clicks and keys work."""

import csv
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
    """A CSV of 1500 cells without JSON: the shapes of a committed file, and others."""
    rows, _ = read_csv(RESULTS / "frontier.csv")
    others = [replace(row, N=row.N + 1, run=rows[0].run) for row in rows if (row.N + 1) not in {other.N for other in rows}]
    file = folder / "many.csv"
    file.write_text(to_csv([*rows, *others][:MANY]))
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
