"""Rows of several cards: what is shown apart, and what commands make of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from documents import packed

from softbench.core.errors import ResultsError
from softbench.report import plots
from softbench.results.compare import pairs
from softbench.results.csv import read_csv, to_csv
from softbench.results.document import load
from softbench.results.select import apart, file_of

ROOT = Path(__file__).parents[2]
A, B = "node1/0/0000000a", "node1/1/0000000b"


@pytest.fixture
def rows():
    return read_csv(ROOT / "results" / "h200" / "odd.csv")[0]


@pytest.fixture
def both(rows):
    """Every cell on two cards; the second has half of the bandwidth."""
    slow = [replace(row, unit=B, gbps=row.gbps and row.gbps / 2) for row in rows]
    return [*(replace(row, unit=A) for row in rows), *slow]


def write(folder, rows, name="both.csv"):
    (folder / name).write_text(to_csv(rows))
    return name


def test_a_sharded_sweep_is_one_part(rows):
    dealt = [replace(row, unit=A if row.N % 2 else B) for row in rows]
    assert apart(dealt) == [dealt]


def test_two_models_and_two_cards_of_one_cell_are_parts(rows, both):
    other = [replace(row, device="B200", unit="node2/0/0000000c") for row in rows]
    assert [(some[0].device, len(some)) for some in apart([*both, *other])] == [
        (f"{rows[0].device} {A}", len(rows)),
        (f"{rows[0].device} {B}", len(rows)),
        ("B200", len(rows)),
    ]
    assert file_of(Path("x/out.png"), apart(both)[0]) == Path("x/out-NVIDIA-H200-node1-0-0000000a.png")


def test_the_unit_is_a_column_and_part_of_the_cell(tmp_path, both):
    assert [row.unit for row in read_csv(tmp_path / write(tmp_path, both))[0]] == [row.unit for row in both]
    with pytest.raises(ResultsError, match="has this case twice"):
        read_csv(tmp_path / write(tmp_path, [both[0], both[0]]))
    with pytest.raises(ResultsError, match="line 2: unit: '<b>' is no unit"):
        read_csv(tmp_path / write(tmp_path, [replace(both[0], unit="<b>")]))


def test_show_has_a_table_for_each_card(main, tmp_path, both):
    name = write(tmp_path, both)
    code, out, _ = main("show", name)
    assert code == 0
    assert list(dict.fromkeys(line.split(" H200 ")[1].split(",")[0] for line in out.splitlines() if " H200 " in line)) == [A, B]
    assert main("show", "--markdown", name)[1].count(f"{B}, ") == out.count(f"{B}, ") == 1
    code, out, _ = main("show", "--long", name)
    assert out.splitlines()[0].startswith(f"{name}: ")
    assert out.splitlines()[1].endswith("unit")
    assert main("show", "--costs", name)[1].count("NVIDIA H200 node1/") == 2
    many = [replace(row, unit=f"node1/{i}/{i:08x}") for i in range(64) for row in both if row.unit == A]
    out = main("show", write(tmp_path, many))[1]
    assert (out.count("fastest   "), "60 cards more" in out) == (4, True)


@pytest.mark.slow
def test_plot_overlays_cards_and_draws_heat_maps_apart(main, tmp_path, both):
    name = write(tmp_path, both)
    assert main("plot", name, "-o", "o.svg")[1].split() == ["o.svg"]  # as of one card, with the lines of both
    drawing = next(plots.drawings([(Path(name), some) for some in apart(both)]))
    (key,) = drawing.figure.legends
    assert {text.get_text().rpartition(" ")[2] for text in key.get_texts() if "cuda" in text.get_text()} == {A, B}
    files = main("plot", name, "--kind", "costs", "-o", "c.png")[1].split()
    assert files == ["c-NVIDIA-H200-node1-0-0000000a.png", "c-NVIDIA-H200-node1-1-0000000b.png"]


@pytest.mark.slow
def test_report_has_a_page_for_each_card(main, tmp_path, both, rows):
    document = load(ROOT / "results" / "h200" / "odd.json.gz")
    units = [{"unit": A, "driver": "A"}, {"unit": B, "driver": "B"}]
    cells = [{**cell, "unit": unit} for unit in (A, B) for cell in document["cells"]]
    del document["environment"]["driver"]
    (tmp_path / "both.json.gz").write_bytes(packed({**document, "units": units, "cells": cells}))
    name = write(tmp_path, both)
    pages = main("report", name)[1].split()
    assert pages == ["both-NVIDIA-H200-node1-0-0000000a.html", "both-NVIDIA-H200-node1-1-0000000b.html"]
    assert all("is not beside" not in (tmp_path / page).read_text() for page in pages)
    assert not (tmp_path / "both.html").exists()
    code, _, err = main("report", name, write(tmp_path, rows, "one.csv"))
    assert code == 2 and "several cards" in err


def test_compare_judges_each_card_on_its_own(both, rows):
    found = pairs(both, both)
    assert {pair.unit for pair in found} == {A, B}
    assert all(pair.ratio == 1 for pair in found if pair.ratio)
    alone = [replace(row, unit=A) for row in rows]
    ratios = {pair.unit: pair.ratio for pair in pairs(alone, both) if pair.backend == "torch"}
    assert ratios == {A: 1.0, B: 0.5}  # the only card of A with each card of B
    assert {pair.unit for pair in pairs(rows, alone)} == {""}  # each cell once, as in older files


def test_compare_prints_the_unit(main, tmp_path, both):
    name = write(tmp_path, both)
    code, out, _ = main("compare", name, name, "--json", "-")
    assert code == 0
    assert {cell["unit"] for cell in json.loads(out)["cells"]} == {A, B}
    assert f"forward-bf16-1000000x5 {A} " in main("compare", "--all", name, name)[1]
