"""The CUDA operators of softmax and log_softmax on a GPU: eager, differentiated, compiled, captured, on other streams."""

import csv
import itertools

import pytest
import torch
from operators import EVERY_TEST, LAYOUTS, LONG, SHAPES_AND_LONG, TOLERANCE, close, close_gradient, randn, run_and_differentiate
from softbench.kernels.cuda import build, launch, log_softmax, softmax
from torch._dynamo.testing import CompileCounterWithBackend
from torch.library import opcheck

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(build.nvcc() is None, reason="no nvcc on this machine"),
    pytest.mark.usefixtures("fresh_compiler"),
]

OPS = torch.ops.softbench
FORWARD, BACKWARD = OPS.cuda_softmax.default, OPS.cuda_softmax_backward.default
LOG_FORWARD, LOG_BACKWARD = OPS.cuda_log_softmax.default, OPS.cuda_log_softmax_backward.default
SHARED = (2, 1 << 20)  # CTAs anywhere on the device share a row: the launch needs a workspace
SHAPES = [*SHAPES_AND_LONG, (SHARED, 1)]
NARROW = (torch.float16, torch.bfloat16)
RESULTS = [(torch.float32, None), *((dtype, result) for dtype in NARROW for result in (None, torch.float32))]

typed = pytest.mark.parametrize(("dtype", "result"), RESULTS)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", NARROW)
def test_opcheck_passes_on_any_strides_and_wider_results(layout, dtype):
    x = LAYOUTS[layout](dtype)
    y = torch.softmax(x, 1, dtype=torch.float32)
    opcheck(FORWARD, (x, 1), test_utils=EVERY_TEST)
    opcheck(FORWARD, (x, 1, torch.float32), test_utils=EVERY_TEST)
    opcheck(BACKWARD, (x, y.to(dtype), 1), test_utils=EVERY_TEST)
    opcheck(BACKWARD, (x.float(), y, 1, dtype), test_utils=EVERY_TEST)


@typed
def test_the_kernels_fill_fresh_contiguous_memory_with_correct_results(dtype, result):
    cases = [(randn(*shape, dtype=dtype), dim) for shape, dim in SHAPES]
    cases += [(make(dtype), dim) for make in LAYOUTS.values() for dim in (0, 1, -1)]
    for x, dim in cases:
        y = softmax(x, dim, result)
        dy = torch.randn_like(y)
        dx = BACKWARD(dy, y, dim, dtype)
        close(y, torch.softmax(x.double(), dim), result or dtype)
        close_gradient(dx, dy, y, dim)
        strides = torch.softmax(x, dim).stride()
        assert (y.dtype, y.shape, y.stride()) == (result or dtype, x.shape, strides)
        assert (dx.dtype, dx.shape, dx.stride()) == (dtype, x.shape, strides)
        assert not x.numel() or len({tensor.untyped_storage().data_ptr() for tensor in (x, dy, y, dx)}) == 4


def test_a_wider_result_and_its_gradient_take_no_extra_memory():
    x, dy = randn(4096, 4096, dtype=torch.bfloat16), randn(4096, 4096)
    for call in (lambda: softmax(x, dtype=torch.float32), lambda: BACKWARD(dy, dy, -1, torch.bfloat16)):
        call()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = call()
        torch.cuda.synchronize()
        assert torch.cuda.max_memory_allocated() - before <= result.nbytes + (1 << 20)


@typed
def test_log_softmax_is_right_on_any_shape_and_strides(dtype, result):
    cases = [(randn(*shape, dtype=dtype), dim) for shape, dim in SHAPES]
    cases += [(make(dtype), dim) for make in LAYOUTS.values() for dim in (0, 1, -1)]
    for x, dim in cases:
        x = x.detach().requires_grad_()
        y = log_softmax(x, dim, result)
        dy = torch.randn_like(y)
        (dx,) = torch.autograd.grad(y, x, dy)
        assert (y.dtype, dx.dtype, y.shape, dx.shape) == (result or dtype, dtype, x.shape, x.shape)
        near_log(y, torch.log_softmax(x.double(), dim))
        wide_dy, p = dy.double(), y.detach().double().exp()
        expected = wide_dy - p * wide_dy.sum(dim, keepdim=True)
        terms = wide_dy.abs() + p * wide_dy.abs().sum(dim, keepdim=True)
        assert ((dx.double() - expected).abs() <= TOLERANCE[dx.dtype] * terms).all()


def near_log(y, expected):
    """Within the rounding of y's dtype, relative to 1 and to y."""
    assert ((y.double() - expected).abs() <= TOLERANCE[y.dtype] * (1 + expected.abs())).all()


def test_log_softmax_has_narrower_gradients_and_compiles():
    x, dy = randn(37, 781), randn(37, 781)
    y = torch.log_softmax(x, -1).requires_grad_()
    opcheck(LOG_BACKWARD, (dy.requires_grad_(), y, -1, torch.bfloat16), test_utils=EVERY_TEST, rtol=2e-2, atol=2e-2)
    for dynamic in (False, True):
        compiled = torch.compile(log_softmax, fullgraph=True, dynamic=dynamic)
        for M, N in ((37, 300), (3, LONG)):
            x, dy = randn(M, N), randn(M, N)
            for got, want in zip(run_and_differentiate(compiled, x, dy), run_and_differentiate(log_softmax, x, dy), strict=True):
                assert torch.equal(got, want)


@pytest.mark.parametrize("shape", [(5, 7), (37, 781), (4096, 1024), (3, LONG), SHARED])
@typed
def test_scaled_rows_are_those_of_the_scaled_input(dtype, result, shape):
    for scale in (0.7, 3, torch.rand(shape[0], device="cuda") + 0.5):
        factor = scale.double()[:, None] if isinstance(scale, torch.Tensor) else scale
        x = randn(*shape, dtype=dtype).requires_grad_()
        y = launch.softmax(x, dtype=result, scale=scale)
        dy = torch.randn_like(y)
        (dx,) = torch.autograd.grad(y, x, dy)
        assert (y.dtype, dx.dtype) == (result or dtype, dtype)
        close(y, torch.softmax(x.double() * factor, -1), y.dtype)
        close_gradient(dx, dy, y.detach(), factor=factor)


@pytest.mark.parametrize(("shape", "dim"), [((5, 7), -1), ((37, 781), -1), ((3, 40, 50), 1), ((3, LONG), -1)])
def test_second_derivatives_agree_with_torchs(shape, dim):
    x, dy, g = randn(*shape), randn(*shape), randn(*shape)

    def twice(function, dtype):
        given = [tensor.to(dtype).requires_grad_() for tensor in (x, dy)]
        (dx,) = torch.autograd.grad(function(given[0], dim), given[0], given[1], create_graph=True)
        return dx.detach(), *torch.autograd.grad(dx, given, g.to(dtype))

    exact, torchs = twice(torch.softmax, torch.float64), twice(torch.softmax, torch.float32)
    for got, like, want in zip(twice(softmax, torch.float32), torchs, exact, strict=True):
        allowed = 4 * (like.double() - want).abs().max() + 1e-6 * want.abs().max()
        assert (got.double() - want).abs().max() <= allowed


def agree(function, x, result=None):
    dy = torch.randn(x.shape, device="cuda", dtype=result or x.dtype)
    y, dx = run_and_differentiate(function, x, dy)
    assert (y.dtype, dx.dtype) == (result or x.dtype, x.dtype)
    close(y, torch.softmax(x.double(), -1), y.dtype)
    close_gradient(dx, dy, y)


@typed
@pytest.mark.parametrize("shape", [(37, 1), (37, 300), (37, 4096), (37, LONG), SHARED])
def test_static_shapes_compile_without_graph_breaks(dtype, result, shape):
    agree(torch.compile(lambda x: softmax(x, -1, result), fullgraph=True, dynamic=False), randn(*shape, dtype=dtype), result)


def test_dynamic_shapes_are_compiled_once():
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(lambda x: softmax(x), fullgraph=True, dynamic=True, backend=counter)
    for M, N in itertools.product((3, 64, 4097), (5, 128, 300, 4096, LONG)):
        agree(compiled, randn(M, N))
    assert counter.frame_count == 1


def needs_a_workspace(x):
    plan = launch.Plan(-1)
    launch.launch_forward(x, torch.empty_like(x), plan=plan)
    return launch.TIERS[plan.tier] in ("split", "split_bulk") and plan.per_row > 1


@pytest.mark.parametrize("shape", [(64, 300), (64, LONG), SHARED])
def test_a_cuda_graph_replays_it_on_fresh_input(shape):
    x, dy = randn(*shape), randn(*shape)
    assert needs_a_workspace(x) or shape != SHARED
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        BACKWARD(dy, softmax(x), -1)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = softmax(x)
        dx = BACKWARD(dy, y, -1)
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        dy.copy_(torch.randn_like(dy))
        graph.replay()
        softmax(torch.randn_like(x))  # the stream's workspace and the graph's are different
        close(y, torch.softmax(x.double(), -1))
        close_gradient(dx, dy, y)


@pytest.mark.parametrize("shape", [(64, 300), (64, LONG), SHARED])
def test_it_runs_under_inductors_cuda_graphs(shape):
    launch._workspaces.clear()  # so that the graph's warm-up allocates the first one
    compiled = torch.compile(lambda x: softmax(x, -1), fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        agree(lambda x: compiled(x).clone(), randn(*shape))  # the next step overwrites a graph's result


def test_concurrent_streams_have_separate_workspaces():
    streams = [torch.cuda.Stream() for _ in range(4)]
    given = [randn(*SHARED) for _ in streams]
    torch.cuda.synchronize()
    for _ in range(5):
        results = []
        for stream, x in zip(streams, given, strict=True):
            with torch.cuda.stream(stream):
                results.append(softmax(x))
        torch.cuda.synchronize()
        for x, y in zip(given, results, strict=True):
            close(y, torch.softmax(x.double(), -1))


def test_cuda_op_is_correct_and_measured_in_every_direction(cli):
    arguments = ("--M", "512", "--N", "781,20000", "--dtype", "bf16", "--direction", "forward,backward,both", "--timeout", "build=300")
    done = cli("run", "--backends", "cuda,cuda-op", *arguments, "--quick", timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    with (cli.folder / "results" / "latest.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["backend"] != "copy"]
    assert {row["backend"] for row in rows} == {"cuda", "cuda-op"}
    assert {(row["status"], row["timer"]) for row in rows} == {("ok", "queued")}
    assert {row["class"] for row in rows if row["direction"] != "both"} == {"pass"}


@pytest.mark.parametrize("N", [32_768, 32_771, 200_001, 1 << 20])
@typed
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_few_long_rows_treat_nan_and_infinity_as_torch(name, dtype, result, N):
    """Threads of few rows cache exponentials and find maxima among integers, so special values take another path."""
    x = randn(8, N, dtype=dtype)
    x[1, 5], x[2, N - 1], x[3, :4096], x[4], x[5, 7] = float("nan"), float("nan"), -float("inf"), -float("inf"), float("inf")
    x[6], x[7] = -0.0, -1e4
    function, torchs = {"softmax": (softmax, torch.softmax), "log_softmax": (log_softmax, torch.log_softmax)}[name]
    expected = torchs(x.double(), -1).to(result or dtype)
    atol = TOLERANCE[dtype] * (1 if name == "log_softmax" else 1e-2 / N**0.5)
    torch.testing.assert_close(function(x, -1, result), expected, rtol=TOLERANCE[dtype], atol=atol, equal_nan=True)
