"""Losses by the Triton kernels on a GPU: every pass and plan within the derived bounds, in place, captured, compiled and in training."""

import math
from functools import partial

import pytest
import torch
from softbench.kernels.triton import dispatch, loss_plans, losses, planner
from softbench.kernels.tuning.shapes import FAMILIES
from torch.nn import functional

from softbench.backends.triton import own
from softbench.core.case import Case, Direction
from softbench.kernels import cross_entropy, logprob
from softbench.ops.registry import numerics, operation

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

OPS = ["cross_entropy", "cross_entropy(label_smoothing=0.1,z_loss=0.001,softcap=30)", "cross_entropy(label_smoothing=0.1)", "logprob"]
SHAPES = [
    (1000, 7), (301, 1000), (301, 1001), (300, 2000), (150, 5003), (140, 16384), (300, 32000), (140, 50257), (70, 128256), (2, 201088),
    (1, 262144), (40, 262144), (3, 1000003),
]  # fmt: skip
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def given_for(M, N, dtype, direction, op, structured=False):
    case = Case(M, N, dtype, direction, "cuda", op)
    given = numerics(op).make(case, 0, torch.device("cuda"))
    if structured:
        numerics(op).make_structured(given, case, 1)
    return case, given


def assert_passes(case, given, out):
    found = numerics(case.op).check(case, given, out if isinstance(out, tuple) else (out,))
    assert found.grade.value == "pass", (case, found.detail)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_every_pass_is_within_the_bounds(dtype, op):
    for direction in operation(op).directions:
        for M, N in SHAPES:
            for structured in (False, True):
                case, given = given_for(M, N, dtype, direction, op, structured and M > 1)
                before = given[0].clone()
                assert_passes(case, given, own.prepare(case)(*given))
                assert torch.equal(before.view(torch.uint8), given[0].view(torch.uint8))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("op", OPS[:2])
def test_every_fused_plan_is_right_also_in_place(dtype, op):
    options = losses.Options(**{name: value for name, value in operation(op).parameter_values.items() if name != "reduction"})
    for M, N in SHAPES[3:-1]:
        case, given = given_for(M, N, dtype, Direction.FUSED, op)
        problem = dispatch.problem_of((given[0], given[0]))
        additions = bool(options.label_smoothing) + bool(options.softcap)
        made = (planner.make_plan(problem, family) for family in FAMILIES["triton"])
        plans = [fused for plan in made if plan and (fused := loss_plans.as_fused(problem, plan, additions))]
        assert plans
        for plan in [*plans[:2], *plans[-1:]]:
            x = given[0].clone()
            loss = torch.empty(M, device="cuda")
            ready = losses._fused(problem, plan, (N, N), options)
            scratch = ready.scratch(x.device)
            ready.kernel[(ready.programs,)](x, given[1], x, loss, None, *scratch, *ready.arguments, **ready.options)
            if ready.share:
                loss.add_(scratch[0].view(M, -1).sum(1), alpha=ready.share)
            assert_passes(case, given, (loss, x))


@pytest.mark.parametrize("pad, offset", [(3, 1), (8, 0), (0, 5)])
def test_strided_rows_are_read_in_place(pad, offset):
    for op in ("cross_entropy", "logprob"):
        for direction in operation(op).directions:
            for N in (301, 5003, 50257):
                case, given = given_for(37, N, "bf16", direction, op)
                memory = torch.full((offset + 37 * (N + pad),), 3.0, device="cuda", dtype=torch.bfloat16)
                x = memory[offset:].view(37, N + pad)[:, :N].copy_(given[0])
                assert_passes(case, given, own.prepare(case)(x, *given[1:]))
                memory[offset:].view(37, N + pad)[:, :N] = 3.0
                assert bool((memory == 3).all()), "wrote outside its results"


def test_targets_out_of_range_make_their_rows_nan():
    for N in (9, 1000, 50257, 262144):
        x = torch.randn(4, N, device="cuda", dtype=torch.bfloat16)
        target = torch.tensor([0, N, -1, -100], device="cuda")
        loss, dx = losses.cross_entropy_fused(x, target)
        assert loss[1:3].isnan().all() and dx[1:3].isnan().all() and loss[3] == 0 and not dx[3].any()
        assert math.isfinite(loss[0]) and bool(torch.isfinite(dx[0]).all())


@pytest.mark.usefixtures("kernels")
def test_a_captured_step_replays_on_new_logits():
    x = torch.randn(8, 128256, device="cuda", dtype=torch.bfloat16)
    target = torch.randint(128256, (8,), device="cuda")
    side = torch.cuda.Stream()

    def step():
        leaf = x.detach().requires_grad_()
        loss = cross_entropy(leaf, target, label_smoothing=0.1)
        return loss, torch.autograd.grad(loss, leaf)[0]

    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss, dx = step()
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        graph.replay()
        expected = step()
        assert torch.equal(loss, expected[0]) and torch.equal(dx, expected[1])


@pytest.mark.usefixtures("kernels")
def test_torch_compile_takes_both_whole():
    x = torch.randn(64, 50257, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(50257, (64,), device="cuda")

    def step(x):
        found, entropy = logprob(x, target)
        return cross_entropy(x, target) + found.mean() + entropy.mean()

    expected = torch.autograd.grad(step(x), x)[0]
    for options in ({}, {"mode": "reduce-overhead"}):
        torch._dynamo.reset()
        compiled = torch.compile(step, fullgraph=True, **options)
        for _ in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            got = torch.autograd.grad(compiled(x), x)[0].clone()
        assert torch.allclose(got, expected, atol=1e-6, rtol=1e-2)


@pytest.mark.usefixtures("kernels")
def test_training_steps_are_those_with_torchs_loss():
    def trained(loss):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Embedding(50257, 64), torch.nn.Linear(64, 50257)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        tokens = torch.randint(50257, (4, 65), device="cuda")
        tokens[0, -9:] = -100
        for _ in range(3):
            optimizer.zero_grad()
            loss(model(tokens[:, :-1].clamp(min=0)), tokens[:, 1:]).backward()
            optimizer.step()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    ours = trained(partial(cross_entropy, dim=-1))
    theirs = trained(lambda x, target: functional.cross_entropy(x.flatten(0, 1), target.flatten()))
    assert torch.allclose(ours, theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.usefixtures("kernels")
def test_less_memory_is_kept_than_by_torch():
    target = torch.randint(128256, (512,), device="cuda")

    def peak(loss):
        x = torch.randn(512, 128256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        loss(x).backward()
        return (torch.cuda.max_memory_allocated() - before) / (x.numel() * 2)

    peak(lambda x: cross_entropy(x, target))  # Triton compiles
    assert peak(lambda x: cross_entropy(x, target)) < 1.1  # the gradient
    assert peak(lambda x: functional.cross_entropy(x.float(), target)) > 4


def test_rows_beyond_32_bit_offsets_are_right():
    M, N = 8193, 262144  # 4 GiB in bf16
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GiB of memory")
    x = torch.randn(M, N, device="cuda", dtype=torch.bfloat16)
    target = torch.randint(N, (M,), device="cuda")
    rows = [0, 4097, M - 1]
    expected = functional.cross_entropy(x[rows].double(), target[rows], reduction="none")
    assert torch.allclose(losses.cross_entropy_forward(x, target)[0][rows].double(), expected, atol=1e-5)
    loss, dx = losses.cross_entropy_fused(x, target, out=x)
    assert dx is x and torch.allclose(loss[rows].double(), expected, atol=1e-5)
    assert bool((dx.float().sum(1).abs() < 0.05).all())
