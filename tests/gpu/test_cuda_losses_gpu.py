"""The CUDA kernels of cross entropy and logprob on a GPU, against the float64 reference and its derived bounds."""

import pytest
import torch
from scaled import graded
from softbench.kernels.cuda import build, losses
from softbench.kernels.cuda.launch import TIERS, Plan

from softbench.backends.cuda import backend as cuda
from softbench.core.outcome import Grade
from softbench.ops.registry import operation

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900), pytest.mark.skipif(build.nvcc() is None, reason="no nvcc on this machine")]

OPTIONS = (
    "cross_entropy",
    "cross_entropy(z_loss=0.0001)",
    "cross_entropy(label_smoothing=0.1,z_loss=0.0001,ignore_index=5)",
    "cross_entropy(label_smoothing=0.1,softcap=30)",
    "cross_entropy(softcap=30)",
    "logprob",
)
SHAPES = (
    *((300, 9), (200, 64), (150, 257), (66, 1000), (2000, 1021), (33, 4097), (500, 8192)),
    *((3, 32000), (200, 50257), (1, 128256), (9, 128256), (2, 1 << 20)),
)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.mark.parametrize("op", OPTIONS)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_random_and_structured_rows_are_within_the_strict_bounds(op, dtype):
    wrong = []
    for direction in operation(op).directions:
        for shape in SHAPES if op in ("cross_entropy", "logprob") else SHAPES[::3]:
            found = graded(cuda.prepare, op, dtype, direction, device="cuda", shape=shape)
            if found.grade is not Grade.PASS:
                wrong.append((direction.value, shape, found.grade, found.detail))
    assert wrong == []


def rows(M, N, dtype, pad=0, offset=0):
    """M rows of N random logits, `N + pad` apart, that begin `offset` elements after an aligned address; and targets."""
    memory = torch.full((M * (N + pad) + offset,), torch.nan, device="cuda", dtype=dtype)
    x = memory.as_strided((M, N), (N + pad, 1), offset)
    x.copy_(3 * torch.randn(M, N, device="cuda"))
    target = torch.randint(N, (M,), device="cuda")
    target[::5] = -100
    return x, target


def wanted(x, target, **options):
    """(loss, lse, dx) in float64, by autograd."""
    z = x.double().requires_grad_()
    loss = torch.nn.functional.cross_entropy(z, target, reduction="none", **options)
    loss.sum().backward()
    return loss.detach(), torch.logsumexp(z.detach(), -1), z.grad


def close(found, expected, dtype=torch.float32):
    rtol = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=rtol, atol=2e-6)


LAYOUTS = [
    *((5, 1000, 8, 0), (40, 333, 3, 1), (7, 50257, 0, 0), (7, 50257, 5, 3)),
    *((300, 4096, 64, 0), (4, 128256, 1, 7), (2, 700_001, 2, 1), (64, 32000, 8, 8)),
]
"""M, N, elements between rows, and elements before the first row."""
PLANNED = (
    *((64, 120), (64, 700), (999, 2048), (3000, 3333), (700, 16384)),
    *((3, 16384), (40, 128256), (1, 128256), (3, 400_000), (2, 2_000_000)),
)
HAND_MADE = (
    Plan(8, 4, 128, 1),
    Plan(4, 4, 256, 1),
    Plan(4, 8, 128, 2),
    Plan(4, 4, 64, 7),
    Plan(4, 4, 256, 100),
    Plan(3, 4, 64, 2),
    Plan(3, 4, 256, 16),
)
"""Of the forward: a warp a row, and one CTA or several a row."""
MOST_SLOTS = 1 << 17
"""COUNTED_SLOTS of row_statistics.cuh."""


@dtypes
@pytest.mark.parametrize(("M", "N", "pad", "offset"), LAYOUTS)
def test_rows_anywhere_in_memory_and_gradients_in_place(dtype, M, N, pad, offset):
    x, target = rows(M, N, dtype, pad, offset)
    loss, lse, dx = wanted(x, target)
    found_loss, found_lse = losses.cross_entropy_forward(x, target)
    close(found_loss, loss), close(found_lse, lse)
    ones = torch.ones(M, device="cuda")
    for out in (None, rows(M, N, dtype, pad, offset)[0], rows(M, N, dtype, pad + 1, offset + 1)[0]):
        close(losses.cross_entropy_backward(x, target, found_lse, ones, out=out), dx, dtype)
        fused_loss, fused_dx = losses.cross_entropy_fused(x, target, out=out)
        close(fused_loss, loss), close(fused_dx, dx, dtype)
        if out is not None and pad:  # the elements between the rows are as before
            assert torch.as_strided(out, (M - 1, 1), (out.stride(0), 1), out.storage_offset() + N).isnan().all()
    smoothed_loss, _, smoothed_dx = wanted(x, target, label_smoothing=0.1)

    def copy():
        return rows(M, N, dtype, pad, offset)[0].copy_(x)

    close(losses.cross_entropy_backward(y := copy(), target, found_lse, ones, out=y), dx, dtype)
    fused_loss, result = losses.cross_entropy_fused(y := copy(), target, out=y)
    assert result is y
    close(fused_loss, loss), close(y, dx, dtype)
    fused_loss, result = losses.cross_entropy_fused(y := copy(), target, label_smoothing=0.1, out=y)
    close(fused_loss, smoothed_loss), close(y, smoothed_dx, dtype)


@dtypes
def test_every_plan_gives_the_same_results(dtype):
    launched = set()
    for M, N in PLANNED:
        x, target = rows(M, N, dtype)
        loss, _, dx = wanted(x, target)
        plan = Plan(-1)
        found = losses.cross_entropy_fused(x, target, plan=plan)
        close(found[0], loss), close(found[1], dx, dtype)
        launched.add(TIERS[plan.tier])
        if plan.max_polls:  # each CTA reduces the whole row itself
            plan.max_polls = -1
            found = losses.cross_entropy_fused(x, target, plan=plan)
            close(found[0], loss), close(found[1], dx, dtype)
        for hand in (one for one in HAND_MADE if M * one.per_row <= MOST_SLOTS):
            close(losses.cross_entropy_forward(x, target, plan=hand)[0], loss)
        assert losses.logprob_forward(x, target.clamp(min=0), plan=Plan(4, 4, 256, 5))[1].isfinite().all()
    assert launched >= {"sub_warp", "block", "cluster"} and launched & {"split", "split_bulk"}, launched


@dtypes
def test_rows_of_nan_and_targets_out_of_range(dtype):
    for N in (40, 1000, 20000):
        x, target = rows(6, N, dtype)
        target[:] = N // 2
        target[0], target[1], target[2], target[3] = -100, N, -7, 2**31 - 1
        x[0] = torch.nan
        x[4, 3] = torch.nan
        x[5] = -torch.inf
        loss, dx = losses.cross_entropy_fused(x, target)
        again, lse = losses.cross_entropy_forward(x, target)
        other = losses.cross_entropy_backward(x, target, lse, torch.ones(6, device="cuda"))
        assert loss[0] == again[0] == 0 and loss[1:].isnan().all() and again[1:].isnan().all()
        assert lse[5] == -torch.inf and lse[1:4].isfinite().all()
        for one in (dx, other):
            assert (one[0] == 0).all() and one[1:].isnan().all(), N


def test_two_streams_and_a_graph_share_no_counters():
    x, target = rows(12, 128256, torch.bfloat16)
    loss, lse, dx = wanted(x, target)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    found = []
    for _ in range(40):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append((*losses.cross_entropy_forward(x, target), *losses.cross_entropy_fused(x, target)))
    torch.cuda.synchronize()
    for one_loss, one_lse, fused_loss, fused_dx in found:
        close(one_loss, loss), close(one_lse, lse), close(fused_loss, loss)
        close(fused_dx, dx, torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = (*losses.cross_entropy_forward(x, target), losses.cross_entropy_fused(x, target)[1])
    for _ in range(3):
        for tensor in captured:
            tensor.zero_()
        graph.replay()
        close(captured[0], loss), close(captured[1], lse), close(captured[2], dx, torch.bfloat16)


@pytest.mark.alone  # needs 15 GB at once
def test_more_than_2_to_the_31_elements():
    M, N = 2**13 + 8, 2**18
    x = torch.empty(M, N, dtype=torch.bfloat16, device="cuda")
    for part in x.split(1024):
        part.normal_()
    target = torch.randint(N, (M,), device="cuda")
    last = slice(M - 5, M)
    loss, lse, dx = wanted(x[last], target[last])
    found_loss, found_lse = losses.cross_entropy_forward(x, target)
    close(found_loss[last], loss), close(found_lse[last], lse)
    fused = losses.cross_entropy_fused(x, target)
    close(fused[0][last], loss), close(fused[1][last], dx, torch.bfloat16)
    ones = torch.ones(M, device="cuda")
    close(losses.cross_entropy_backward(x, target, found_lse, ones, out=fused[1])[last], dx, torch.bfloat16)
    logprob, entropy, lse_again = losses.logprob_forward(x, target)
    close(logprob[last], -loss), close(lse_again[last], lse)
    assert entropy.isfinite().all()
    losses.logprob_backward(x, target, lse_again, entropy, ones, ones, out=fused[1])
    assert fused[1][last].isfinite().all()
