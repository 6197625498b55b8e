"""The softmax operator beside its kernels: what PyTorch's own machinery asks of it. Real tensors are the CPU's here, where torch's softmax
stands in; what a compiler would see of the kernels is tried on fake CUDA tensors, which need no GPU."""

import itertools
import os
import subprocess
import sys
import types
import warnings

import pytest
import torch
from softbench.kernels.triton import operator, plain, tile, traced
from subclass import Wrapped
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.library import opcheck, triton_op
from torch.utils.flop_counter import FlopCounterMode

from softbench.backends import operators
from softbench.kernels import triton as kernels
from softbench.model import Case, Direction

pytestmark = pytest.mark.skipif(plain.INTERPRETED, reason="fake tensors and TRITON_INTERPRET=1 do not go together")

OPS = torch.ops.softbench
PAIRS = {
    "triton_op": (OPS.triton_softmax.default, OPS.triton_softmax_backward.default),
    "custom_op": (OPS.triton_softmax_opaque.default, OPS.triton_softmax_opaque_backward.default),
}
EVERY_TEST = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static", "test_aot_dispatch_dynamic")
SHAPES = [
    ((5, 7), -1),
    ((5, 7), 0),
    ((2, 3, 4), 1),
    ((2, 3, 4), -3),
    ((6,), 0),
    ((), -1),
    ((), 0),
    ((1, 5), 0),
    ((4, 1, 1), 0),
    ((0, 3), 1),
    ((3, 0), 1),
]
LAYOUTS = [
    torch.randn(7, 5).t(),
    torch.randn(5, 14)[:, ::2],
    torch.randn(5, 1).expand(5, 7),
    torch.randn(1, 7).expand(5, 7),
    torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    torch.randn(36)[1:].view(5, 7),
]

both = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


@both
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_opcheck_passes_with_all_its_tests(pair, shape, dim):
    forward, backward = pair
    x, dy, y = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(3))
    opcheck(forward, (x, dim), test_utils=EVERY_TEST)
    opcheck(backward, (dy, y, dim), test_utils=EVERY_TEST)


@both
@pytest.mark.parametrize("layout", range(len(LAYOUTS)))
def test_opcheck_passes_on_any_strides(pair, layout):
    forward, backward = pair
    x = LAYOUTS[layout]
    opcheck(forward, (x, 1), test_utils=EVERY_TEST)
    opcheck(backward, (x, torch.softmax(x, 1), 1), test_utils=EVERY_TEST)


@both
@pytest.mark.parametrize(("shape", "dim"), [((5, 7), -1), ((2, 3, 4), 1), ((), 0)])
def test_gradients_of_both_orders_are_those_of_finite_differences(pair, shape, dim):
    forward, backward = pair
    x, dy, y = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(3))
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda x: forward(x, dim), (x,), check_batched_grad=True)
        assert check(lambda dy, y: backward(dy, y, dim), (dy, y), check_batched_grad=True)
    assert torch.autograd.gradcheck(lambda y: backward(dy.detach(), y, dim), (y,))
    assert torch.autograd.gradcheck(lambda dy: backward(dy, y.detach(), dim), (dy,))


@pytest.mark.parametrize("dtype", operator.DTYPES)
def test_it_is_torchs_softmax_in_values_strides_and_memory_of_its_own(dtype):
    for x, dim in [*((torch.randn(shape), dim) for shape, dim in SHAPES), *itertools.product(LAYOUTS, (0, 1, -1))]:
        x = x.to(dtype)
        for forward, backward in PAIRS.values():
            y = forward(x, dim)
            expected = torch.softmax(x, dim)
            assert (y.dtype, y.shape, y.stride()) == (dtype, x.shape, expected.stride())
            assert torch.equal(y, expected)
            dx = backward(x, y, dim)
            assert (dx.dtype, dx.shape, dx.stride()) == (dtype, x.shape, expected.stride())
            storages = {tensor.untyped_storage().data_ptr() for tensor in (x, y, dx)}
            assert len(storages) == 3 or x.numel() == 0
            assert len({id(tensor) for tensor in (x, y, dx)}) == 3


def test_the_second_gradient_of_16_bits_is_computed_in_32():
    x = torch.randn(4, 50, dtype=torch.bfloat16, requires_grad=True)
    dy, g = torch.randn(2, 4, 50, dtype=torch.bfloat16).unbind()
    y = kernels.softmax(x).detach().requires_grad_()
    (of_y,) = torch.autograd.grad(OPS.triton_softmax_backward(dy, y, -1), y, g)
    wide_y = y.detach().double().requires_grad_()
    slope = wide_y * (dy.double() - (dy.double() * wide_y).sum(-1, keepdim=True))
    (expected,) = torch.autograd.grad(slope, wide_y, g.double())
    assert of_y.dtype is torch.bfloat16
    assert torch.allclose(of_y.double(), expected, rtol=2**-8, atol=1e-6)


def test_what_it_does_not_take_is_said():
    softmax, backward = kernels.softmax, OPS.triton_softmax_backward
    for dtype in (torch.int32, torch.bool, torch.complex64):
        with pytest.raises(TypeError, match=r"the kernels take float32, float16, bfloat16 and float64"):
            softmax(torch.ones(3, dtype=dtype))
    with pytest.raises(TypeError, match="strided"):
        softmax(torch.eye(3).to_sparse())
    for shape, dim in (((3,), 1), ((3, 4), -3), ((), 1), ((0, 3), 2)):
        with pytest.raises(IndexError, match="Dimension out of range"):
            softmax(torch.ones(shape), dim)
    x = torch.ones(2, 3)
    for dy in (torch.ones(3, 2), x.double()):
        with pytest.raises(TypeError, match="they must agree"):
            backward(dy, x, -1)


def test_fake_tensors_have_torchs_strides_dtype_and_device_on_cuda():
    with FakeTensorMode():
        for (shape, dim), dtype in itertools.product(SHAPES, operator.DTYPES):
            if torch.version.cuda is None and len(shape) > 1 and min(shape) > 1 and dim % len(shape) == 0:
                continue  # Tensor.contiguous() of a fake CUDA tensor needs a torch that was built for CUDA
            x = torch.empty(shape, dtype=dtype, device="cuda")
            expected = torch.softmax(x, dim)
            for forward, backward in PAIRS.values():
                for out in (forward(x, dim), backward(x, x, dim)):
                    assert (out.shape, out.stride(), out.dtype, out.device) == (x.shape, expected.stride(), dtype, x.device)


def test_the_body_knows_when_it_is_traced():
    seen = []

    @triton_op("softbench_test::probe", mutates_args=())
    def probe(x: torch.Tensor) -> torch.Tensor:
        seen.append(operator._tracing())
        return x + 1

    x = torch.ones(3)
    assert probe(x)[0] == 2
    assert seen == [False]
    compiled = torch.compile(lambda x: probe(x), fullgraph=True, backend="aot_eager")
    assert compiled(x)[0] == 2
    assert seen.count(False) == 1  # the compiled graph runs without the body
    assert len(seen) > 1
    seen.clear()
    make_fx(lambda x: probe(x), tracing_mode="fake")(x)
    assert seen == [True]


def graph_of(function, *shapes, dtype=torch.float32):
    """What a compiler sees of `function` on CUDA tensors, and the nodes that launch kernels."""
    with FakeTensorMode():
        given = [torch.empty(shape, dtype=dtype, device="cuda") for shape in shapes]
    graph = make_fx(dispatch_functionalize(function), tracing_mode="fake")(*given).graph
    return graph, [node for node in graph.nodes if "triton_kernel_wrapper" in str(node.target)]


@pytest.fixture
def hopper(monkeypatch):
    """torch's analysis of a kernel compiles it for the card of Triton's driver: without a card, for an H200's."""
    import triton
    from triton.backends.compiler import GPUTarget

    if not torch.cuda.is_available():
        monkeypatch.setattr(triton.runtime.driver, "_active", types.SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", 90, 32)))


@pytest.mark.parametrize("N", [1, 300, 4096, 20000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_compiler_sees_one_kernel_that_writes_the_result_and_nothing_else(hopper, N, dtype):
    forward, backward = PAIRS["triton_op"]
    _, (launch,) = graph_of(lambda x: forward(x, -1), (37, N), dtype=dtype)
    assert launch.kwargs["tensors_to_clone"] == ["y_ptr"]
    _, (launch,) = graph_of(lambda dy, y: backward(dy, y, -1), (37, N), (37, N), dtype=dtype)
    assert launch.kwargs["tensors_to_clone"] == ["dx_ptr"]


def test_a_compiler_sees_the_opaque_operator_and_no_kernel():
    forward, _ = PAIRS["custom_op"]
    graph, launches = graph_of(lambda x: forward(x, -1), (37, 300))
    assert not launches
    assert [node.target for node in graph.nodes if node.op == "call_function"] == [forward]


def test_cached_graphs_are_keyed_by_the_kernels():
    from torch._library.triton import get_triton_kernels_for_op

    assert set(get_triton_kernels_for_op("softbench::triton_softmax")) == {plain.forward_tile, plain.forward_loop}
    assert set(get_triton_kernels_for_op("softbench::triton_softmax_backward")) == {plain.backward_tile, plain.backward_loop}


def compilations(function, shapes, **options):
    """How many graphs torch.compile makes of `function` for fake CUDA tensors of these shapes, one after the other."""
    made = []

    def backend(graph, _):
        made.append(graph)
        return graph.forward

    compiled = torch.compile(function, fullgraph=True, backend=backend, **options)
    with FakeTensorMode():
        for shape in shapes:
            assert compiled(torch.empty(shape, device="cuda")).shape == shape
    return len(made)


def test_dynamic_shapes_are_compiled_once_a_range_of_columns_whatever_the_rows_are():
    softmax = kernels.softmax
    every_M = (2, 3, 37, 4096, 100_003)
    assert compilations(softmax, itertools.product(every_M, (300, 257, 511, 512, 129)), dynamic=True) == 1
    torch._dynamo.reset()
    tiers_of_N = (3, 100, 128, 129, 513, 2048, 2049, 8192, 8193, 16384, 16385, 50257, 262_144)
    assert compilations(softmax, itertools.product((2, 4096), tiers_of_N), dynamic=True) == len(traced.RUNGS) + 1
    torch._dynamo.reset()
    assert compilations(lambda x: softmax(x, 1), ((2, 300, 5), (7, 400, 9), (100, 511, 33)), dynamic=True) == 1
    torch._dynamo.reset()
    assert compilations(softmax, ((37, N) for N in (256, 300, 400, 511)), dynamic=None) == 2  # automatic: first static, then once dynamic


def test_static_blocks_are_the_next_power_of_two_and_symbolic_ones_a_rung():
    assert [traced.block(N) for N in (1, 2, 3, 128, 129, 4097, 16384)] == [1, 2, 4, 128, 256, 8192, 16384]
    assert traced.RUNGS[-1] == plain.TILE_COLUMNS
    assert plain.TILE_COLUMNS // 2 in traced.RUNGS  # the backward's tiles end there: no range of its own


class Softmax(torch.nn.Module):
    def forward(self, x):
        return kernels.softmax(x, -1)


def test_export_keeps_the_operator_and_refuses_a_range_that_takes_several_kernels():
    with FakeTensorMode(shape_env=ShapeEnv()):
        x = torch.empty(37, 300, device="cuda")
    M, N, wide = (torch.export.Dim("M", max=1000), torch.export.Dim("N", min=129, max=512), torch.export.Dim("wide", max=4096))
    exported = torch.export.export(Softmax(), (x,), dynamic_shapes={"x": {0: M, 1: N}})
    assert [node.target for node in exported.graph.nodes if node.op == "call_function"] == [PAIRS["triton_op"][0]]
    with pytest.raises(torch._dynamo.exc.UserError, match=r"129 <= .* <= 512"):
        torch.export.export(Softmax(), (x,), dynamic_shapes={"x": {0: M, 1: wide}})


def run_and_differentiate(function, x, dy):
    x = x.detach().requires_grad_()
    y = function(x)
    return y.detach(), *torch.autograd.grad(y, x, dy)


@both
@pytest.mark.parametrize("dynamic", [False, True])
def test_it_compiles_whole_with_its_gradient(pair, dynamic):
    forward, _ = pair
    compiled = torch.compile(lambda x: forward(x * 2, -1) + 1, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for M, N in ((3, 5), (4, 6), (5, 700)):
        x, dy = torch.randn(2, M, N).unbind()
        for got, expected in zip(
            run_and_differentiate(compiled, x, dy), run_and_differentiate(lambda x: torch.softmax(x * 2, -1) + 1, x, dy), strict=True
        ):
            assert torch.allclose(got, expected, atol=1e-6)


def test_inductor_compiles_it():
    compiled = torch.compile(kernels.softmax, fullgraph=True, dynamic=True)
    for M, N in ((3, 5), (4, 60)):
        x = torch.randn(M, N)
        assert torch.allclose(compiled(x), torch.softmax(x, -1), atol=1e-6)


def test_aotinductor_packages_it_and_loads_it_with_the_same_result(tmp_path):
    x = torch.randn(4, 30)
    exported = torch.export.export(Softmax(), (x,), dynamic_shapes={"x": {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.STATIC}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "softmax.pt2"))
        loaded = torch._inductor.aoti_load_package(package)
    for rows in (x, torch.randn(9, 30)):
        assert torch.allclose(loaded(rows), torch.softmax(rows, -1), atol=1e-6)


@both
def test_flops_are_counted_forward_and_backward(pair):
    forward, backward = pair
    x = torch.randn(3, 5, 7, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        forward(x, 1).sum().backward()
    counts = counter.get_flop_counts()["Global"]
    assert counts == {forward._overloadpacket: 5 * 3 * 5 * 7, backward._overloadpacket: 4 * 3 * 5 * 7}


@both
def test_tensor_subclasses_see_the_operators(pair):
    forward, backward = pair
    x, dy = torch.randn(2, 4, 6).unbind()
    Wrapped.calls.clear()
    wrapped = Wrapped(x).requires_grad_()
    y = forward(wrapped, -1)
    (dx,) = torch.autograd.grad(y, wrapped, Wrapped(dy))
    assert {forward, backward} <= set(Wrapped.calls)
    assert isinstance(y, Wrapped)
    assert isinstance(dx, Wrapped)
    expected = run_and_differentiate(lambda x: torch.softmax(x, -1), x, dy)
    assert torch.allclose(y.inner, expected[0])
    assert torch.allclose(dx.inner, expected[1], atol=1e-6)
    compiled = torch.compile(lambda x: forward(x, -1), fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(Wrapped(x)).inner, expected[0])


@both
def test_vmap_takes_any_batched_dimension(pair):
    forward, backward = pair
    for shape, dims in (((3, 4, 5), (0, 1, -1)), ((4, 5), (0, -1)), ((5,), (0, -1))):
        for at in range(len(shape)):
            x, dy = torch.randn(2, *shape).unbind()
            for dim in dims if len(shape) > 1 else (0, -1):
                if not -max(1, x.dim() - 1) <= dim < max(1, x.dim() - 1):
                    continue
                y = torch.vmap(lambda x, dim=dim: torch.softmax(x, dim), at)(x)
                assert torch.allclose(torch.vmap(lambda x, dim=dim: forward(x, dim), at)(x), y)
                one = dy.select(at, 0)
                got = torch.vmap(lambda dy, y, dim=dim: backward(dy, y, dim), (None, 0))(one, y)
                expected = torch.stack([backward(one, sample, dim) for sample in y])
                assert torch.allclose(got, expected, atol=1e-6)
    with pytest.raises(IndexError):
        torch.vmap(lambda x: forward(x, 1))(torch.ones(3, 4))


def test_the_rows_need_no_triton_and_the_operator_is_found_by_its_name():
    code = (
        "import sys; from softbench.kernels.triton import rows; assert 'triton' not in sys.modules;"
        "from softbench.kernels.triton import softmax; import torch; assert callable(softmax);"
        "assert softmax(torch.zeros(2, 4))[0, 0] == 0.25; import softbench.kernels.triton as t; assert t.softmax is softmax;"
        "assert not hasattr(t, 'nothing')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "TRITON_INTERPRET": "1"})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_backends_on_it_say_why_they_are_not_run():
    for backend in (operators.compiled, operators.op, operators.custom_op, operators.aoti):
        assert "no CUDA GPU" in backend.available()


def test_the_backends_on_it_refuse_what_they_cannot_do():
    both, empty = Case(4, 8, "fp32", Direction.BOTH), Case(0, 8, "fp32", Direction.FORWARD)
    assert "no autograd" in operators.aoti.supports(both)
    assert "no elements" in operators.aoti.supports(empty)
    for backend in (operators.compiled, operators.op, operators.custom_op):
        assert backend.supports(both) is backend.supports(empty) is None


def test_dynamo_takes_the_raw_autotuned_kernels_whole(monkeypatch):
    """Without a GPU Dynamo does not look for kernels: it is told that there is one, and stops short of running them."""
    from softbench.kernels.triton import recipe

    monkeypatch.setattr(torch.utils._triton, "has_triton", lambda: True)
    launches = []

    def backend(graph, _):
        launches.extend(node.kwargs["grid"] for node in graph.graph.nodes if "triton_kernel_wrapper" in str(node.target))
        return graph.forward

    with FakeTensorMode():
        for N in (300, 10_000, 20_000):
            x = torch.empty(37, N, device="cuda")
            torch.compile(recipe.forward, fullgraph=True, dynamic=False, backend=backend)(x)
            torch.compile(recipe.backward, fullgraph=True, dynamic=False, backend=backend)(x, x)
    assert all(len(set(grid)) == 1 for grid in launches)  # the warps are tuned, the tile is not
    tiles, loops = len(tile.WARPS), len(recipe.LOOP_CONFIGS)
    assert [len(grid) for grid in launches] == [tiles, tiles, tiles, loops, loops, loops]
    assert [grid[0] for grid in launches[2:]] == [(37, 1, 1)] * 4
