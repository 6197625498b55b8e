"""Contraction of products and sums is pinned, and no exponent is contracted, in code compiled without a GPU.

Bounds rest on the second: exp2(x * log2 e - m * log2 e) in one multiply-add rounds m * log2 e, which is the class low-precision.
"""

import itertools
import re
from dataclasses import replace
from types import SimpleNamespace

import cards
import pytest
import torch
import triton
import triton.language as tl
from ptx import exponents
from sampled import sampled
from softbench.kernels.triton import (
    dispatch,
    generic,
    loss_plans,
    losses as loss_launches,
    masked_softmax as scores,
)
from softbench.kernels.triton.launch_plan import Plan
from softbench.kernels.triton.losses import Options

pytestmark = pytest.mark.skipif(generic.INTERPRETED or torch.cuda.is_available(), reason="replaces Triton's driver, which GPUs need")

ROWS = Plan("rows", 2, 128, 4, 8, warps=4)
CLUSTER = Plan("cluster", 4, 256, 4, 8, warps=8, registers=64, cluster_ctas=4)
SPLIT = Plan("split", 4, 256, 4, 8, warps=8, registers=64, split_ctas=4)
STAGED = Plan("staged", 10, 8, 1, 1, warps=4, rows=32)
BACKWARD_SCORES = scores.backward_scores
PLANS = [(Plan("tile"), 2048), (Plan("loop"), 50000), (ROWS, 2048), (CLUSTER, 32768), (SPLIT, 32768), (STAGED, 77)]


@pytest.fixture
def h100(monkeypatch):
    monkeypatch.setattr(triton.runtime.driver, "_active", None)
    return next(one for one in cards.CARDS if one.name == "H100")


@triton.jit
def contracted_exponent(x_ptr, y_ptr, m):
    at = tl.arange(0, 128)
    tl.store(y_ptr + at, tl.exp2(tl.load(x_ptr + at) * 1.4426950408889634 - m * 1.4426950408889634))


@pytest.mark.parametrize(("fused", "expected"), [(True, {"fma.rn.f32"}), (False, {"sub.rn.f32", "add.rn.f32", "sub.f32", "add.f32"})])
def test_a_contracted_exponent_is_found(h100, fused, expected):
    operands = [cards.Operand(torch.float32, 16)] * 2
    found = cards.compiled(h100, contracted_exponent, operands, (3.5,), {"num_warps": 4, "enable_fp_fusion": fused})
    assert {*exponents(found.asm["ptx"])} <= expected
    assert ("fma" in found.asm["ptx"]) == fused


KERNELS = [(*plan, *kind) for plan in PLANS for kind in itertools.product((False, True), (False, True), (None, 0.7))]


def with_or_without_scale(plan, N, backward, log, scale):
    """One of the two, in turn. The gradient of softmax, which has no exponential, is left out."""
    return log >= backward and (scale is None) == ((PLANS.index((plan, N)) + log + backward) % 2 == 0)


@pytest.mark.parametrize(
    ("plan", "N", "backward", "log", "scale"), sampled(KERNELS, with_or_without_scale), ids=lambda value: getattr(value, "tier", None)
)
def test_kernels_are_pinned_and_contract_no_exponent(h100, plan, N, log, backward, scale):
    problem = cards.problem_of(h100, backward, 4096, N, 2, 16 if N % 8 == 0 else 2)
    found = cards.compiled_plan(h100, problem, plan, log, scale)
    assert found.metadata.enable_fp_fusion is True
    made = exponents(found.asm["ptx"])
    assert {*made} <= {"mul.f32"}
    assert made or (backward and not log)  # only the gradient of softmax has no exponential


TRACED = {"forward_traceable", "tile_traceable", "backward_traceable", "gradient_tile_traceable"}


@pytest.mark.parametrize("fused", sampled([False, True], lambda fused: fused))
def test_traced_kernels_contract_no_exponent_by_either_default(h100, fused):
    """Inductor passes no option for contraction on, so Triton's default decides."""
    left = set(TRACED)
    for name in ("H100", "L4"):
        card = next(one for one in cards.CARDS if one.name == name)
        every = (launch for number in range(300) for launch in cards.card_launches.launches(card, "traced", number))
        for launch in every:
            if launch.kernel.__name__ in left:
                options = {**launch.options, "enable_fp_fusion": fused}
                made = exponents(cards.compiled(card, launch.kernel, launch.operands, launch.arguments, options).asm["ptx"])
                if made:  # the gradient of softmax has no exponential
                    left.remove(launch.kernel.__name__)
                    assert {*made} <= {"mul.f32", "mul.rn.f32"}, launch.told
    assert not left


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("M", [41, 1 << 22])  # the second keeps its reads in L2
def test_copies_of_staged_rows_read_whole_vectors(h100, backward, M):
    """A cp.async with a size in a register reads 16 bytes all the same, also behind the tensor's end. One more operand is a policy."""
    ptx = cards.compiled_plan(h100, cards.problem_of(h100, backward, M, 77, 2, 2), STAGED).asm["ptx"]
    copies = re.findall(r"cp\.async\.cg\.shared\.global\S*\s+\[[^]]*\], \[[^]]*\], (.*?);", ptx)
    assert copies
    assert set(copies) == {"16"}


@pytest.mark.parametrize("backward", [False, True])
def test_no_staged_lane_reads_behind_its_row(h100, backward):
    """The last unit of a lane may be another lane's, which may already have written its result there."""
    ptx = cards.compiled_plan(h100, cards.problem_of(h100, backward, 4096, 77, 2, 2), STAGED).asm["ptx"]
    before_the_copy_back = ptx[: ptx.rindex("bar.sync 0;")]
    reads = re.findall(r"(@p )?ld\.shared\.u16 %", before_the_copy_back)
    assert reads == [*[""] * (STAGED.tiles - 1), "@p "] * (2 if backward else 1)


@pytest.mark.slow
@pytest.mark.parametrize("M", [64, 4096])  # the second keeps its reads in L2
def test_copies_of_two_vectors_stay_inside_the_row(h100, M):
    """Float32 results: the last 8 of 16 bytes may lie behind the tensor, so they are copied as 8 bytes."""
    problem = replace(cards.problem_of(h100, False, M, 262140, 2, 8), wide=True)
    plan = Plan("split", 4, 256, 2, 4, warps=8, registers=64, split_ctas=16, smem_tiles=8)
    ready = dispatch.prepare_launch(problem, plan, (SimpleNamespace(stride=lambda _: 262140),) * 2, False)
    operands = [cards.Operand(torch.bfloat16, 8), cards.Operand(torch.float32, 16), *[cards.Operand(torch.int64, 0)] * 2]
    ptx = cards.compiled(h100, ready.kernel, operands, (*ready.arguments, None), ready.options).asm["ptx"]
    copies = re.findall(r"@[pq] cp\.async\.(c[ag])\.shared\.global(\S*)\s+\[[^]]*\], \[[^]]*\], (\d+)(, policy)?;", ptx)
    assert {(cache, size) for cache, _, size, _ in copies} == {("cg", "16"), ("ca", "8")}
    assert len(copies) == ptx.count("cp.async.c") - ptx.count("cp.async.commit")
    assert {bool(hint) == bool(policy) == problem.keep_in_l2 for _, hint, _, policy in copies} == {True}


def losses(h100, logprob):
    """Prepared launches of logprob, or of cross entropy with all options, and their operands."""
    every = Options(label_smoothing=0.1, z_loss=1e-4, softcap=30.0)
    data, rows, target = (cards.Operand(dtype, 16) for dtype in (torch.bfloat16, torch.float32, torch.int64))
    wide, short = (cards.problem_of(h100, False, 4096, N, 2, 16) for N in (32000, 512))
    options, third = (Options(logprob=True), rows) if logprob else (every, None)
    reading, writing = loss_plans.reduction_plan(wide), loss_plans.gradient_plan(wide)
    given = (rows, rows, rows, rows) if logprob else (rows, None, rows, None)
    yield loss_launches._reduction(wide, reading, (32000,), options), [data, target, rows, rows, third]
    yield loss_launches._gradient(wide, writing, (32000, 32000), options), [data, target, *given, data]
    yield loss_launches._tile("reduction", short, (512,), options), [data, target, rows, rows, third]
    if not logprob:
        fused = loss_plans.fused_plan(wide, ("", 90), 2)
        yield loss_launches._fused(wide, fused, (32000, 32000), every), [data, target, data, rows, None]


@pytest.mark.slow
@pytest.mark.parametrize("logprob", [False, True])
def test_losses_are_pinned_and_contract_no_exponent(h100, logprob):
    for ready, operands in losses(h100, logprob):
        scratch = [None] * ready.places
        if ready.floats:
            scratch[0] = cards.Operand(torch.float32, 16)
        if ready.counters:
            scratch[1] = cards.Operand(torch.int64, 16)
        found = cards.compiled(h100, ready.kernel, [*operands, *scratch], ready.arguments, ready.options)
        assert found.metadata.enable_fp_fusion is True
        made = exponents(found.asm["ptx"])
        assert made
        assert {*made} <= {"mul.f32"}, ready.kernel


def assert_sums_of_lanes_contract_no_product(ptx):
    others = set(re.findall(r"shfl\.sync\.bfly\.b32\s+(%\w+),", ptx))
    assert others
    assert [line for line in ptx.splitlines() if "add.f32" in line and others & {*re.findall(r"%\w+", line)}]
    assert not [line for line in ptx.splitlines() if "fma.rn" in line and others & {*re.findall(r"%\w+", line)}]


def test_entropies_of_lanes_contract_no_product(h100):
    """Contracted, each lane of a row of few columns would have another entropy, and the lanes write theirs to one place."""
    rows, target = (cards.Operand(dtype, 4) for dtype in (torch.float32, torch.int64))
    ready = loss_launches._tile("reduction", cards.problem_of(h100, False, 200, 7, 4, 4), (7,), Options(logprob=True))
    ptx = cards.compiled(h100, ready.kernel, [rows, target, rows, rows, rows], ready.arguments, ready.options).asm["ptx"]
    assert_sums_of_lanes_contract_no_product(ptx)


class Asked:
    """Takes the place of kernels, and keeps what they are launched with."""

    def __init__(self):
        self.launches = []

    def __getitem__(self, grid):
        return lambda *arguments, **options: self.launches.append((arguments, options))


SCORES = [("scores", (1, 2, 4, 256), False), ("scores", (1, 2, 4, 256), True), ("causal", (1, 1, 1, 8200), True)]


@pytest.mark.parametrize(("kernels", "shape", "causal"), SCORES)
def test_scores_are_pinned_and_contract_no_exponent(h100, monkeypatch, kernels, shape, causal):
    """With a sink, the product x * scale is rounded before the maximum. Contracted with the difference, it would have one rounding less."""
    asked, kernel, x = Asked(), getattr(scores, f"forward_{kernels}"), torch.empty(shape, dtype=torch.bfloat16)
    for name in ("forward", "backward"):
        monkeypatch.setattr(scores, f"{name}_{kernels}", asked)
    monkeypatch.setattr(scores, "_hopper", lambda device: True)
    monkeypatch.setattr(scores, "LEAST_CAUSAL_ROWS", 1)
    sink, share = (torch.empty(shape[1]), torch.empty(shape[:3])) if kernels == "scores" else (None, None)
    scores.launch_forward(x, None, sink, x, share, 0.125, causal)
    scores.launch_backward(x, x, share, x, share, 0.125, causal)
    assert [options["enable_fp_fusion"] for _, options in asked.launches] == [True, True]
    (arguments, options), _ = asked.launches
    operands = [cards.Operand(one.dtype, 16) if isinstance(one, torch.Tensor) else one for one in arguments]
    assert {*exponents(cards.compiled(h100, kernel, operands, (), options).asm["ptx"])} == {"mul.f32"}


@pytest.mark.parametrize(("dtype", "N"), [(torch.float32, 7), (torch.float32, 32), (torch.bfloat16, 31), (torch.bfloat16, 64)])
def test_dots_of_lanes_contract_no_product(h100, monkeypatch, dtype, N):
    """As for entropies: the lanes of a row write its dot to one place. The last case moves words of two elements."""
    asked, x, share = Asked(), torch.empty(1, 9, 9, N, dtype=dtype), torch.empty(1, 9, 9)
    monkeypatch.setattr(scores, "backward_scores", asked)
    scores.launch_backward(x, x, share, x, share, 0.125, False)
    ((arguments, options),) = asked.launches
    operands = [cards.Operand(one.dtype, one.element_size()) if isinstance(one, torch.Tensor) else one for one in arguments]
    found = cards.compiled(h100, BACKWARD_SCORES, operands, (), options)
    assert_sums_of_lanes_contract_no_product(found.asm["ptx"])
