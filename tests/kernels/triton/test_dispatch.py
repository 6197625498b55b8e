"""Launches of plans: every tier is right under the interpreter, invalid plans are refused, and a kernel has one key in Triton's cache."""

import importlib
import importlib.util
import pkgutil
from dataclasses import replace

import pytest
import torch
from interpreted import PUBLIC_FUNCTION
from softbench.kernels.triton import dispatch, grid_exchange, stable_key
from softbench.kernels.triton.launch_plan import Plan, Problem
from softbench.kernels.triton.stable_key import with_stable_key
from triton.language.core import constexpr
from triton.runtime.jit import JITFunction

from softbench.kernels import triton as kernels


def test_public_function_takes_any_shape_and_dim_and_differentiates(run_interpreted):
    run_interpreted(PUBLIC_FUNCTION.format(module="dispatch"))


TIERS = """
import torch
from dataclasses import replace
from softbench.kernels.triton import dispatch, planner
from softbench.kernels.triton.launch_plan import Plan
from softbench.kernels.tuning.shapes import FAMILIES
torch.manual_seed(0)
UNIT = {torch.float32: 1e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}
tiers_seen = set()

def strided(M, N, pad, offset, dtype, fill=None):
    size = offset + M * (N + pad) + 64
    memory = (torch.randn(size) if fill is None else torch.full((size,), fill)).to(dtype)
    return memory, memory[offset : offset + M * (N + pad)].view(M, N + pad)[:, :N]

def close(got, expected, scale, unit):
    got, same = got.double(), got.double() == expected  # also -inf
    return bool((same | ((got - expected).abs() <= unit * 1.01 * expected.abs() + 3e-6 * scale + 1e-7)).all())

def chosen(plans, problem):
    if plans is not None:
        return plans(problem) if callable(plans) else plans
    made = (planner.make_plan(problem, family) for family in FAMILIES["triton"] if family[0] != "tile")
    return list(dict.fromkeys(filter(None, (planner.choose(problem, ("", 90)), *made))))[:2]

def both_ways(M, N, pad, offset, dtype, plans=None, result=None, log=False, scale=None):
    # plans: a list, or a function of the problem; result: the dtype of y and dy; log: of log_softmax
    result = result or dtype
    factor = scale if isinstance(scale, float) else 1.0 if scale is None else scale.double()[:, None]
    _, x = strided(M, N, pad, offset, dtype)
    x[0, : N // 2] = -float("inf")
    memory, y = strided(M, N, pad, offset, result, float("nan"))
    expected = (torch.log_softmax if log else torch.softmax)(x.double() * factor, -1)
    problem = dispatch.problem_of((x, y))
    assert problem.congruent and problem.wide == (result != dtype)
    for plan in chosen(plans, problem):
        memory.fill_(float("nan"))
        dispatch.run(problem, plan, (x, y), log, scale)
        tiers_seen.add(plan.tier)
        terms = 1 + expected.abs() if log else expected
        assert close(y, expected, terms, UNIT[result]), (plan, M, N, pad, offset, dtype, result, log, scale)
        assert int(torch.isnan(memory).sum()) == memory.numel() - M * N, ("wrote outside its rows", plan)
    y.copy_(expected)
    _, dy = strided(M, N, pad, offset, result)
    memory, dx = strided(M, N, pad, offset, dtype, float("nan"))
    a, b = y.double(), dy.double()
    if log:
        expected = factor * (b - a.exp() * b.sum(-1, keepdim=True))
        terms = factor * (b.abs() + a.exp() * b.abs().sum(-1, keepdim=True))
    else:
        expected = factor * a * (b - (a * b).sum(-1, keepdim=True))
        terms = factor * a * (b.abs() + (a * b).abs().sum(-1, keepdim=True))
    problem = dispatch.problem_of((dy, y, dx))
    assert problem.congruent
    for plan in chosen(plans, problem):
        memory.fill_(float("nan"))
        plan = replace(plan, vector_elements=16 // result.itemsize) if isinstance(plans, list) else plan
        dispatch.run(problem, plan, (dy, y, dx), log, scale)
        assert close(dx, expected, terms, UNIT[dtype]), ("backward", plan, M, N, pad, offset, dtype, result, log, scale)
        assert int(torch.isnan(memory).sum()) == memory.numel() - M * N, ("wrote outside its rows", plan)
"""
EVERY_TIER = """
for dtype in (torch.float32, torch.bfloat16):
    short = (3, 1, 0, 0), (5, 7, 0, 0), (9, 17, 0, 0), (7, 100, 0, 0), (5, 197, 0, 1)
    long = (3, 333, 3, 0), (2, 1000, 8, 0), (2, 5003, 0, 3)
    for M, N, pad, offset in (*short, *long):
        both_ways(M, N, pad, offset, dtype)
    V = 16 // dtype.itemsize
    # Programs that poll in vain, and rows that are read twice. Each takes seconds, so the dtypes share them.
    for N, base_alignment in {torch.float32: ((4096, 0),), torch.bfloat16: ((5003, 128),)}[dtype]:
        plans = [Plan("split", tiles, 128, 4, V, base_alignment, 4, split_ctas=ctas) for tiles, ctas in ((6, 2), (4, 3), (1, 2))]
        both_ways(2, N, 0, 0, dtype, plans)
# operands with different alignments or dtypes take the generic kernels
x = torch.randn(4, 300)
y = torch.empty(4 * 300 + 1)[1:].view(4, 300)
assert dispatch.choose_plan((x, y))[1].tier == "tile"
wide = torch.empty(4, 300)
dispatch.launch_forward(x.bfloat16(), wide)
assert torch.allclose(wide, torch.softmax(x.bfloat16().float(), -1), atol=1e-6)
assert {"rows", "split"} <= tiers_seen, tiers_seen
print("fine")
"""
STAGED = """
def staged(problem):
    assert problem.contiguous
    return [planner.make_plan(replace(problem, M=1 << 24), ("staged", 10, 4, 8192))]

for dtype, columns in {torch.float32: (1, 5, 77), torch.float16: (130,), torch.bfloat16: (2, 17, 50, 197)}.items():
    for N in columns:
        both_ways(41, N, 0, 0, dtype, staged, log=N == 17)
both_ways(41, 33, 0, 0, torch.float32, staged, scale=0.7)
both_ways(41, 33, 0, 0, torch.bfloat16, staged, scale=torch.rand(41) + 0.5)
assert tiers_seen == {"staged"} and not dispatch.problem_of((torch.empty(4, 9)[:, :8],) * 2).contiguous
print("fine")
"""
POLICIES = """
F, B, H = torch.float32, torch.bfloat16, torch.float16
for dtype, result, log, kind in (
    (F, F, True, None), (B, B, True, None), (F, F, False, "row"), (H, H, False, "number"), (B, F, False, None), (H, F, True, "row")
):
    for M, N, pad, offset in ((5, 7, 0, 0), (5, 197, 0, 1), (2, 1000, 8, 0)):
        scale = torch.rand(M) + 0.5 if kind == "row" else 0.7 if kind else None
        both_ways(M, N, pad, offset, dtype, None, result, log, scale)
# programs that poll in vain, and rows that are read twice
for dtype, result, log, scale in ((B, F, False, torch.tensor([0.7])), (F, F, True, 1.5)):
    plans = [Plan("split", tiles, 128, 4, 16 // dtype.itemsize, 128, 4, split_ctas=2) for tiles in (4, 1)]
    both_ways(1, 3003, 0, 0, dtype, plans, result, log, scale)
assert {"rows", "split"} <= tiers_seen, tiers_seen
# rows of special values are torch's
x = torch.randn(6, 300)
x[0], x[1, 5], x[2, 7], x[3, :299], x[4, 0] = -torch.inf, torch.nan, torch.inf, -torch.inf, 80.0
for given, expected in ((x[:, :40], torch.log_softmax(x[:, :40].double(), -1)), (x, torch.log_softmax(x.double(), -1))):
    y = torch.empty(given.shape)
    dispatch.launch_log_forward(given.contiguous(), y)
    assert torch.allclose(y.double(), expected, atol=1e-5, equal_nan=True)
    dispatch.launch_forward(given.contiguous(), y, 2)
    assert torch.allclose(y.double(), torch.softmax(given.double() * 2, -1), atol=1e-6, equal_nan=True)
# the largest scales have a finite factor, and NaN stays NaN
for N in (40, 300, 3003):
    x = torch.randn(3, N)
    x[:, 5] = x[:, N - 1] = 9.0
    y = torch.empty(x.shape)
    dispatch.launch_forward(x, y, torch.tensor([3.4e38, torch.nan, 1e-37]))
    assert y[0, 5] == y[0, N - 1] == 0.5 and y[1].isnan().all() and torch.allclose(y[2], torch.tensor(1 / N))
print("fine")
"""


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_interpreted_tiers_are_right_and_write_only_their_rows(run_interpreted):
    run_interpreted(TIERS + EVERY_TIER, timeout=270)


@pytest.mark.timeout(280)
def test_staged_rows_are_right_and_nothing_else_is_written(run_interpreted):
    run_interpreted(TIERS + STAGED, timeout=270)


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_interpreted_tiers_have_every_function(run_interpreted):
    run_interpreted(TIERS + POLICIES, timeout=270)


def test_kernels_are_told_to_keep_large_inputs_in_l2():
    large = Problem(False, 4096, 4096, 2, 16, True, 132, True, hopper=True)
    rows = Plan("rows", tiles=8, threads=64, vector_elements=8, warps=2)
    split = Plan("split", tiles=8, threads=256, vector_elements=8, warps=8, split_ctas=2, smem_tiles=4)
    for problem in (large, replace(large, M=8)):
        for plan in (rows, split):
            assert dispatch.prepare_launch(problem, plan, (torch.empty(2, 8),) * 2).arguments[-2:] == (problem.keep_in_l2, False)


@pytest.mark.parametrize("backward", [False, True])
def test_each_program_has_a_slot_of_two_cache_lines(backward):
    problem = Problem(backward, 3, 1 << 20, 4, 16, True, 132, True)
    plan = Plan("split", 8, 128, 4, 4, 0, 4, 128, split_ctas=100, smem_tiles=10)
    launch = dispatch.prepare_launch(problem, plan, (torch.empty(3, 1 << 20, device="meta"),) * (problem.reads + 1))
    assert launch.slots * 8 == 3 * 128 * 256  # a power of two for each row
    assert "mul.wide.u32 place, peer, 256;" in grid_exchange.GATHER_4.value


@pytest.mark.parametrize("wrong", [{"threads": 128}, {"threads": 512}, {"rows": 2}])
def test_a_plan_without_one_vector_a_thread_is_refused(wrong):
    problem = Problem(False, 8, 4096, 4, 16, True, 132, True)
    plan = Plan("rows", 4, 256, 4, 4, 0, 8)
    assert dispatch.PREPARE["rows"](problem, plan, (4096, 4096), False).programs == 8
    with pytest.raises(ValueError, match=r"invalid plan .*: above 32, threads must be 32"):
        dispatch.prepare_launch(problem, replace(plan, **wrong), (torch.empty(8, 4096),) * 2)


def test_fast_tiers_convert_only_float32_and_16_bits():
    x, narrow = torch.empty(4, 256), torch.empty(4, 256, dtype=torch.float16)
    assert dispatch.problem_of((x, torch.empty(4, 256))).congruent
    assert not dispatch.problem_of((x, narrow)).congruent
    assert not dispatch.problem_of((narrow, narrow.bfloat16())).congruent
    assert not dispatch.problem_of((x, narrow, narrow)).congruent
    assert dispatch.problem_of((x, x, narrow)).congruent
    wide = dispatch.problem_of((narrow, x))
    assert wide.congruent and wide.wide and wide.alignment == 16
    odd = torch.empty(4 * 257 + 3, dtype=torch.float16)[3:].view(4, 257)
    assert not dispatch.problem_of((odd, torch.empty(4, 257))).congruent  # rows start 3 elements further apart
    assert dispatch.problem_of((odd, torch.empty(4 * 257 + 3)[3:].view(4, 257))).congruent
    assert dispatch.problem_of((x[:, 1:], torch.empty(4, 256)[:, 1:])).alignment == 4


SOURCE = """
import triton
import triton.language as tl

FACTOR = tl.constexpr(3)

@triton.jit
def innermost(x):
    return x * FACTOR

@triton.jit
def inner(x):
    return innermost(x) + 1

@triton.jit
def first(pointer):
    tl.store(pointer, inner(tl.load(pointer)))

@triton.jit
def second(pointer):
    tl.store(pointer, inner(tl.load(pointer)) + innermost(2))
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.setattr(stable_key, "_keyed", {})
    file = tmp_path / "some_kernels.py"
    file.write_text(SOURCE)

    def load():
        spec = importlib.util.spec_from_file_location("some_kernels", file)
        found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
        return found

    return load


@pytest.mark.parametrize("names", [("first", "second"), ("second", "first"), ("inner", "second", "first")])
def test_the_order_of_kernels_does_not_matter(module, names):
    def keys(names):
        found = module()
        stable = {name: with_stable_key(getattr(found, name)).cache_key for name in names}
        return stable["first"], stable["second"]

    assert keys(names) == keys(("innermost", "inner", "first", "second"))


def test_the_keys_of_called_functions_come_first(module, monkeypatch):
    order, original = [], JITFunction.cache_key

    def recorded(function):
        if function.hash is None:
            order.append(function.__name__)
        return original.fget(function)

    monkeypatch.setattr(JITFunction, "cache_key", property(recorded))
    kernel = module().second
    assert with_stable_key(kernel) is kernel
    assert order == ["innermost", "inner", "second"]


@pytest.mark.parametrize("name", [one.name for one in pkgutil.iter_modules(kernels.__path__)])
def test_constants_of_a_kernel_with_one_name_have_one_value(name):
    """Triton sorts those of a name by the addresses of their modules, so keys would differ between processes."""
    module = importlib.import_module(f"{kernels.__name__}.{name}")
    for function in vars(module).values():
        if isinstance(function, JITFunction) and function.fn.__module__ == module.__name__:
            _ = with_stable_key(function).cache_key
            values = {(of, str(value)) for (of, _), (value, _) in function.used_global_vals.items() if isinstance(value, constexpr)}
            assert len(values) == len({of for of, _ in values}), function


def test_what_has_no_key_stays_as_it_is():
    def interpreted(pointer):
        pass

    assert with_stable_key(interpreted) is interpreted


def test_cpu_launches_get_fresh_zeros():
    counter, slots = grid_exchange.workspace(torch.device("cpu"), 100)
    assert (counter.shape, slots.shape, counter.dtype, slots.dtype) == ((1,), (100,), torch.int64, torch.int64)
    assert not counter.any() and not slots.any()
    assert grid_exchange.workspace(torch.device("cpu"), 100)[0].data_ptr() != counter.data_ptr()


@pytest.fixture
def allocations(monkeypatch):
    """Sizes of persistent allocations, which are on the CPU here; the current stream has number 7."""
    sizes = []
    monkeypatch.setattr(grid_exchange, "_workspaces", {})
    monkeypatch.setattr(grid_exchange, "persistent_zeros", lambda _index, size, dtype: sizes.append(size) or torch.zeros(size, dtype=dtype))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _index: 7, raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return sizes


def test_launches_of_one_stream_share_a_workspace_that_grows(allocations):
    device = torch.device("cuda", 0)
    small = grid_exchange.workspace(device, 100)
    assert grid_exchange.workspace(device, 200)[1].data_ptr() == small[1].data_ptr()
    large = grid_exchange.workspace(device, 2 * grid_exchange.MIN_WORDS)
    assert len(large[1]) >= 2 * grid_exchange.MIN_WORDS
    assert allocations == [grid_exchange.MIN_WORDS, 2 * grid_exchange.MIN_WORDS + grid_exchange.COUNTER_WORDS]


def test_counter_has_lines_of_its_own(allocations):
    counter, slots = grid_exchange.workspace(torch.device("cuda", 0), 100)
    assert slots.data_ptr() - counter.data_ptr() == 256
