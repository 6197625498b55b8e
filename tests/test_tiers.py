"""The fast Triton tiers: the rules that choose among them hold what they choose for, and what they launch is right (interpreted)."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from softbench.kernels.triton import plans, rules, tiers, tune, turns
from softbench.kernels.triton.plans import Plan, Shape

shapes = st.builds(
    Shape,
    backward=st.booleans(),
    M=st.one_of(st.integers(1, 200), st.sampled_from([4096, 65537, 1 << 20])),
    N=st.one_of(st.integers(1, 3000), st.integers(1, 1 << 23)),
    size=st.sampled_from([2, 4, 8]),
    alignment=st.sampled_from([1, 2, 4, 8, 16]),
    congruent=st.booleans(),
    sms=st.sampled_from([4, 20, 108, 132]),
    clusters=st.booleans(),
).map(
    lambda shape: replace(
        shape,
        alignment=max(shape.size if shape.size < 8 else 8, min(16, (shape.N * shape.size) & -(shape.N * shape.size), shape.alignment)),
    )
)


def holds(shape: Shape, plan: Plan) -> bool:
    if plan.tier in ("tile", "loop"):
        return True
    vectors = rules._vectors(shape, plan.V, plan.ALIGN)
    if plan.tier == "rows":
        return vectors <= plan.P * plan.T
    each = rules.chunk(shape, plan)
    whole = each * max(plan.C, plan.G) >= vectors
    return whole and (plan.tier == "group" or each <= plan.P * plan.T)


@given(shapes)
@settings(max_examples=400, deadline=None)
def test_every_shape_has_plans_and_each_holds_its_row(shape):
    found = list(rules.candidates(shape))
    assert found
    for plan in found:
        assert holds(shape, plan), plan
        assert plan.tier in ("tile", "loop") or (shape.congruent and shape.size < 8)
        assert plan.tier != "cluster" or shape.clusters
        assert plan.H * plan.T * rules.VECTOR <= rules.HELD
        assert plan.registers is None or plan.registers * plan.T <= rules.SM_REGISTERS
        if plan.tier in ("rows", "cluster", "group"):
            assert plan.V * shape.size == 4 * plan.W  # a vector is W words
            assert plan.ALIGN or (shape.N * shape.size) % (4 * plan.W) == 0  # no element of a row is left out
            assert plan.ALIGN or shape.alignment % (4 * plan.W) == 0


@given(shapes)
@settings(max_examples=400, deadline=None)
def test_what_the_table_says_of_a_neighbour_is_made_to_fit(shape):
    plan = rules.plan(shape, "NVIDIA H200")
    assert holds(shape, plan), plan
    assert plan.ALIGN or plan.tier in ("tile", "loop") or shape.alignment % (4 * plan.W) == 0
    assert shape.congruent or plan.tier in ("tile", "loop")


def test_a_row_just_above_a_power_of_two_does_not_pay_for_the_next():
    for N in (8193, 12289, 16385, 65537):
        shape = Shape(False, 4096, N, 2, 2, True, 132, True)
        plan = rules.by_rule(shape)
        held = plan.P * plan.T * max(plan.C, plan.G) * 8 + plan.H * plan.T * plan.G * 8
        assert held < 1.3 * N, plan


def test_what_is_read_stays_in_l2_where_it_is_much_and_the_card_is_hoppers():
    """Of less, a flush would leave it there; other cards have not been measured."""
    much = Shape(False, 4096, 4096, 2, 16, True, 132, True, hopper=True)
    assert much.stays
    assert replace(much, backward=True, N=2048).stays
    assert not replace(much, N=2048).stays
    assert not replace(much, hopper=False).stays
    rows, group = Plan("rows", P=8, T=64, V=8, warps=2), Plan("group", P=8, T=256, V=8, warps=8, G=2, H=4)
    for shape in (much, replace(much, M=8)):
        for plan in (rows, group):
            assert tiers.call_of(shape, plan, (torch.empty(2, 8),) * 2).numbers[-1] == shape.stays


def test_a_tune_of_a_cells_first_plans_tries_the_one_its_line_has_too(monkeypatch):
    """Or a line would be lost to the best of too few: a cluster's plan was, to groups of half its speed."""
    shape = Shape(False, 4096, 65536, 4, 16, True, 132, True)
    few = list(rules.candidates(shape))
    known = next(plan for plan in few[3:] if plan.tier == "cluster")
    monkeypatch.setattr(tune, "operands", lambda *_: (torch.randn(2, 8), torch.empty(2, 8)))
    monkeypatch.setattr(tune, "_try", lambda *_: None)
    monkeypatch.setattr(tune, "right", lambda *_: True)
    monkeypatch.setattr(tune.tiers, "shape_of", lambda _: shape)
    monkeypatch.setattr(tune.tiers, "prepared", lambda _shape, plan, _tensors: plan)
    monkeypatch.setattr(tune, "timed", lambda call: 0.5 if call == known else 1.0)
    line = (*rules.bucket(shape), plans.as_numbers(known))
    cell = (False, torch.float32, 4096, 65536)
    assert tune.measured_cell(*cell, 2)[3] == plans.as_numbers(few[0])
    assert tune.measured_cell(*cell, 2, {line[:3]: line})[3] == plans.as_numbers(known)
    assert tune.measured_cell(*cell)[3] == plans.as_numbers(known)


@pytest.mark.parametrize("only", ["some", ""])
def test_a_cell_whose_plans_all_fail_costs_a_tune_nothing(monkeypatch, tmp_path, capsys, only):
    shape = Shape(False, 4096, 65536, 4, 16, True, 132, True)
    monkeypatch.setattr(tune, "operands", lambda *_: (torch.randn(2, 8), torch.empty(2, 8)))
    monkeypatch.setattr(tune, "_try", lambda *_: "out of resources")
    monkeypatch.setattr(tune.tiers, "shape_of", lambda _: shape)
    monkeypatch.setattr(tune, "timed", lambda _: 1.0)
    monkeypatch.setattr(tune, "cells", lambda _: [(False, torch.float32, 4096, 65536)])
    file = tmp_path / "mine.json"
    line = [*rules.bucket(shape), {"tier": "rows", "P": 4}]
    file.write_text(json.dumps([line]))
    assert tune.measure(file, only, 2) == (0, 1)
    assert json.loads(file.read_text()) == [line]
    assert "forward float32 4096x65536: no plan ran and was right" in capsys.readouterr().err


@pytest.mark.parametrize("backward", [False, True])
def test_a_tune_compiles_on_few_rows_what_all_of_them_launch(backward):
    many = Shape(backward, 4096, 65536, 4, 16, True, 132, True, hopper=True)
    others = (
        replace(many, N=781, size=2),
        replace(many, hopper=False),
        *(replace(many, M=M) for M in (1, 2, 64, 4097)),
        replace(many, M=167773, N=100),
    )
    for shape in (many, *others):
        few = replace(shape, M=tune.rows_to_compile(shape))
        assert few.stays == shape.stays
        assert (few.M % 16 == 0, few.M == 1) == (shape.M % 16 == 0, shape.M == 1)  # what Triton compiles anew for
        assert 1 <= few.M <= shape.M
        assert few.M * few.N * few.size < 40 << 20


def test_a_tune_that_is_cut_short_keeps_what_it_measured_and_what_it_did_not(monkeypatch, tmp_path):
    file = tmp_path / "tables" / "mine.json"
    old = [["forward 4 16", 80, 12, {"tier": "rows", "P": 2}], ["forward 4 16", 88, 12, {"tier": "rows", "P": 3}]]
    new = ("forward 4 16", 88, 12, {"tier": "rows", "P": 4})

    def measured_cell(cell, _most, known):
        assert len(known) == 2
        if cell == "broken":
            raise KeyboardInterrupt
        return new

    monkeypatch.setattr(tune, "measured_cell", measured_cell)
    monkeypatch.setattr(tune, "cells", lambda only: [("cell",), ("broken",)] if only == "cut" else [("cell",)])
    file.parent.mkdir()
    file.write_text(json.dumps(old))
    with pytest.raises(KeyboardInterrupt):
        tune.measure(file, "cut")
    assert json.loads(file.read_text()) == [old[0], list(new)]
    assert tune.measure(file, "some") == (1, 2)
    assert tune.measure(file) == (1, 1)  # the whole grid: what it does not have goes
    assert json.loads(file.read_text()) == [list(new)]


def test_tables_are_read_where_a_device_has_one(monkeypatch, tmp_path):
    plans.measured.cache_clear()
    assert plans.measured("NVIDIA H200") and not plans.measured("a device of another name")
    table = tmp_path / "mine.json"
    table.write_text('[["forward 4 16", 80, 12, {"tier": "rows", "P": 2, "T": 128, "V": 4, "warps": 4}]]')
    monkeypatch.setenv("SOFTBENCH_TRITON_TABLE", str(table))
    plans.measured.cache_clear()
    assert rules.plan(Shape(False, 4096, 1024, 4, 16, True, 132, True), "any") == Plan("rows", P=2, T=128, V=4, warps=4)
    plans.measured.cache_clear()


RIGHT = """
import itertools, torch
from softbench.kernels.triton import rules, tiers
from softbench.kernels.triton.plans import Plan
torch.manual_seed(0)
UNIT = {torch.float32: 1e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}
tiers_seen = set()

def strided(M, N, pad, offset, dtype, fill=None):
    size = offset + M * (N + pad) + 64
    memory = (torch.randn(size) if fill is None else torch.full((size,), fill)).to(dtype)
    return memory, memory[offset : offset + M * (N + pad)].view(M, N + pad)[:, :N]

def close(got, expected, scale, unit):
    return bool(((got.double() - expected).abs() <= unit * 1.01 * expected.abs() + 2e-6 * scale + 1e-7).all())

def both_ways(M, N, pad, offset, dtype, plans=None):
    _, x = strided(M, N, pad, offset, dtype)
    x[0, : N // 2] = -float("inf")
    memory, y = strided(M, N, pad, offset, dtype, float("nan"))
    expected = torch.softmax(x.double(), -1)
    shape = tiers.shape_of((x, y))
    for plan in plans or list(rules.candidates(shape))[:2]:
        memory.fill_(float("nan"))
        tiers.run(shape, plan, (x, y))
        tiers_seen.add(plan.tier)
        assert close(y, expected, expected, UNIT[dtype]), (plan, M, N, pad, offset, dtype)
        assert int(torch.isnan(memory).sum()) == memory.numel() - M * N, ("wrote beside its rows", plan)
    y.copy_(expected)
    _, dy = strided(M, N, pad, offset, dtype)
    memory, dx = strided(M, N, pad, offset, dtype, float("nan"))
    a, b = y.double(), dy.double()
    expected = a * (b - (a * b).sum(-1, keepdim=True))
    scale = a * (b.abs() + (a * b).abs().sum(-1, keepdim=True))
    shape = tiers.shape_of((dy, y, dx))
    for plan in plans or list(rules.candidates(shape))[:2]:
        memory.fill_(float("nan"))
        tiers.run(shape, plan, (dy, y, dx))
        assert close(dx, expected, scale, UNIT[dtype]), ("backward", plan, M, N, pad, offset, dtype)
        assert int(torch.isnan(memory).sum()) == memory.numel() - M * N, ("wrote beside its rows", plan)

for dtype in UNIT:
    short = (3, 1, 0, 0), (5, 7, 0, 0), (9, 17, 0, 0), (7, 100, 0, 0), (5, 197, 0, 1)
    for M, N, pad, offset in (*short, (3, 333, 3, 0), (2, 1000, 8, 0), (2, 5003, 0, 3)):
        both_ways(M, N, pad, offset, dtype)
    V = 16 // dtype.itemsize
    for N, ALIGN in ((4096, 0), (5003, 128)):  # groups: peers that never come, rows that are streamed
        both_ways(2, N, 0, 0, dtype, [Plan("group", P, 128, 4, V, ALIGN, 4, G=G) for P, G in ((6, 2), (4, 3), (1, 2))])
# operands that share no alignment, or no dtype, take the plain way
x = torch.randn(4, 300)
y = torch.empty(4 * 300 + 1)[1:].view(4, 300)
assert tiers._chosen((x, y))[1].tier == "tile"
wide = torch.empty(4, 300)
tiers.launch_forward(x.bfloat16(), wide)
assert torch.allclose(wide, torch.softmax(x.bfloat16().float(), -1), atol=1e-6)
assert {"rows", "group"} <= tiers_seen, tiers_seen
print("fine")
"""


@pytest.mark.timeout(280)
def test_interpreted_tiers_are_right_and_write_nothing_beside_their_rows():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RIGHT],
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    assert done.stdout.strip() == "fine", done.stderr[-2000:]


def test_rows_begin_in_turns_where_more_of_them_than_the_card_holds_would_wait_together():
    card = Shape(False, 64, 1 << 20, 4, 16, True, 132, True, bytes_a_cycle=2500.0)
    group = Plan("group", 8, 256, 4, 4, 0, 8, 64, G=56, H=11)
    cluster = Plan("cluster", 8, 256, 4, 4, 0, 8, 64, C=16)
    row = (1 << 20) * 4
    assert turns.turns(card, group) == (4 * 132 // 56, int(row / 2500 * 4 / 3))
    assert turns.turns(card, cluster) == (4 * 18 // 16 * 7, int(row / 2500))
    assert turns.turns(replace(card, M=9), group) == (0, 0)  # all at once: clusters still win by turns, groups do not
    assert turns.turns(replace(card, M=9), cluster) == turns.turns(card, cluster)
    for alone in (replace(card, M=1), replace(card, N=1024), replace(card, bytes_a_cycle=0.0)):
        assert turns.turns(alone, group) == turns.turns(alone, cluster) == (0, 0)


@pytest.mark.parametrize("wrong", [{"T": 128}, {"T": 512}, {"BM": 2}])
def test_a_plan_whose_threads_do_not_hold_a_vector_each_is_refused(wrong):
    shape = Shape(False, 8, 4096, 4, 16, True, 132, True)
    plan = Plan("rows", 4, 256, 4, 4, 0, 8)
    assert tiers.CALLS["rows"](shape, plan, (4096, 4096)).programs == 8
    with pytest.raises(ValueError, match="is no plan: beyond a warp T is 32"):
        tiers.call_of(shape, replace(plan, **wrong), (torch.empty(8, 4096),) * 2)


@given(shapes, st.floats(0, 1e5))
@settings(max_examples=200, deadline=None)
def test_turns_are_numbers_that_a_launch_takes(shape, rate):
    for plan in rules.candidates(replace(shape, bytes_a_cycle=rate)):
        if plan.tier in ("cluster", "group"):
            rows, cycles = turns.turns(replace(shape, bytes_a_cycle=rate), plan)
            assert 0 <= rows < 1 << 31 and 0 <= cycles < 1 << 31 and (rows > 0 or cycles == 0)
