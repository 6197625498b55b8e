"""Losses by the Triton kernels: what they compute, their launch plans and their launches."""

import ast
from pathlib import Path

import pytest
import torch
import triton
from softbench.kernels.triton import generic, loss_plans, losses
from softbench.kernels.triton.launch_plan import Problem, chunk_of, vectors_in_row
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

SETUP = """
import math
import torch
from softbench.backends.triton import own
from softbench.core.case import Case, Direction
from softbench.ops.registry import numerics, operation
from softbench.kernels.common import linear_cross_entropy as parts
from softbench.kernels.triton import losses, loss_plans
torch.manual_seed(0)
CPU = torch.device("cpu")
CE, ALL = "cross_entropy", "cross_entropy(label_smoothing=0.1,z_loss=0.001,softcap=30)"
NAMES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
launched = set()
prepare = losses.prepare

def recorded(*given):
    ready = prepare(*given)
    launched.add(ready.kernel.fn.__name__ if ready else None)
    return ready

losses.prepare = recorded

def strided(x, pad, offset):
    # the same values in rows further apart, behind other elements
    M, N = x.shape
    memory = torch.full((offset + M * (N + pad),), 3.0, dtype=x.dtype)
    rows = memory.view(-1)[offset:].view(M, N + pad)[:, :N]
    return rows.copy_(x)

def check(M, N, dtype, op, structured=False, pad=0, offset=0, in_place=False):
    for direction in operation(op).directions:
        case = Case(M, N, dtype, direction, "cpu", op)
        values = numerics(op)
        given = values.make(case, 0, CPU)
        if structured:
            values.make_structured(given, case, 1)
        call = own.prepare(case)
        x = strided(given[0], pad, offset)
        more = {}
        if in_place and direction is not Direction.FORWARD:
            function = getattr(losses, f"{case.operation}_{direction.value}")
            options = dict(operation(op).parameter_values)
            options.pop("reduction", None)
            out = function(x, *given[1:], out=x, **options)
            dx = out[1] if isinstance(out, tuple) else out
            assert dx is x
        else:
            out = call(x, *given[1:])
            assert torch.equal(x.view(torch.uint8), given[0].contiguous().view(torch.uint8)) or not pad, "x changed"
        accuracy = values.check(case, given, out if isinstance(out, tuple) else (out,))
        assert accuracy.grade.value == "pass", (case, structured, pad, offset, in_place, accuracy.detail)
"""
PASSES = """
for dtype, ops in {"fp32": (CE, ALL, "logprob"), "bf16": (ALL, "logprob")}.items():  # fp16 differs from bf16 by the conversion
    for op in ops:
        check(9, 7, dtype, op)
        check(30, 1000, dtype, op, structured=True)  # as many rows as kinds
        check(3, 301, dtype, op, pad=3, offset=1)
        check(2, 2053, dtype, op, offset=3)
    check(2, 5008, dtype, CE, in_place=True)
    check(3, 33, dtype, ALL, in_place=True)
    check(1, 1, dtype, CE)
assert launched == {"reduction_tile", "fused_tile", "gradient_tile", "reduce_row", "fused_rows", "gradient_of_row"}, launched
print("fine")
"""
LONG = """
check(30, 8192, "bf16", CE, structured=True)
check(28, 5003, "bf16", "logprob", structured=True)
check(28, 5003, "fp32", "cross_entropy(label_smoothing=0.9)", structured=True)
check(1, 70003, "fp32", CE)  # longer than a program holds: two passes
check(1, 70003, "fp32", ALL)
assert None in launched
print("fine")
"""
SPECIAL = """
for N in (9, 2053):  # one program a row, and programs that share rows
    x = torch.randn(5, N)
    x[1, 3] = x[2, 4] = math.nan
    target = torch.tensor([0, -100, N - 1, N, -1])
    loss, lse = losses.cross_entropy_forward(x, target)
    fused, dx = losses.cross_entropy_fused(x, target)
    back = losses.cross_entropy_backward(x, target, lse, torch.ones(5))
    # a target out of range makes its row NaN; an ignored row is 0 beside NaN
    for given in (loss, fused):
        assert given[1] == 0 and given[2:].isnan().all() and torch.allclose(given[0], torch.logsumexp(x[0], 0) - x[0, 0]), given
    for given in (dx, back):
        assert not given[1].any() and given[2:].isnan().all() and torch.isfinite(given[0]).all()
    logprob, entropy, _ = losses.logprob_forward(x, target)
    assert logprob[1:].isnan().all() and torch.isfinite(logprob[0]) and torch.isfinite(entropy[[0, 3, 4]]).all()
    # `out` of another layout is filled all the same
    wide = torch.empty(5, N + 1)[:, 1:]
    got = losses.cross_entropy_fused(x, target, out=wide)[1]
    assert got is wide and torch.equal(wide.nan_to_num(7), dx.nan_to_num(7))
    # a scale of the logits is that of a copy, and an ignored target has a log-probability of 0 and none of its gradient
    x, target, rows = torch.randn(3, N), torch.tensor([0, -100, N - 1]), torch.tensor([1.0, 2.0, 3.0])
    for options in ({}, {"label_smoothing": 0.3, "z_loss": 0.1}, {"softcap": 2.0}):
        loss_of_copy, _ = losses.cross_entropy_forward(0.5 * x, target, **options)
        loss, lse = losses.cross_entropy_forward(x, target, logit_scale=0.5, **options)
        assert torch.allclose(loss, loss_of_copy, atol=1e-5)
        of_copy = 0.5 * losses.cross_entropy_backward(0.5 * x, target, lse, rows, **options)
        assert torch.allclose(losses.cross_entropy_backward(x, target, lse, rows, logit_scale=0.5, **options), of_copy, atol=1e-6)
        of_copy = 0.5 * losses.cross_entropy_fused(0.5 * x, target, **options)[1]
        assert torch.allclose(losses.cross_entropy_fused(x, target, logit_scale=0.5, lse=lse, **options)[1], of_copy, atol=1e-6)
    given = {"ignore_index": -100, "logit_scale": 0.5}
    found, entropy, lse = losses.logprob_forward(x, target, **given)
    y = torch.log_softmax(0.5 * x, 1)
    assert found[1] == 0 and torch.allclose(found[::2], y[[0, 2], [0, N - 1]], atol=1e-5)
    dx = losses.logprob_backward(x, target, lse, entropy, rows, 0 * rows, **given)
    assert not dx[1].any() and torch.allclose(dx[0], 0.5 * ((torch.arange(N) == 0) * 1.0 - y[0].exp()), atol=1e-6)
# one dloss of all rows, whose half is exact; 32771 columns take two passes
ALL_OPTIONS = {"label_smoothing": 0.3, "softcap": 2.0, "z_loss": 0.1}
for columns, options in ((9, {}), (9, ALL_OPTIONS), (2053, {}), (2053, ALL_OPTIONS), (32771, {})):
    x, target = torch.randn(2, columns), torch.tensor([1, columns - 1])
    full, half = (losses.cross_entropy_fused(x, target, dloss=dloss, **options) for dloss in (None, torch.tensor(0.5)))
    assert torch.equal(full[0], half[0]) and torch.allclose(full[1] / 2, half[1], rtol=1e-6, atol=0)
empty, none = torch.empty(0, 5), torch.empty(0, dtype=torch.int64)
assert losses.cross_entropy_fused(empty, none)[1].shape == (0, 5) and losses.logprob_forward(empty, none)[0].shape == (0,)
x, target = torch.randn(2, 3), torch.tensor([0, 1])
for call in (
    lambda: losses.cross_entropy_forward(x.double(), target), lambda: losses.cross_entropy_forward(x, target.int()),
    lambda: losses.cross_entropy_backward(x, target, x[:, 0].half(), x[:, 0]), lambda: losses.cross_entropy_fused(x, target, out=x.half()),
):
    try:
        call()
    except TypeError:
        continue
    raise AssertionError("no error was raised")
# parts of 128 rows add up to the loss of all rows and its gradients
parts.MOST_BYTES = 0
for dtype in ("fp32", "fp16"):
    check(200, 40, dtype, "linear_cross_entropy(hidden=8,label_smoothing=0.1,z_loss=0.001,softcap=30)")
# softcap near 0 keeps the relative precision of tanh, and is flat far away
x = torch.tensor([[1e-6, -1e-6, 1e-3, 0.5, -0.99, 1.01, -40.0, 9e9, 1e-30, 0.0]])
_, dx = losses.cross_entropy_fused(x, torch.tensor([0]), softcap=1.0)
z = x.double().requires_grad_()
(expected,) = torch.autograd.grad(torch.nn.functional.cross_entropy(torch.tanh(z), torch.tensor([0])), z)
assert torch.allclose(dx.double(), expected, atol=1e-8, rtol=1e-5)
print("fine")
"""


@pytest.mark.timeout(280)
def test_every_pass_is_within_the_bounds(run_interpreted):
    run_interpreted(SETUP + PASSES, timeout=270)


@pytest.mark.timeout(280)
@pytest.mark.slow
def test_structured_long_rows_are_within_the_bounds(run_interpreted):
    run_interpreted(SETUP + LONG, timeout=270)


def test_gradients_from_statistics_lose_nothing_far_from_zero(run_interpreted):
    support = str(Path(__file__).parents[2] / "support")
    code = f"import sys; sys.path.append({support!r}); import exact_gradients; from softbench.kernels.triton import losses\n"
    run_interpreted(f"{code}exact_gradients.check(losses, 2053)")


def test_special_targets_layouts_and_errors(run_interpreted):
    run_interpreted(SETUP + SPECIAL)


PLAIN = losses.Options()
COLUMNS = (129, 600, 1000, 1001, 4096, 5003, 32000, 50257, 128256, 151936, 201088, 262144)


def problem(M, N, size, sms=132):
    line = N * size % 128
    alignment = min(16, line & -line) if line else 16
    return Problem(False, M, N, size, alignment, True, sms, sms > 4, 2.7, sms > 4)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("sms", [4, 132])
def test_stream_plans_cover_each_row_once(size, sms):
    for N in COLUMNS:
        for M in (1, 7, 64, 1024, 65536):
            given = problem(M, N, size, sms)
            plan = loss_plans.reduction_plan(given)
            vectors = vectors_in_row(given, plan.vector_elements, plan.base_alignment)
            chunk = chunk_of(given, plan)
            assert (plan.split_ctas - 1) * chunk < vectors <= plan.split_ctas * chunk and plan.split_ctas <= loss_plans.MAX_PARTS
            plan = loss_plans.gradient_plan(given)
            reach = plan.tiles * plan.threads
            assert (plan.split_ctas - 1) * reach < vectors <= plan.split_ctas * reach and plan.threads == 32 * plan.warps


@pytest.mark.skipif(generic.INTERPRETED, reason="nothing is compiled under TRITON_INTERPRET=1")
def test_losses_with_one_gradient_of_all_rows_are_compiled():
    ready = losses._tile("fused", problem(64, 16, 2), (16, 16), PLAIN)
    names = ready.kernel.arg_names
    given = dict(zip(names, ("*bf16", "*i64", "*bf16", "*fp32", "*fp32", *ready.arguments), strict=True))
    constants = {name: given[name] for name, one in zip(names, ready.kernel.params, strict=True) if one.is_constexpr or given[name] is None}
    kinds = {int: "i32", float: "fp32"}
    signature = {name: "constexpr" if name in constants else kinds.get(type(one), one) for name, one in given.items()}
    source = ASTSource(ready.kernel, signature, constants)
    assert triton.compile(source, target=GPUTarget("cuda", 90, 32), options=dict(ready.options)).asm["ptx"]


def test_no_function_of_a_kernel_returns_a_parameter_that_may_be_none():
    """Triton 3.6 refuses such a return, and newer ones compile it."""
    found = []
    for path in Path(losses.__file__).parent.glob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and "jit" in "".join(map(ast.unparse, function.decorator_list)):
                tests = [
                    node for node in ast.walk(function) if isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "None"
                ]
                returned = (node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value)
                values = {ast.unparse(one) for value in returned for one in getattr(value, "elts", [value])}
                found += [(path.name, function.name, name) for name in {ast.unparse(one.left) for one in tests} & values]
    assert not found


def test_rows_beyond_the_counters_are_not_shared():
    given = problem(loss_plans.MOST_SHARED_ROWS + 1, 128256, 2, sms=1000)
    assert loss_plans.reduction_plan(given).split_ctas == 1


def test_counters_are_never_where_results_were():
    prepared = losses.Prepared(None, 1, (), {}, floats=7, counters=3, places=2)
    floats, counters = prepared.scratch(torch.device("cpu"))
    assert floats.dtype == torch.float32 and len(floats) >= 7 and len(counters) >= loss_plans.MOST_SHARED_ROWS
    assert floats.data_ptr() - counters.data_ptr() == 8 * loss_plans.MOST_SHARED_ROWS


def test_a_launch_knows_the_addresses_of_its_scratch_memory(monkeypatch):
    words = torch.zeros(2 * loss_plans.MOST_SHARED_ROWS, dtype=torch.int64)
    monkeypatch.setattr(losses, "workspace", lambda *_: (words[:1], words))
    for prepared in (losses.Prepared(None, 1, (), {}, 8, 4, 2), losses.Prepared(None, 1, (), {}, places=2)):
        tensors = prepared.scratch(torch.device("cpu"))
        assert prepared.addresses(torch.device("cpu")) == tuple(None if one is None else one.data_ptr() for one in tensors)


def test_launches_with_other_layouts_have_other_keys():
    x, target, dx = torch.zeros(4, 16), torch.zeros(4, dtype=torch.int64), torch.zeros(4, 16)
    lse = torch.zeros(4)

    def key(x=x, lse=lse, dx=dx, options=PLAIN):
        operands = x, target, lse, None, None, None, dx
        pointers = [None if one is None else one.data_ptr() for one in operands]
        return losses._layout_key("gradient", operands, pointers, options)

    assert key() == key()
    others = (
        key(x=torch.zeros(65)[1:].view(4, 16)), key(x=torch.zeros(4, 32)[:, :16]), key(x=x.half()), key(dx=torch.zeros(4, 32)[:, :16]),
        key(lse=torch.zeros(5)[1:]), key(options=losses.Options(z_loss=1.0)), key(x=torch.zeros(3, 16)),
    )  # fmt: skip
    assert key() not in others and len(set(others)) == len(others)
