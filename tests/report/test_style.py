"""Colours and markers: distinct, and the same in all figures of a run. Ticks, scales, and places of labels."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from softbench.report import axes, style

ROOT = Path(__file__).parents[2]


@pytest.fixture
def row(make_row):
    return lambda backend, gbps, N=256: replace(make_row(backend, N=N), gbps=gbps, grade="pass", relative_to="torch")


def test_few_backends_all_look_different(row):
    found = style.styles([row(f"b{i}", 10 + i) for i in range(14)])
    assert all(one.named for one in found.values())
    assert len({(one.colour, one.marker, one.dash) for one in found.values()}) == 14


def test_of_many_backends_the_best_and_the_peers_are_named(row):
    found = style.styles([row(name, gbps) for name, gbps in [*((f"b{i:02}", 100 + i) for i in range(44)), ("torch", 1)]])
    named = {name: one.colour for name, one in found.items() if one.named}
    assert set(named) == {"torch", *(f"b{i}" for i in range(35, 44))}
    assert len(set(named.values())) == 10
    assert {one.colour for one in found.values() if not one.named} == {style.GREY}


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
        figure = style.canvas()
        style.panel(figure, 0, 0, 2, 2)
    file = style.saved(figure, tmp_path / "x.png", "-o")
    assert Image.open(file).convert("RGBA").getpixel((1, 1)) == (255, 255, 255, 255)
    assert min(Image.open(file).size) > 300  # the page grew
    assert dict(matplotlib.rcParams) == before


def test_ticks_have_room_and_prefer_powers_of_two():
    assert axes.ticks([1000, 1024, 1025, 4096, 50257], wide=True) == [1024, 4096, 50257]
    assert axes.ticks([5, 12, 31, 33, 63], wide=False) == [5, 12, 33, 63]
    assert axes.ticks([1000, 4000, 32000, 50257, 128256, 151936, 262144], wide=True) == [1000, 4000, 50257, 128256, 262144]
    octaves = [2**i for i in range(10, 19)]
    assert axes.ticks(octaves, wide=True) == octaves


def test_an_axis_from_zero_is_left_if_it_would_hide_half_of_the_values():
    assert [axes.crowded(values) for values in ([1, 9, 40], [1, 1, 40], [])] == [False, True, False]


def test_labels_are_spread_around_their_lines():
    assert axes.spread([0.2, 0.5, 0.9], 0.1) == pytest.approx([0.2, 0.5, 0.9])
    assert axes.spread([0.2, 0.6], 0.3) == pytest.approx([0.2, 0.6])
    assert axes.spread([0.5, 0.5, 0.5], 0.1) == pytest.approx([0.4, 0.5, 0.6])
    assert axes.spread([0.98, 0.99, 1.0], 0.1) == pytest.approx([0.8, 0.9, 1.0])
    assert axes.spread([0.0, 0.01], 0.1) == pytest.approx([0.0, 0.1])
    crowd = axes.spread([0.01 * i for i in range(20)], 0.05)
    assert min(b - a for a, b in pairwise(crowd)) == pytest.approx(0.05)


def test_the_axis_of_a_ratio_has_one_inside():
    for values, inside in (([1.2, 3.0], [1, 2]), ([0.97, 1.02], [1]), ([0.01, 0.5], [0.01, 0.1, 1]), ([1.001], [1])):
        panel = Figure().subplots()
        panel.set_yscale("log")
        axes.ratios(panel.yaxis, panel.set_ylim, values)
        low, high = panel.get_ylim()
        assert low < min(*values, 1) < 1.0001 < high
        ticks = [tick for tick in panel.get_yticks() if low <= tick <= high]
        assert set(inside) <= set(ticks)
        assert len(ticks) > 1


def test_numbers_of_logarithmic_axes_are_no_formulas():
    panel = style.panel(style.canvas(), 0, 0, 3, 2)
    for values, expected in (([1, 2, 3, 1000], {"1", "10", "100", "1000"}), ([1.0, 1.1, 40.0], {"1", "10"})):
        axes.amounts(panel, values)
        assert panel.get_yscale() == "log"
        texts = {label.get_text() for label in (*panel.get_yticklabels(), *panel.get_yticklabels(minor=True))}
        assert expected <= texts
        assert not [text for text in texts if "$" in text]
