"""The softmax operator where its kernels run: eager, differentiated, compiled, captured, packaged."""

import csv
import itertools
import json

import pytest
import torch
import torch.utils.cpp_extension
from softbench.kernels.triton import operator, softmax, traced
from subclass import Wrapped
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor.utils import run_and_get_code
from torch.library import opcheck
from torch.utils.flop_counter import FlopCounterMode

from softbench.toolchain import cuda_home, packaging_compiler

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

OPS = torch.ops.softbench
PAIRS = {
    "triton_op": (OPS.triton_softmax.default, OPS.triton_softmax_backward.default),
    "custom_op": (OPS.triton_softmax_opaque.default, OPS.triton_softmax_opaque_backward.default),
}
EVERY_TEST = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static", "test_aot_dispatch_dynamic")
LONG = 20_000  # beyond every tile
SHAPES = [((5, 7), -1), ((5, 7), 0), ((2, 3, 4), 1), ((2, 3, 4), -3), ((6,), 0), ((), -1), ((1, 5), 0), ((4, 1, 1), 0), ((0, 3), 1)]
SHAPES += [((3, 0), 1), ((37, 781), 1), ((3, 10_000), 1), ((3, LONG), 1), ((LONG, 3), 0)]
LAYOUTS = {
    "transposed": lambda dtype: randn(7, 5, dtype=dtype).t(),
    "every second column": lambda dtype: randn(5, 14, dtype=dtype)[:, ::2],
    "expanded columns": lambda dtype: randn(5, 1, dtype=dtype).expand(5, 7),
    "expanded rows": lambda dtype: randn(1, 7, dtype=dtype).expand(5, 7),
    "row stride over N": lambda dtype: randn(12, 128, dtype=dtype)[:, :100],
    "offset by one element": lambda dtype: randn(12 * 128 + 1, dtype=dtype)[1:].view(12, 128),
    "channels-last": lambda dtype: randn(2, 3, 4, 5, dtype=dtype).to(memory_format=torch.channels_last),
}
TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}

both = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    torch.manual_seed(0)


def randn(*shape, dtype=torch.float32):
    return torch.randn(shape, device="cuda", dtype=dtype)


def gradient(dy, y, dim=-1):
    return y.double() * (dy.double() - (dy.double() * y.double()).sum(dim, keepdim=True))


def close(got, expected, dtype=torch.float32):
    torch.testing.assert_close(got.double(), expected.double(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * 1e-2)


@both
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_opcheck_passes_with_all_its_tests(pair, shape, dim):
    forward, backward = pair
    x, dy = (randn(*shape).requires_grad_() for _ in range(2))
    # Nearly a softmax. What is none sums to anything, and then two orders of summation differ by more than opcheck's tolerance. Of what is
    # one, dx sums to 0, and opcheck differentiates the absolute value of that sum, whose sign is then rounding's.
    y = (0.9 * torch.softmax(randn(*shape), dim)).requires_grad_()
    opcheck(forward, (x, dim), test_utils=EVERY_TEST)
    opcheck(backward, (dy, y, dim), test_utils=EVERY_TEST)


@both
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_opcheck_passes_on_any_strides(pair, layout, dtype):
    forward, backward = pair
    x = LAYOUTS[layout](dtype)
    opcheck(forward, (x, 1), test_utils=EVERY_TEST)
    opcheck(backward, (x, torch.softmax(x, 1), 1), test_utils=EVERY_TEST)


@both
@pytest.mark.parametrize(("shape", "dim"), [((5, 7), -1), ((3, 4, 5), 1), ((), 0), ((2, 70), -1)])
def test_gradients_of_both_orders_are_those_of_finite_differences(pair, shape, dim):
    forward, backward = pair
    x, dy, y = (randn(*shape, dtype=torch.float64).requires_grad_() for _ in range(3))
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda x: forward(x, dim), (x,), check_batched_grad=True)
        assert check(lambda dy, y: backward(dy, y, dim), (dy, y), check_batched_grad=True)


def test_gradients_of_both_orders_beyond_a_tile():
    x = (randn(2, LONG, dtype=torch.float64) * 3).requires_grad_()
    assert torch.autograd.gradcheck(softmax, (x,), fast_mode=True, atol=1e-9)
    assert torch.autograd.gradgradcheck(softmax, (x,), fast_mode=True, atol=1e-9)


@pytest.mark.parametrize("dtype", operator.DTYPES)
def test_the_kernels_run_and_are_right_in_contiguous_memory_of_their_own(dtype, monkeypatch):
    launches = []
    for name in ("launch_forward", "launch_backward"):
        launch = getattr(operator, name)
        monkeypatch.setattr(operator, name, lambda *given, launch=launch: (launches.append(given), launch(*given)))
    cases = [(randn(*shape, dtype=dtype), dim) for shape, dim in SHAPES]
    cases += [(make(dtype), dim) for make in LAYOUTS.values() for dim in (0, 1, -1)]
    for x, dim in cases:
        for forward, backward in PAIRS.values():
            launches.clear()
            y = forward(x, dim)
            dy = torch.randn_like(x)
            dx = backward(dy, y, dim)
            assert len(launches) == (2 if x.numel() else 0)
            close(y, torch.softmax(x.double(), dim), dtype)
            scale = y.double() * (dy.double().abs() + (dy.double() * y.double()).abs().sum(dim, keepdim=True))
            step = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps  # between subnormals
            assert ((dx.double() - gradient(dy, y, dim)).abs() <= TOLERANCE[dtype] * scale + step).all()
            for out in (y, dx):
                assert (out.dtype, out.shape, out.stride()) == (dtype, x.shape, torch.softmax(x, dim).stride())
            assert not x.numel() or len({tensor.untyped_storage().data_ptr() for tensor in (x, dy, y, dx)}) == 4


def run_and_differentiate(function, x, dy):
    x = x.detach().requires_grad_()
    y = function(x)
    return y.detach(), *torch.autograd.grad(y, x, dy)


def agree(function, x):
    dy = torch.randn_like(x)
    expected = run_and_differentiate(lambda x: torch.softmax(x.double(), -1), x, dy.double())
    for got, want in zip(run_and_differentiate(function, x, dy), expected, strict=True):
        torch.testing.assert_close(got.double(), want.double(), rtol=1e-5, atol=1e-6)


@both
@pytest.mark.parametrize("N", [1, 300, 4096, 10_000, LONG])
def test_it_compiles_whole_with_its_gradient_for_a_static_shape(pair, N):
    forward, _ = pair
    compiled = torch.compile(lambda x: forward(x, -1), fullgraph=True, dynamic=False)
    agree(compiled, randn(37, N))


def test_dynamic_shapes_are_compiled_once_a_range_of_columns():
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(lambda x: softmax(x, -1), fullgraph=True, dynamic=True, backend=counter)
    for M, N in itertools.product((3, 64, 4097), (300, 257, 511, 512)):
        x = randn(M, N)
        close(compiled(x), torch.softmax(x, -1))
    assert counter.frame_count == 1
    for M, N in itertools.product((3, 64), (5, 128, 513, 4096, 8192, 8193, 16_384, LONG)):
        agree(compiled, randn(M, N))
    assert counter.frame_count <= 2 * (len(traced.RUNGS) + 1)  # without a gradient and with one


@pytest.mark.parametrize("N", [300, LONG])
def test_a_compiled_graph_launches_one_kernel_and_copies_nothing(N):
    x, dy = randn(37, N), randn(37, N)
    forward, backward = PAIRS["triton_op"]
    for function, given in ((lambda x: forward(x, -1), (x,)), (lambda dy, y: backward(dy, y, -1), (dy, x))):
        _, (code,) = run_and_get_code(torch.compile(function, fullgraph=True, dynamic=False), *given)
        body = code[code.index("def call(") :]
        assert body.count(".run(") == 1
        assert body.count("empty_strided_cuda(") == 1


def test_compiled_graphs_take_tensors_of_any_alignment():
    compiled = torch.compile(lambda x: softmax(x, -1), fullgraph=True, dynamic=False)
    base = randn(12 * 128 + 1)
    for x in (base[:-1].view(12, 128), base[1:].view(12, 128)):
        close(compiled(x), torch.softmax(x, -1))


@both
@pytest.mark.parametrize("N", [300, LONG])
def test_a_cuda_graph_replays_it_on_fresh_input(pair, N):
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
def test_it_runs_under_inductors_cuda_graphs(pair, N):
    forward, _ = pair
    compiled = torch.compile(lambda x: forward(x, -1), fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        agree(lambda x: compiled(x).clone(), randn(64, N))  # the next step overwrites what a graph gave


class Forward(torch.nn.Module):
    def forward(self, x):
        return softmax(x, -1)


class Backward(torch.nn.Module):
    def forward(self, dy, y):
        return OPS.triton_softmax_backward(dy, y, -1)


@pytest.fixture
def toolkit(monkeypatch):
    """AOTInductor's C++ includes CUDA's headers; torch takes the folder above `nvcc`, which may be a script elsewhere."""
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


@pytest.mark.parametrize("N", [300, LONG])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_aotinductor_packages_it_and_loads_it_with_the_same_result(N, dtype, tmp_path, toolkit):
    x, dy = randn(37, N, dtype=dtype), randn(37, N, dtype=dtype)
    y = softmax(x)
    close(packaged(Forward(), (x,), tmp_path)(x), torch.softmax(x.double(), -1), dtype)
    dx = packaged(Backward(), (dy, y), tmp_path)(dy, y)
    torch.testing.assert_close(dx, OPS.triton_softmax_backward(dy, y, -1), rtol=TOLERANCE[dtype], atol=1e-6)


def test_a_package_takes_the_range_of_shapes_it_was_exported_for(tmp_path, toolkit):
    M, N = torch.export.Dim("M", max=100_000), torch.export.Dim("N", min=129, max=512)
    loaded = packaged(Forward(), (randn(37, 300),), tmp_path, {"x": {0: M, 1: N}})
    for shape in ((37, 300), (2, 129), (5000, 512)):
        x = randn(*shape)
        close(loaded(x), torch.softmax(x, -1))


@both
def test_flops_are_counted_and_fake_tensors_launch_nothing(pair):
    forward, backward = pair
    x = randn(3, 5, 7).requires_grad_()
    with FlopCounterMode(display=False) as counter:
        forward(x, 1).sum().backward()
    assert counter.get_flop_counts()["Global"] == {forward._overloadpacket: 5 * 105, backward._overloadpacket: 4 * 105}
    with torch._subclasses.FakeTensorMode():
        fake = torch.empty(2**20, 2**20, device="cuda")  # 4 TiB
        assert forward(fake, -1).shape == fake.shape


@both
def test_tensor_subclasses_see_the_operators(pair):
    forward, backward = pair
    x, dy = randn(4, 600), randn(4, 600)
    Wrapped.calls.clear()
    wrapped = Wrapped(x).requires_grad_()
    y = forward(wrapped, -1)
    (dx,) = torch.autograd.grad(y, wrapped, Wrapped(dy))
    assert {forward, backward} <= set(Wrapped.calls)
    close(y.inner, torch.softmax(x, -1))
    torch.testing.assert_close(dx.inner.double(), gradient(dy, y.inner), rtol=1e-5, atol=1e-7)
    compiled = torch.compile(lambda x: forward(x, -1), fullgraph=True)
    close(compiled(Wrapped(x)).inner, torch.softmax(x, -1))


@both
def test_vmap_takes_it(pair):
    forward, backward = pair
    x, dy = randn(3, 40, 50), randn(3, 40, 50)
    for at, dim in itertools.product((0, 1, 2), (0, 1, -1)):
        y = torch.vmap(lambda x, dim=dim: forward(x, dim), at)(x)
        close(y, torch.vmap(lambda x, dim=dim: torch.softmax(x, dim), at)(x))
    torch.vmap(lambda dy, y: backward(dy, y, -1))(dy, x)


@both
def test_it_runs_on_the_current_stream(pair):
    forward, backward = pair
    side = torch.cuda.Stream()
    x = torch.zeros(512, 4096, device="cuda")
    fresh, dy = torch.randn_like(x), torch.randn_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.copy_(fresh)
        y = forward(x, -1)
        dx = backward(dy, y, -1)
    side.synchronize()
    close(y, torch.softmax(fresh, -1))
    torch.testing.assert_close(dx.double(), gradient(dy, y), rtol=1e-5, atol=1e-7)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_it_runs_on_its_tensors_device():
    x = torch.randn(37, 300, device="cuda:1")
    assert torch.cuda.current_device() == 0
    for function in (softmax, torch.compile(softmax, fullgraph=True)):
        torch.testing.assert_close(function(x), torch.softmax(x, -1))


def test_more_than_2_31_elements():
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GiB of device memory")
    x = torch.randn(2**15 + 1, 2**16, device="cuda", dtype=torch.bfloat16)
    for function in (softmax, torch.compile(softmax, fullgraph=True, dynamic=False)):
        y = function(x)
        close(y[-1], torch.softmax(x[-1].double(), -1), torch.bfloat16)
        del y


def test_autocast_changes_nothing():
    x = randn(4, 50, dtype=torch.bfloat16)
    with torch.autocast("cuda"):
        assert softmax(x).dtype is torch.bfloat16


DOORS = "triton-compiled,triton-op,triton-custom-op"


def test_the_backends_on_it_are_right_and_measured_in_every_direction(cli):
    arguments = ("--M", "512", "--N", "781,20000", "--dtype", "bf16", "--direction", "forward,backward,both", "--timeout", "build=300")
    done = cli("run", "--backends", f"{DOORS},triton-aoti", *arguments, "--quick", timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    with (cli.folder / "results" / "latest.csv").open() as file:
        found = {(row["backend"], row["N"], row["direction"]): row for row in csv.DictReader(file)}
    for (name, N, direction), row in found.items():
        if name == "triton-aoti" and direction == "both":
            assert (row["status"], row["reason"]) == ("skipped", "a package holds no autograd")
            continue
        assert row["status"] == "ok", (name, N, direction, row["reason"])
        assert row["timer"] == "do_bench"
        if name != "copy" and direction != "both":
            assert row["class"] == "pass", (name, N, direction)
    assert {row["build_cache"] for row in found.values() if row["backend"] == "triton-aoti" and row["status"] == "ok"} == {"cold"}


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_backends_on_it_pass_the_catalogue(cli, direction):
    done = cli("check", "--backends", DOORS, "--direction", direction, "--dtype", "fp32", "--json", "-", timeout=580)
    findings = json.loads(done.stdout)["findings"]
    assert done.returncode == 0, [
        (finding["backend"], finding["item"], finding["verdict"], finding["reason"])
        for finding in findings
        if finding["verdict"] not in ("pass", "skipped")
    ] or done.stderr
    assert {finding["verdict"] for finding in findings} <= {"pass", "skipped"}
