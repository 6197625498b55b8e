"""Ticks, scales, and places of labels."""

from itertools import pairwise

import pytest
from matplotlib.figure import Figure

from softbench.report import axes, style


def test_ticks_have_room_and_prefer_powers_of_two():
    assert axes.ticks([1000, 1024, 1025, 4096, 50257], wide=True) == [1024, 4096, 50257]
    assert axes.ticks([5, 12, 31, 33, 63], wide=False) == [5, 12, 33, 63]
    assert axes.ticks([1000, 4000, 32000, 50257, 128256, 151936, 262144], wide=True) == [1000, 4000, 50257, 128256, 262144]
    octaves = [2**i for i in range(10, 19)]
    assert axes.ticks(octaves, wide=True) == octaves


def test_labels_are_spread_around_their_lines():
    assert axes.spread([0.2, 0.5, 0.9], 0.1) == pytest.approx([0.2, 0.5, 0.9])
    assert axes.spread([0.5, 0.5, 0.5], 0.1) == pytest.approx([0.4, 0.5, 0.6])
    assert axes.spread([0.98, 0.99, 1.0], 0.1) == pytest.approx([0.8, 0.9, 1.0])
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


def test_distances_are_parts_of_the_axis():
    panel = Figure().subplots()
    panel.set_ylim(0, 200)
    assert axes.apart(panel, 20, 40) == pytest.approx(0.1)
    panel.set_yscale("log")
    panel.set_ylim(1, 10000)
    assert axes.apart(panel, 10, 100) == pytest.approx(0.25)


def test_numbers_of_logarithmic_axes_are_no_formulas():
    """Formulas are off, so `$\\mathdefault{10^{3}}$` was shown as it is."""
    _, ((panel,),) = style.subplots(1, 1, (3, 2))
    for values, expected in (([1, 2, 3, 1000], {"1", "10", "100", "1000"}), ([1.0, 1.1, 40.0], {"1", "10"})):
        axes.amounts(panel, values)
        assert panel.get_yscale() == "log"
        texts = {label.get_text() for label in (*panel.get_yticklabels(), *panel.get_yticklabels(minor=True))}
        assert expected <= texts
        assert not [text for text in texts if "$" in text]
