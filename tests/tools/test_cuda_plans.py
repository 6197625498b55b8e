"""The plans that tools/cuda_plans.py times: each covers its row, and each tier is among them."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from softbench.kernels.cuda.launch_plan import TIERS


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("cuda_plans", Path(__file__).parents[2] / "tools" / "cuda_plans.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["cuda_plans"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("M", "vectors", "reads"), [(2, 640, 2), (2, 18992, 2), (48, 18992, 2), (48, 37984, 2), (8, 16032, 1), (1, 131072, 1)]
)
def test_every_plan_covers_its_row(tool, M, vectors, reads):
    found = list(tool.softmax_plans(M, vectors, reads, 132, 200))
    assert 20 < len(found) < 200
    for plan in found:
        tiles = plan.vectors + (plan.tier_option if TIERS[plan.tier] == "split" else 0)
        shared = tool.SM_SHARED // (16 * reads) if TIERS[plan.tier].endswith("bulk") else 0
        assert plan.per_row * (tiles * plan.threads + shared) >= vectors, tool.words(plan)
        assert plan.threads <= (1024 if TIERS[plan.tier] == "block" else 512), tool.words(plan)
        assert plan.vectors >= 1, tool.words(plan)
        assert not TIERS[plan.tier].startswith("split") or M * plan.per_row <= 8 * 132, tool.words(plan)


def test_rows_have_the_tiers_that_take_them(tool):
    def tiers(*sizes):
        return {TIERS[plan.tier] for plan in tool.softmax_plans(*sizes, 132, 200)}

    assert tiers(2, 640, 2) >= {"block", "cluster"}
    assert tiers(48, 37984, 2) >= {"cluster_bulk", "split_bulk"}
    assert "block" not in tiers(48, 37984, 2)


def test_every_kernel_of_split_bulk_is_timed(tool):
    source = (Path(__file__).parents[2] / "kernels" / "cuda" / "variants.cuh").read_text()
    (body,) = re.findall(r"bool select_bulk\(.*?\n}", source, re.DOTALL)
    kernels = {(int(words), int(threads)) for words, threads in re.findall(r"int, (\d+)>\(\), integral_constant<int, (\d+)>", body)}
    timed = {
        (plan.vectors * reads, plan.threads)
        for M, vectors, reads in ((12, 50_000, 2), (12, 100_000, 1), (64, 50_000, 2), (4, 50_000, 1))
        for plan in tool.softmax_plans(M, vectors, reads, 132, 200)
        if TIERS[plan.tier] == "split_bulk"
    }
    assert timed == kernels == {(8, 256), (8, 512), (24, 256), (24, 128)}


def test_only_launches_of_many_bytes_are_staggered(tool, monkeypatch):
    monkeypatch.setattr(tool.torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(tool, "device_traits", lambda _: ("H200", 132, True, 2000.0, True))
    assert tool.stagger_cycles(600_000, 2) == 0
    assert tool.stagger_cycles(600_000, 48) == 300
    assert tool.stagger_cycles(60_000_000, 1) == 0


def test_a_table_has_what_runs_and_the_fastest_plans(tool, monkeypatch, capsys):
    """The fastest plans are measured again beside the others; a refused plan and a failing library are left out."""
    us = {1: 9.0, 2: 4.0, 3: float("inf")}

    def call(plan=None):
        if plan is not None and plan.tier == -1:
            plan.tier = TIERS.index("block")

    def fails():
        raise OSError("libcute is missing\nsecond line")

    monkeypatch.setattr(tool, "timed", lambda call: us[call.keywords["plan"].vectors] if hasattr(call, "keywords") else 6.0)
    plans = iter(tool.Plan(tool.BLOCK, vectors, 128, 1) for vectors in us)
    tool.compare("a pass", tool.torch.empty(4, 8), tool.Pass(call, plans, 3, lambda: None, (("quack", fails), ("triton", lambda: None))))
    told = capsys.readouterr().out.splitlines()
    assert "quack: OSError: libcute is missing" in told
    assert "a pass, 3 plans tried" in told
    lines = [line.split(" TB/s ")[1] for line in told if "TB/s" in line]
    assert lines[0] == "1.000 yardstick"
    assert lines[1] == "1.000 triton"
    assert lines[2].endswith("<- heuristics")
    assert [line.split()[:3] for line in lines[3:]] == [["1.500", "block", "2"], ["0.667", "block", "1"]]
