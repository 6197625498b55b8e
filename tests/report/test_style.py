"""Colours and markers: distinct, and the same in all figures of a run."""

from dataclasses import replace
from pathlib import Path

import pytest

from softbench.report import style
from softbench.results import rows as results
from softbench.results.csv import read_csv

ROOT = Path(__file__).parents[2]


@pytest.fixture
def row(make_record):
    base = results.row(make_record("x", [10.0] * 3), None, None, device="H200", run="r")
    return lambda backend, gbps, N=256: replace(base, backend=backend, gbps=gbps, N=N, relative_to="torch")


def test_few_backends_all_look_different(row):
    found = style.styles([row(f"b{i}", 10 + i) for i in range(9)])
    assert len({(one.colour, one.marker) for one in found.values()}) == 9
    assert len({(one.colour, one.dash) for one in found.values()}) == 9
    assert all(one.named for one in found.values())


def test_of_many_backends_the_best_and_the_peers_are_named(row):
    found = style.styles([row(name, gbps) for name, gbps in [*((f"b{i:02}", 100 + i) for i in range(44)), ("torch", 1)]])
    named = {name: one.colour for name, one in found.items() if one.named}
    assert set(named) == {"torch", *(f"b{i}" for i in range(38, 44))}
    assert len(set(named.values())) == 7
    assert {one.colour for one in found.values() if not one.named} == {style.GREY}


def test_the_committed_strategies_have_seven_colours():
    rows, _ = read_csv(ROOT / "results" / "h200" / "strategies.csv")
    found = style.styles(rows)
    assert len(found) == 43
    assert {"torch", "compile", "cuda", "triton"} <= {name for name, one in found.items() if one.named}


def test_a_backend_without_every_case_ranks_lower(row):
    rows = [row("whole", 90, N) for N in (256, 512)] + [row("half", 100, 256), row("half", None, 512), row("slow", 10, 512)]
    assert style.ranked(rows) == ["whole", "half", "slow"]


def test_runs_are_named_by_device_file_or_path(row):
    def named(*runs):
        return list(style.sources([(Path(path), [replace(row("x", 1), device=device)]) for path, device in runs]).values())

    assert named(("a.csv", "A")) == [""]
    assert named(("a.csv", "A"), ("b.csv", "B")) == [", A", ", B"]
    assert named(("x/a.csv", "A"), ("x/b.csv", "A")) == [", a", ", b"]
    assert named(("x/a.csv", "A"), ("y/a.csv", "A")) == [", x/a.csv", ", y/a.csv"]


def test_cards_of_one_model_are_named_without_the_model(row):
    def shown(*devices):
        rows = [replace(row("x", 1), device=device, unit=device.partition(" ")[2]) for device in devices]
        return list(style.sources([(Path("a.csv"), [one]) for one in rows]).values()), style.devices(rows)

    assert shown("A n/0/1", "A n/1/2") == ([", n/0/1", ", n/1/2"], "A")
    assert shown("A n/0/1", "B n/1/2") == ([", A n/0/1", ", B n/1/2"], "A n/0/1 and B n/1/2")
    assert shown("A", "A n/1/2") == ([", A", ", A n/1/2"], "A")
    assert style.devices([replace(row("x", 1), device="A n/0/1", unit="n/0/1")]) == "A n/0/1"


def test_a_file_has_a_white_page_and_the_settings_stay(tmp_path):
    import matplotlib
    from PIL import Image

    before = dict(matplotlib.rcParams)
    with style.look():
        figure, _ = style.subplots(1, 1, (2, 2))
    file = style.saved(figure, tmp_path / "x.png", "-o")
    assert Image.open(file).convert("RGBA").getpixel((1, 1)) == (255, 255, 255, 255)
    assert dict(matplotlib.rcParams) == before


def test_a_backend_has_one_number_with_the_yardstick_last(row):
    copy = replace(row("copy", 9), grade="yardstick")
    assert style.numbers([copy, row("b", None), row("a", 1), copy, row("b", 2)]) == {"b": 0, "a": 1, "copy": 2}
