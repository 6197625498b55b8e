"""The operator as compilers see it. Fake CUDA tensors, which need no GPU, show them the kernels; compiled code runs on the CPU."""

import collections
import importlib.util
import itertools
import math
import random
import types
import warnings

import pytest
import torch
from operators import OF_FUNCTION, PAIRS, both, run_and_differentiate
from sampled import sampled
from softbench.kernels.triton import (
    generic,
    operator,
    traceable,
    traceable_rows,
)
from softbench.kernels.triton.launch_plan import Problem, vectors_in_row
from torch._dynamo.source import ConstantSource
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.library import triton_op

from softbench.kernels import triton as kernels

pytestmark = [pytest.mark.skipif(generic.INTERPRETED, reason="fake tensors are not interpreted"), pytest.mark.usefixtures("fresh_compiler")]


def reinplaced(graph):
    """By the pass of torch.compile; its import takes a second, which other processes of the tests need not spend."""
    from torch._inductor.fx_passes.reinplace import reinplace_inplaceable_ops_core

    reinplace_inplaceable_ops_core(graph)


def test_operator_body_knows_when_it_is_traced():
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
    assert seen.count(False) == 1  # the compiled graph does not run the body
    assert len(seen) > 1
    seen.clear()
    make_fx(lambda x: probe(x), tracing_mode="fake")(x)
    assert seen == [True]


def graph_of(function, *shapes, dtype=torch.float32):
    """The graph that a compiler traces of `function` on CUDA tensors, and its nodes that launch kernels."""
    with FakeTensorMode():
        given = [torch.empty(shape, dtype=dtype, device="cuda") for shape in shapes]
    graph = make_fx(dispatch_functionalize(function), tracing_mode="fake")(*given).graph
    return graph, [node for node in graph.nodes if "triton_kernel_wrapper" in str(node.target)]


@pytest.fixture
def hopper(monkeypatch):
    """torch's analysis of a kernel compiles it for the GPU of Triton's driver; without a GPU, for an H200."""
    import triton
    from triton.backends.compiler import GPUTarget

    if not torch.cuda.is_available():
        monkeypatch.setattr(triton.runtime.driver, "_active", types.SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", 90, 32)))


def unrecorded(name):
    """The opaque operators of a function, without autograd."""
    return [one._overloadpacket.unrecorded for one in OF_FUNCTION[name]["custom_op"]]


@pytest.fixture
def packaging():
    """As while AOTInductor makes a package."""
    with V.set_aot_compilation(True):
        yield


def assert_one_kernel(name, N, dtype, M=37):
    """The kernel writes the result, and Inductor does not copy it before the launch."""
    forward, backward = OF_FUNCTION[name]["triton_op"]
    forward_graph, backward_graph = (lambda x: forward(x, -1), ((M, N),)), (lambda dy, y: backward(dy, y, -1), ((M, N), (M, N)))
    for (function, shapes), result in ((forward_graph, "y_ptr"), (backward_graph, "dx_ptr")):
        graph, (launch,) = graph_of(function, *shapes, dtype=dtype)
        assert set(launch.kwargs["tensors_to_clone"]) == {result}
        reinplaced(graph)
        assert launch.kwargs["tensors_to_clone"] == []


LAUNCHES = [("softmax", N, dtype) for N in (1, 301, 4096, 8192) for dtype in (torch.float32, torch.bfloat16)]


@pytest.mark.parametrize(
    ("name", "N", "dtype"),
    sampled(
        [*LAUNCHES[:-2], ("softmax", 9216, torch.bfloat16), ("log_softmax", 300, torch.bfloat16)],
        lambda name, N, dtype: dtype is (torch.float32 if N == 301 else torch.bfloat16),
    ),
)
def test_a_compiler_sees_one_kernel_that_writes_only_the_result(hopper, name, N, dtype):
    assert_one_kernel(name, N, dtype)


@pytest.mark.parametrize(
    ("name", "N", "dtype"),
    sampled([("softmax", 77, torch.bfloat16), ("log_softmax", 197, torch.float32)], lambda name, N, dtype: N == 77),
)
def test_many_short_unaligned_rows_call_the_opaque_operator(name, N, dtype):
    forward, backward = OF_FUNCTION[name]["triton_op"]
    opaque, shape = unrecorded(name), (1 << 20, N)
    for called, expected, given in ((lambda x: forward(x, -1), opaque[0], 1), (lambda dy, y: backward(dy, y, -1), opaque[1], 2)):
        graph, launches = graph_of(called, *[shape] * given, dtype=dtype)
        assert not launches
        assert [node.target for node in graph.nodes if node.op == "call_function"] == [expected]


@pytest.mark.parametrize("N", [64, 2048])
def test_large_launches_keep_their_inputs_in_l2(hopper, N):
    assert_one_kernel("softmax", N, torch.bfloat16, M=(1 << 25) // N)


@pytest.mark.parametrize("name", OF_FUNCTION)
def test_a_package_has_torchs_function_for_longer_rows(hopper, packaging, name):
    """It calls no Python, and one program for a row of a million elements would take as long as thousands."""
    forward, backward = OF_FUNCTION[name]["triton_op"]
    aten = torch.ops.aten
    expected = {
        "softmax": [aten._softmax, aten._softmax_backward_data],
        "log_softmax": [aten._log_softmax, aten._log_softmax_backward_data],
    }
    longest = traceable.LONG_ROW // 2
    for called, which, given in ((lambda x: forward(x, -1), 0, 1), (lambda dy, y: backward(dy, y, -1), 1, 2)):
        graph, launches = graph_of(called, *[(4096, longest // given + 1)] * given, dtype=torch.bfloat16)
        assert not launches
        assert [node.target.overloadpacket for node in graph.nodes if node.op == "call_function"] == [expected[name][which]]
        _, launches = graph_of(called, *[(4096, longest // given)] * given, dtype=torch.bfloat16)
        assert len(launches) == 1


@pytest.mark.parametrize(("shape", "dim"), [((1 << 20, 77), -1), ((4, 300, 64), 1)])
def test_a_package_has_kernels_where_other_graphs_call_an_operator(hopper, packaging, shape, dim):
    _, launches = graph_of(lambda x: kernels.softmax(x, dim), shape, dtype=torch.bfloat16)
    assert len(launches) == 1


def test_no_lane_has_parts_of_two_short_rows():
    for N, backward in itertools.product((36, 60, 77, 100, 197, 230, 333), (False, True)):
        problem = Problem(backward, 262_144, N, 2, math.gcd(16, 2 * N), True, 132, True, 2500.0, True)
        plan = traceable.plan_for(problem, ("NVIDIA H200", 90))
        assert plan.tier == "rows"
        assert plan.threads > 32 or plan.rows * plan.threads <= 32 * plan.warps
        assert plan.warps <= 8


@pytest.mark.parametrize("name", OF_FUNCTION)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_beyond_36_kib_call_the_opaque_operator(name, dtype):
    (forward, backward), opaque = OF_FUNCTION[name]["triton_op"], unrecorded(name)
    longest = traceable.LONG_ROW // dtype.itemsize
    for M in (1, 4096):
        graph, launches = graph_of(lambda x: forward(x, -1), (M, longest + 1), dtype=dtype)
        assert not launches
        assert [node.target for node in graph.nodes if node.op == "call_function"] == [opaque[0]]
        graph, launches = graph_of(lambda dy, y: backward(dy, y, -1), (M, longest), (M, longest), dtype=dtype)
        assert not launches
        assert [node.target for node in graph.nodes if node.op == "call_function"] == [opaque[1]]


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: kernels.softmax(x, -1), "triton_softmax_opaque"),
        (lambda x: kernels.softmax(x.transpose(0, 1), 0), "triton_softmax_opaque"),
        (lambda x: kernels.softmax(x.view(x.shape[0], -1, 2), 1), "triton_softmax_opaque"),
        (lambda x: torch.ops.softbench.triton_log_softmax_backward(x, x, -1), "triton_log_softmax_opaque_backward"),
    ],
)
def test_any_number_of_long_rows_is_one_call_without_guards(function, name):
    sizes = ShapeEnv()
    with FakeTensorMode(shape_env=sizes):
        symbol = sizes.create_symbol(37, source=ConstantSource("M"), dynamic_dim=DimDynamic.DYNAMIC)
        x = torch.empty(sizes.create_symintnode(symbol, hint=37), 70_000, device="cuda")
    nodes = make_fx(dispatch_functionalize(function), tracing_mode="symbolic")(x).graph.nodes
    assert [node.target for node in nodes if "softbench" in str(node.target)] == [getattr(torch.ops.softbench, name).unrecorded]
    assert sizes.guards == []


@pytest.mark.slow
def test_plans_that_compilers_launch_need_no_option_but_the_warps():
    """A thread holds at most MAX_WORDS words, and every row of the range fits the plan of a symbolic N."""
    tiers = collections.Counter()
    for backward, size, alignment in itertools.product((False, True), (2, 4), (2, 4, 8, 16)):
        longest = traceable.LONG_ROW // (size * (1 + backward))
        for N in (*range(1, 300), *(random.Random(0).randrange(300, longest) for _ in range(300)), longest):
            if N * size % alignment or alignment < size:
                continue
            aligned = math.gcd(16, N * size) if alignment == 16 else alignment
            problem = Problem(backward, 4096, N, size, aligned, True, 132, True, hopper=True)
            for name in ("", "NVIDIA H200"):
                plan = traceable.plan_for(problem, (name, 90))
                tiers[plan.tier] += 1
                assert plan.registers is None
                assert plan.tier in ("rows", "tile")
                if plan.tier == "rows":
                    assert plan.tiles * plan.vector_words * problem.reads <= 64
                    assert plan.tiles * plan.threads >= vectors_in_row(problem, plan.vector_elements, plan.base_alignment)
                    assert plan.threads <= 32 or (plan.rows == 1 and plan.threads == 32 * plan.warps <= 1024)
    assert set(tiers) == {"rows", "tile"}


def test_a_compiler_sees_no_kernel_of_the_opaque_operator():
    forward, _ = PAIRS["custom_op"]
    graph, launches = graph_of(lambda x: forward(x, -1), (37, 300))
    assert not launches
    assert [node.target for node in graph.nodes if node.op == "call_function"] == [forward]


def test_cached_graphs_are_keyed_by_the_kernels():
    from torch._library.triton import get_triton_kernels_for_op

    rows = traceable_rows
    forward, backward = {rows.forward_traceable, rows.tile_traceable}, {rows.backward_traceable, rows.gradient_tile_traceable}
    for name in ("triton_softmax", "triton_log_softmax"):
        assert set(get_triton_kernels_for_op(f"softbench::{name}")) == forward
        assert set(get_triton_kernels_for_op(f"softbench::{name}_backward")) == backward


def compilations(function, shapes, **options):
    """How many graphs torch.compile makes of `function` for fake CUDA tensors of these shapes, in this order."""
    made = []

    def backend(graph, _):
        made.append(graph)
        return graph.forward

    compiled = torch.compile(function, fullgraph=True, backend=backend, **options)
    with FakeTensorMode():
        for shape in shapes:
            assert compiled(torch.empty(shape, device="cuda")).shape == shape
    return len(made)


@pytest.mark.slow
def test_dynamic_shapes_compile_once_for_each_range_of_columns():
    softmax = kernels.softmax
    every_M = (2, 3, 37, 4096, 100_003)
    assert compilations(softmax, itertools.product(every_M, (300, 257, 511, 512, 129)), dynamic=True) == 1
    torch._dynamo.reset()
    ranges_of_N = (3, 100, 128, 129, 513, 2048, 2049, 4096, 4097, 9216, 9217, 16384, 50257, 262_144)
    assert compilations(softmax, itertools.product((2, 4096), ranges_of_N), dynamic=True) == 6
    torch._dynamo.reset()
    assert compilations(lambda x: softmax(x, 1), ((2, 300, 5), (7, 400, 9), (100, 511, 33)), dynamic=True) == 1
    torch._dynamo.reset()
    assert compilations(softmax, ((37, N) for N in (256, 300, 400, 511)), dynamic=None) == 2  # automatic: first static, then once dynamic


class Softmax(torch.nn.Module):
    def forward(self, x):
        return kernels.softmax(x, -1)


def test_export_refuses_a_range_that_needs_several_kernels():
    with FakeTensorMode(shape_env=ShapeEnv()):
        x = torch.empty(37, 300, device="cuda")
    M, N, wide = (torch.export.Dim("M", max=1000), torch.export.Dim("N", min=129, max=512), torch.export.Dim("wide", max=4096))
    exported = torch.export.export(Softmax(), (x,), dynamic_shapes={"x": {0: M, 1: N}})
    assert [node.target for node in exported.graph.nodes if node.op == "call_function"] == [PAIRS["triton_op"][0]]
    with pytest.raises(torch._dynamo.exc.UserError, match=r"129 <= .* <= 512"):
        torch.export.export(Softmax(), (x,), dynamic_shapes={"x": {0: M, 1: wide}})


@both
@pytest.mark.parametrize("dynamic", [False, True])
def test_operator_compiles_whole_with_its_gradient(pair, dynamic):
    forward, _ = pair
    compiled = torch.compile(lambda x: forward(x * 2, -1) + 1, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for M, N in ((3, 5), (4, 6), (5, 700)):
        x, dy = torch.randn(2, M, N).unbind()
        for got, expected in zip(
            run_and_differentiate(compiled, x, dy), run_and_differentiate(lambda x: torch.softmax(x * 2, -1) + 1, x, dy), strict=True
        ):
            assert torch.allclose(got, expected, atol=1e-6)


@pytest.mark.slow
def test_aotinductors_package_gives_the_same_result(tmp_path):
    x = torch.randn(4, 30)
    exported = torch.export.export(Softmax(), (x,), dynamic_shapes={"x": {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.STATIC}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "softmax.pt2"))
        loaded = torch._inductor.aoti_load_package(package)
    for rows in (x, torch.randn(9, 30)):
        assert torch.allclose(loaded(rows), torch.softmax(rows, -1), atol=1e-6)


COPIED = ["forward_traceable", "backward_traceable", "tile_traceable", "gradient_tile_traceable"]


@pytest.mark.parametrize("name", sampled(COPIED, lambda name: COPIED.index(name) % 3 == 0))
def test_inductors_copy_of_a_kernels_source_compiles(hopper, name, tmp_path):
    """Inductor writes a kernel, what it calls and its constants into one file, by their names and `repr`."""
    import triton
    from torch._inductor.codegen.triton import TritonKernel
    from torch._inductor.codegen.wrapper import user_defined_triton_kernel_transitive_closure_source_code as source_of
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(traceable_rows, name)
    file = tmp_path / f"{name}_copy.py"
    imports = "import triton\nimport triton.language as tl\n" + TritonKernel.gen_common_triton_imports()
    file.write_text(f"{imports}\n@triton.jit\n{source_of(kernel)}")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    copy = getattr(module, name)
    numbers = {"ROWS": 1, "TILES": 3, "THREADS": 64, "WORDS": 4, "VECTOR": 8, "BASE_ALIGNMENT": 16, "KEEP_IN_L2": True, "LOG": False}
    numbers |= {"BLOCK": 256, "BM": 4, "BN": 256}
    kinds = dict.fromkeys(numbers, "constexpr")
    signature = {argument: kinds.get(argument, "*bf16" if argument.endswith("_ptr") else "i32") for argument in copy.arg_names}
    constants = {argument: numbers[argument] for argument in copy.arg_names if argument in numbers}
    compiled = triton.compile(ASTSource(copy, signature, constants), target=GPUTarget("cuda", 90, 32), options={"num_warps": 2})
    assert compiled.asm["ptx"].count("st.global") >= 1
