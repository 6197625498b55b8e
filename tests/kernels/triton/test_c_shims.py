"""Packages of AOTInductor with C functions, as far as a machine without a GPU can show them: what is traced, and for which rows."""

import os
import re
import threading
import types
from pathlib import Path

import pytest
import torch
from softbench.kernels.triton import c_shims, generic, operator, row_operators  # noqa: F401 - `operator` registers the operators
from softbench.kernels.triton.c_shims import static_launch
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from softbench.kernels import triton as kernels

pytestmark = [
    pytest.mark.skipif(generic.INTERPRETED, reason="fake tensors and TRITON_INTERPRET=1 do not go together"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: tests/gpu/test_c_shims_gpu.py"),
]
OPERATORS = torch.ops.softbench
CALLS = {
    "softmax": (lambda x: OPERATORS.triton_softmax(x, -1), OPERATORS.triton_softmax_rows),
    "log_softmax": (lambda x: OPERATORS.triton_log_softmax(x, -1), OPERATORS.triton_log_softmax_rows),
    "softmax_backward": (lambda x: OPERATORS.triton_softmax_backward(x, x, -1), OPERATORS.triton_softmax_rows_backward),
    "log_softmax_backward": (lambda x: OPERATORS.triton_log_softmax_backward(x, x, -1), OPERATORS.triton_log_softmax_rows_backward),
}


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    """What torch asks Triton's driver, for an H200."""
    import triton
    from triton.backends.compiler import GPUTarget

    monkeypatch.setattr(triton.runtime.driver, "_active", types.SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", 90, 32)))


class Recorder:
    """A library that only records what is added."""

    def __init__(self):
        self.added = []

    def add(self, launch, compiled, inputs, log):
        self.added.append((launch, [(tuple(tensor.shape), tensor.stride()) for tensor in inputs], log))
        return len(self.added) - 1


@pytest.fixture
def library(monkeypatch):
    recorder = Recorder()
    shims = c_shims.Shims(recorder)
    monkeypatch.setattr(c_shims, "compiled_kernel", lambda launch, inputs: None)
    monkeypatch.setattr(c_shims, "active", lambda: shims)
    with V.set_aot_compilation(True):
        yield recorder


def fake(*shape, dtype=torch.bfloat16):
    with FakeTensorMode():
        return torch.empty(shape, dtype=dtype, device="cuda")


def calls(function, *given):
    """The nodes of the traced graph that call an operator of packages, and how many kernels it launches."""
    graph = make_fx(dispatch_functionalize(function), tracing_mode="fake")(*given).graph
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    return [node for node in nodes if "_rows" in str(node.target)], sum("triton_kernel_wrapper" in str(node.target) for node in nodes)


@pytest.mark.parametrize("name", CALLS)
def test_a_package_calls_a_function_where_compilers_lack_the_kernel(name, library):
    function, target = CALLS[name]
    found, kernels = calls(function, fake(16, 1 << 22))
    assert [node.target for node in found] == [target.default]
    assert kernels == 0
    assert found[0].args[-1] == 0
    ((launch, inputs, log),) = library.added
    assert inputs == [((16, 1 << 22), (1 << 22, 1))] * (1 + name.endswith("backward"))
    assert launch.kernel.__name__ == ("backward_split" if name.endswith("backward") else "forward_split")
    assert log is name.startswith("log")
    assert launch.arguments[launch.kernel.arg_names.index("LOG") - len(inputs) - 3] is log  # after the tensors, the counter and the slots


@pytest.mark.parametrize(("shape", "kernel"), [((1, 32768), "forward_cluster"), ((262144, 100), "forward_staged"), ((37, 300), None)])
def test_each_tier_that_compilers_lack_has_a_function(shape, kernel, library):
    found, kernels = calls(CALLS["softmax"][0], fake(*shape))
    assert (len(found), kernels) == ((0, 1) if kernel is None else (1, 0))
    assert [launch.kernel.__name__ for launch, *_ in library.added] == ([] if kernel is None else [kernel])


def test_calls_for_equal_rows_share_a_launch(library):
    def function(x):
        y = kernels.softmax(x, -1)
        return kernels.softmax(y, -1), kernels.log_softmax(y, -1), kernels.softmax(y.narrow(0, 0, 1), -1)

    found, _ = calls(function, fake(64, 128_256))
    assert [node.args[-1] for node in found] == [0, 0, 1, 2]


def test_rows_of_any_dimension_keep_their_shape(library):
    def over_the_middle(x):
        y = kernels.softmax(x, 1)
        assert y.shape == x.shape
        return y

    ((node,), _) = calls(over_the_middle, fake(2, 65_536, 3))
    assert node.args[0].meta["val"].shape == (6, 65_536)
    assert node.meta["val"].stride() == (65_536, 1)
    assert [inputs for _, inputs, _ in library.added] == [[((6, 65_536), (65_536, 1))]]


@pytest.mark.parametrize("shape", [(0, 70_000), (4, 0)])
def test_empty_tensors_call_nothing(shape, library):
    assert calls(CALLS["softmax"][0], fake(*shape)) == ([], 0)


def test_symbolic_sizes_and_views_at_odd_addresses_have_traced_kernels(library):
    sizes = ShapeEnv()
    with FakeTensorMode(shape_env=sizes):
        symbolic = torch.empty(sizes.create_unbacked_symint(), 128_256, device="cuda")
    assert static_launch((symbolic,)) is None
    unaligned = fake(65_544 * 24 + 1).narrow(0, 1, 65_544 * 24).view(24, 65_544)
    aligned = fake(24, 65_544)
    assert static_launch((aligned, aligned)) is not None
    assert static_launch((aligned, unaligned)) is static_launch((unaligned, aligned)) is None
    odd = fake(64 * 128_256 + 1)
    found, launched = calls(lambda x: kernels.softmax(x.narrow(0, 1, 64 * 128_256).view(64, 128_256), -1), odd)
    assert found == []
    assert launched > 0
    assert library.added == []


def test_without_the_context_a_package_has_traced_kernels():
    with V.set_aot_compilation(True):
        found, launched = calls(CALLS["softmax"][0], fake(64, 128_256))
    assert found == []
    assert launched > 0


def test_launches_differ_by_strides_dtype_and_every_input(library):
    x, wide, half = fake(24, 65_536), fake(24, 65_544).narrow(1, 0, 65_536), fake(24, 65_536, dtype=torch.float16)
    asked = [((x,), False), ((x,), True), ((wide,), False), ((half,), False), ((x, x), False), ((wide, x), False), ((x, wide), False)]
    assert [c_shims.active().number(*one) for one in [*asked, *asked]] == [*range(7), *range(7)]
    assert [inputs for _, inputs, _ in library.added][-1] == [((24, 65_536), (65_536, 1)), ((24, 65_536), (65_544, 1))]
    arguments = [launch.arguments[:3] for launch, *_ in library.added[-2:]]
    assert arguments == [(8193, 8192, 8192), (8192, 8193, 8192)]  # strides in vectors; the result is contiguous


def test_declarations_are_those_of_the_source():
    source = Path(c_shims.__file__).with_name("c_shims.cpp").read_text()
    external = re.sub(r"\s+", " ", source[source.index('extern "C" {') :])
    declared = row_operators.c_functions()
    assert list(declared) == [
        target.default for _, target in (CALLS[name] for name in ("softmax", "softmax_backward", "log_softmax", "log_softmax_backward"))
    ]
    for declaration in declared.values():
        name, arguments = re.fullmatch(r"AOTITorchError (\w+)\((.*)\)", declaration).groups()
        found = re.search(rf"AOTITorchError {name}\(\s*(.*?)\)", external).group(1)
        types_of = [[argument.split()[0] + "*" * argument.count("*") for argument in text.split(", ")] for text in (arguments, found)]
        assert types_of[0] == types_of[1]


@pytest.fixture
def no_library(monkeypatch):
    monkeypatch.setattr(c_shims, "Library", lambda folder, name, compiler: (folder, name, compiler))


@pytest.mark.parametrize("before", [None, "/some/folder"])
def test_the_context_restores_what_it_sets(before, no_library, monkeypatch):
    monkeypatch.delenv("LIBRARY_PATH", raising=False) if before is None else monkeypatch.setenv("LIBRARY_PATH", before)
    settings = torch._inductor.config.aot_inductor
    own = {torch.ops.aten.mm.default: ["a declaration"]}
    with torch._inductor.config.patch({"aot_inductor.custom_op_libs": ["own"], "aot_inductor.custom_ops_to_c_shims": own}):
        with pytest.raises(ZeroDivisionError), c_shims.c_shims("g++"):
            folder, *rest = os.environ["LIBRARY_PATH"].split(os.pathsep)
            library_folder, name, compiler = c_shims.active()._library
            assert (Path(folder), compiler) == (library_folder, "g++")
            assert library_folder.is_dir()
            assert rest == ([] if before is None else [before])
            assert settings.custom_op_libs == ["own", name]
            assert list(settings.custom_ops_to_c_shims) == [*own, *row_operators.c_functions()]
            os.environ["LIBRARY_PATH"] += os.pathsep + "/another"
            raise ZeroDivisionError
        assert settings.custom_op_libs == ["own"]
        assert settings.custom_ops_to_c_shims == own
    assert not Path(folder).exists()
    assert os.environ.get("LIBRARY_PATH") == os.pathsep.join([*([] if before is None else [before]), "/another"])
    assert c_shims.active() is None


def test_packages_are_compiled_in_one_context_at_a_time(no_library, monkeypatch):
    monkeypatch.delenv("LIBRARY_PATH", raising=False)
    names = []
    with c_shims.c_shims("g++"):
        names.append(c_shims.active()._library[1])
        with pytest.raises(RuntimeError, match="another c_shims"), c_shims.c_shims("g++"):
            pass
        assert c_shims.active()._library[1] == names[0]
    assert "LIBRARY_PATH" not in os.environ
    with c_shims.c_shims("g++"):
        assert c_shims.active()._library[1] != names[0]  # Inductor may keep what was linked with the first one


def test_other_threads_compile_without_functions(no_library):
    """Inductor's configuration is that of a thread, so such a package would call Python."""
    found = []
    with c_shims.c_shims("g++"):
        thread = threading.Thread(target=lambda: found.append(c_shims.active()))
        thread.start()
        thread.join()
        assert c_shims.active() is not None
    assert found == [None]


def test_operators_on_rows_give_contiguous_results_without_gradients():
    for declared in row_operators.c_functions():
        assert torch.Tag.needs_exact_strides in declared.tags  # or Inductor pads the rows of a package's launch
        assert torch._C._dispatch_has_kernel_for_dispatch_key(declared.name(), "AutogradCUDA")
    wide, trained = fake(24, 65_544).narrow(1, 0, 65_536), fake(24, 65_536).requires_grad_()
    for x in (wide, trained):
        for y in (OPERATORS.triton_softmax_rows(x, -1), OPERATORS.triton_log_softmax_rows_backward(x, x, -1)):
            assert (y.shape, y.stride(), y.requires_grad) == ((24, 65_536), (65_536, 1), False)


def test_rocm_has_no_c_functions(no_library, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    with c_shims.c_shims():
        assert c_shims.active() is None
