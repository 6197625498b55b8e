"""Random shapes by seed and number: what they are, and the configurations of their parts."""

import importlib.util
import sys
from pathlib import Path

import pytest

from softbench.plan.config_file import load

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(scope="module")
def tool():
    sys.path.insert(0, str(TOOLS))
    spec = importlib.util.spec_from_file_location("random_shapes", TOOLS / "random_shapes.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["random_shapes"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(TOOLS))


def test_shapes_have_16_to_400_mb_of_every_kind(tool):
    shapes = [tool.shape(1, number) for number in range(2000)]
    assert shapes[:50] == [tool.shape(1, number) for number in range(50)] != [tool.shape(2, number) for number in range(50)]
    sizes = [one.M * one.N * tool.SIZES[one.dtype] for one in shapes]
    assert 16e6 <= min(sizes) < 17e6
    assert 390e6 < max(sizes) <= 400e6
    for kind in (
        lambda one: one.N <= 200,
        lambda one: one.M <= 128,
        lambda one: one.N % 64 == 0 and one.N > 10_000,
        lambda one: one.N % 2 and one.N > 10_000,
    ):
        assert sum(map(kind, shapes)) > 100


def test_parts_have_each_shape_once(tool, tmp_path, monkeypatch, capsys):
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
