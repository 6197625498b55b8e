"""The Triton operators on a GPU: compiled, captured and packaged."""

import itertools

import pytest
import torch
import torch.utils.cpp_extension
from operators import LOG_PAIRS, LONG, OPS, PAIRS, TOLERANCE, both, close, gradient, randn, run_and_differentiate
from sampled import sampled
from softbench.kernels.common.cuda_toolkit import cuda_home
from softbench.kernels.triton import log_softmax, softmax, traceable, user_defined
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor.utils import run_and_get_code

from softbench.backends import torch_library
from softbench.core.case import Case, Direction
from softbench.core.toolchain import packaging_compiler

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.usefixtures("fresh_compiler")]


def agree(function, x):
    dy = torch.randn_like(x)
    expected = run_and_differentiate(lambda x: torch.softmax(x.double(), -1), x, dy.double())
    for got, want in zip(run_and_differentiate(function, x, dy), expected, strict=True):
        torch.testing.assert_close(got.double(), want.double(), rtol=1e-5, atol=1e-6)


@both
@pytest.mark.parametrize("N", [1, 300, 4096, 10_000, LONG])
def test_operator_compiles_whole_with_its_gradient_for_a_static_shape(pair, N):
    forward, _ = pair
    compiled = torch.compile(lambda x: forward(x, -1), fullgraph=True, dynamic=False)
    agree(compiled, randn(37, N))


@pytest.mark.parametrize("N", [300, LONG])
def test_log_softmax_compiles_whole_with_its_gradient(N):
    x, dy = randn(37, N), randn(37, N)
    expected = run_and_differentiate(lambda x: torch.log_softmax(x.double(), -1), x, dy.double())
    for forward, _ in LOG_PAIRS.values():
        torch._dynamo.reset()
        compiled = torch.compile(lambda x, forward=forward: forward(x, -1), fullgraph=True)
        for got, want in zip(run_and_differentiate(compiled, x, dy), expected, strict=True):
            torch.testing.assert_close(got.double(), want.double(), rtol=1e-5, atol=1e-4)


def test_dynamic_shapes_compile_once_for_each_range_of_columns():
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(lambda x: softmax(x, -1), fullgraph=True, dynamic=True, backend=counter)
    for M, N in itertools.product((3, 64, 4097), (300, 257, 511, 512)):
        x = randn(M, N)
        close(compiled(x), torch.softmax(x, -1))
    assert counter.frame_count == 1
    for M, N in itertools.product((3, 64), (5, 128, 513, 2049, 4096, 4097, 8192, 9217, LONG)):
        agree(compiled, randn(M, N))
    assert counter.frame_count <= 2 * 6  # without a gradient and with one


@pytest.mark.parametrize("N", [300, 4096, LONG])
def test_a_compiled_graph_launches_one_kernel_and_copies_nothing(N):
    x, dy = randn(37, N), randn(37, N)
    forward, backward = PAIRS["triton_op"]
    for function, given in ((lambda x: forward(x, -1), (x,)), (lambda dy, y: backward(dy, y, -1), (dy, x))):
        _, (code,) = run_and_get_code(torch.compile(function, fullgraph=True, dynamic=False), *given)
        body = code[code.index("def call(") :]
        traced = N * x.element_size() * len(given) <= traceable.LONG_ROW
        assert body.count(".run(") == body.count("empty_strided_cuda(") == int(traced)
        assert body.count("triton_softmax_opaque") >= int(not traced)


TRACED = [(M, N) for N in (1, 8, 64, 100, 197, 781, 1000, 2048, 4096, 5003, 8192, 9216) for M in (1, 37, 4096 if N > 1000 else 40_000)]


@pytest.mark.parametrize(("part", "dtype"), enumerate([torch.float32, torch.bfloat16, torch.float16]))
def test_traced_kernels_agree_with_torch(part, dtype):
    """Each length of rows with each dtype, and with another number of rows in each."""
    forward, backward = PAIRS["triton_op"]
    for number, (M, N) in enumerate(TRACED):  # the larger ones keep their inputs in L2
        if (number + number // 3) % 3 != part:
            continue
        torch._dynamo.reset()
        x, dy = randn(M, N, dtype=dtype), randn(M, N, dtype=dtype)
        y = torch.compile(lambda x: forward(x, -1), fullgraph=True, dynamic=False)(x)
        close(y, torch.softmax(x.double(), -1), dtype)
        dx = torch.compile(lambda dy, y: backward(dy, y, -1), fullgraph=True, dynamic=False)(dy, y)
        torch.testing.assert_close(dx.double(), gradient(dy, y), rtol=2 * TOLERANCE[dtype], atol=2 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("N", [128, 5003])
def test_views_at_odd_addresses_inside_a_graph_are_right(dtype, N):
    """A view's address is not a graph input's, so Inductor does not align it."""
    compiled = torch.compile(lambda base: softmax(base[1 : 12 * N + 1].view(12, N), -1), fullgraph=True, dynamic=False)
    base = randn(12 * N + 64, dtype=dtype)
    close(compiled(base), torch.softmax(base[1 : 12 * N + 1].view(12, N).double(), -1), dtype)


def test_the_raw_kernels_compile_whole_and_agree():
    for dtype, N in itertools.product((torch.float32, torch.bfloat16), (300, 4096, 5003, LONG)):
        torch._dynamo.reset()
        x, dy = randn(37, N, dtype=dtype), randn(37, N, dtype=dtype)
        y = torch.compile(user_defined.forward, fullgraph=True, dynamic=False)(x)
        close(y, torch.softmax(x.double(), -1), dtype)
        dx = torch.compile(user_defined.backward, fullgraph=True, dynamic=False)(dy, y)
        torch.testing.assert_close(dx.double(), gradient(dy, y), rtol=2 * TOLERANCE[dtype], atol=2 * TOLERANCE[dtype])


def test_compiled_graphs_take_tensors_of_any_alignment():
    compiled = torch.compile(lambda x: softmax(x, -1), fullgraph=True, dynamic=False)
    base = randn(12 * 128 + 1)
    for x in (base[:-1].view(12, 128), base[1:].view(12, 128)):
        close(compiled(x), torch.softmax(x, -1))


@both
@pytest.mark.parametrize("N", [300, LONG])
def test_a_cuda_graph_replays_the_operator_on_fresh_input(pair, N):
    forward, backward = pair
    x, dy = randn(64, N), randn(64, N)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        backward(dy, forward(x, -1), -1)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = forward(x, -1)
        dx = backward(dy, y, -1)
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        dy.copy_(torch.randn_like(dy))
        graph.replay()
        close(y, torch.softmax(x, -1))
        torch.testing.assert_close(dx.double(), gradient(dy, y), rtol=1e-5, atol=1e-7)


@both
@pytest.mark.parametrize("N", [300, LONG])
def test_operator_runs_under_inductors_cuda_graphs(pair, N):
    forward, _ = pair
    compiled = torch.compile(lambda x: forward(x, -1), fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        agree(lambda x: compiled(x).clone(), randn(64, N))  # the next step overwrites a graph's output


class Forward(torch.nn.Module):
    def forward(self, x):
        return softmax(x, -1)


class Every(torch.nn.Module):
    def forward(self, x, dy):
        y, log_y = softmax(x, -1), log_softmax(x, -1)
        return y, log_y, OPS.triton_softmax_backward(dy, y, -1), OPS.triton_log_softmax_backward(dy, log_y, -1)


@pytest.fixture
def toolkit(monkeypatch):
    """AOTInductor's C++ includes CUDA's headers. torch looks in the folder above `nvcc`, which may be a script elsewhere."""
    if (home := cuda_home()) is None:
        pytest.skip("no CUDA toolkit")
    monkeypatch.setenv("CUDA_HOME", str(home))
    monkeypatch.setattr(torch.utils.cpp_extension, "CUDA_HOME", str(home))
    with torch._inductor.config.patch({"cpp.cxx": (None, packaging_compiler())}):
        yield


def packaged(module, given, folder, shapes=None):
    exported = torch.export.export(module, given, dynamic_shapes=shapes)
    path = torch._inductor.aoti_compile_and_package(exported, package_path=str(folder / "softmax.pt2"))
    return torch._inductor.aoti_load_package(path)


PACKAGED = [(N, dtype) for N in (300, 5003, LONG, 70_000) for dtype in (torch.float32, torch.bfloat16)]


@pytest.mark.parametrize(("N", "dtype"), sampled(PACKAGED, lambda *one: PACKAGED.index(one) % 4 in (0, 3)))
def test_aotinductors_package_gives_the_same_result(N, dtype, tmp_path, toolkit):
    loaded = packaged(Every(), (randn(37, N, dtype=dtype), randn(37, N, dtype=dtype)), tmp_path)
    x, dy = randn(37, N, dtype=dtype), randn(37, N, dtype=dtype)
    y, log_y, dx, log_dx = loaded(x, dy)
    close(y, torch.softmax(x.double(), -1), dtype)
    close(log_y, torch.log_softmax(x.double(), -1), dtype)
    torch.testing.assert_close(dx, OPS.triton_softmax_backward(dy, y, -1), rtol=TOLERANCE[dtype], atol=1e-6)
    torch.testing.assert_close(log_dx, OPS.triton_log_softmax_backward(dy, log_y, -1), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_calls_of_the_backends_package_do_not_wait(toolkit):
    """Each would wait on the host for the end of the last one, if several threads could call it."""
    call, x = torch_library.aoti.prepare(Case(64, 512, "fp32", Direction.FORWARD, "cuda")), randn(64, 512)
    call(x)
    torch.cuda.synchronize()
    asleep = torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)  # cycles, about a second
    asleep.record()
    for _ in range(3):
        y = call(x)
    assert not asleep.query()
    close(y, torch.softmax(x.double(), -1), torch.float32)


def test_a_package_takes_the_range_of_shapes_of_its_export(tmp_path, toolkit):
    M, N = torch.export.Dim("M", max=100_000), torch.export.Dim("N", min=129, max=512)
    loaded = packaged(Forward(), (randn(37, 300),), tmp_path, {"x": {0: M, 1: N}})
    for shape in ((37, 300), (2, 129), (5000, 512)):
        x = randn(*shape)
        close(loaded(x), torch.softmax(x, -1))


def test_a_package_of_long_rows_takes_any_number_of_them(tmp_path, toolkit):
    loaded = packaged(Forward(), (randn(37, 70_000),), tmp_path, {"x": {0: torch.export.Dim("M", max=100_000)}})
    for M in (2, 37, 1000):
        x = randn(M, 70_000)
        close(loaded(x), torch.softmax(x, -1))
