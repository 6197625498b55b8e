"""Random shapes by seed and number: what they are, and the configurations of their parts."""

import sys

import pytest
import random_shapes as tool

from softbench.plan.config_file import load


def test_shapes_have_16_to_400_mb_of_every_kind():
    shapes = [tool.shape(1, number) for number in range(2000)]
    assert shapes[:50] == [tool.shape(1, number) for number in range(50)] != [tool.shape(2, number) for number in range(50)]
    sizes = [one.M * one.N * tool.SIZES[one.dtype] for one in shapes]
    assert 16e6 <= min(sizes) < 17e6
    assert 390e6 < max(sizes) <= 400e6
    long = [one for one in shapes if one.N > 10_000]
    kinds = (
        [one.N <= 200 for one in shapes],
        [one.M <= 128 for one in shapes],
        [not one.N % 64 for one in long],
        [one.N % 2 for one in long],
    )
    assert min(map(sum, kinds)) > 100


def test_parts_have_each_shape_once(tmp_path, monkeypatch, capsys):
    found = []
    for index in range(1, 11):
        file = tmp_path / f"{index}.toml"
        monkeypatch.setattr(sys, "argv", ["random_shapes", f"{index}/10", "-o", str(file)])
        tool.main()
        found += load(str(file))["sweep"]
    expected = [tool.shape(1, number) for number in range(2000)]
    assert [(one.M, one.N, one.dtype) for one in found] == [((one.M,), (one.N,), (one.dtype,)) for one in expected]
    monkeypatch.setattr(sys, "argv", ["random_shapes", "11/10", "-o", str(tmp_path / "none.toml")])
    with pytest.raises(SystemExit):
        tool.main()
    assert "'11/10' is no part of 2000 shapes: write I/N, as in 3/10" in capsys.readouterr().err
