"""Packages of AOTInductor with C functions: they launch the kernels of `dispatch.py`, without Python."""

import subprocess
import sys

import pytest
import torch
import torch.utils.cpp_extension
from operators import close, randn
from softbench.kernels.common.cuda_toolkit import cuda_home
from softbench.kernels.triton import dispatch, softmax
from softbench.kernels.triton.c_shims import c_shims, static_launch

from softbench.core.toolchain import packaging_compiler

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

TRACED = (37, 300)
APART = (24, 65_536)
"""Rows that are eight elements further apart than they are long."""
OPERATORS = torch.ops.softbench
EAGER = {
    "triton_softmax": dispatch.softmax.forward,
    "triton_log_softmax": dispatch.log_softmax.forward,
    "triton_softmax_backward": dispatch.softmax.backward,
    "triton_log_softmax_backward": dispatch.log_softmax.backward,
}
CASES = [
    (operator, M, N, dtype)
    for M, N, dtype in [
        (1, 32768, torch.bfloat16),
        (8, 128256, torch.bfloat16),
        (64, 128256, torch.bfloat16),
        (16, 1 << 20, torch.float32),
        (1, (1 << 22) + 3, torch.float16),
        (128, 262144, torch.bfloat16),
        (262144, 100, torch.bfloat16),
        (300, 70_001, torch.float32),
        (*APART, torch.bfloat16),
        (*TRACED, torch.float32),
    ]
    for operator in EAGER
]


class Every(torch.nn.Module):
    """All cases in one package."""

    def forward(self, *inputs):
        results, rest = [], list(inputs)
        for operator, *_ in CASES:
            given = [rest.pop(0) for _ in range(2 if operator.endswith("backward") else 1)]
            results.append(getattr(OPERATORS, operator).default(*given, -1))
        return tuple(results)


def inputs_of(operator, M, N, dtype):
    width = N + 8 * ((M, N) == APART)
    return [randn(M, width, dtype=dtype).narrow(1, 0, N) for _ in range(2 if operator.endswith("backward") else 1)]


def copied(tensor, offset=0, device=None):
    """A copy with the same strides, `offset` elements from an aligned address."""
    memory = torch.empty(tensor.shape[0] * tensor.stride(0) + offset, dtype=tensor.dtype, device=device or tensor.device)
    return memory[offset:].as_strided(tensor.shape, tensor.stride()).copy_(tensor)


def all_inputs():
    return [tensor for case in CASES for tensor in inputs_of(*case)]


def expected(inputs):
    rest = list(inputs)
    return [EAGER[operator](*[rest.pop(0) for _ in range(2 if operator.endswith("backward") else 1)]) for operator, *_ in CASES]


def same(got, want):
    for case, one, other in zip(CASES, got, want, strict=True):
        assert torch.equal(one, other) or case[1:3] == TRACED, case
        close(one, other, case[-1])


@pytest.fixture(scope="module")
def toolkit():
    """AOTInductor's C++ includes CUDA's headers. torch takes the folder above `nvcc`. If `nvcc` is a script, they are not there."""
    if (home := cuda_home()) is None:
        pytest.skip("no CUDA toolkit")
    with pytest.MonkeyPatch.context() as patch, torch._inductor.config.patch({"cpp.cxx": (None, packaging_compiler())}):
        patch.setenv("CUDA_HOME", str(home))
        patch.setattr(torch.utils.cpp_extension, "CUDA_HOME", str(home))
        yield


def package(module, given, path, shapes=None):
    exported = torch.export.export(module, tuple(given), dynamic_shapes=shapes)
    with c_shims():
        return torch._inductor.aoti_compile_and_package(exported, package_path=str(path))


@pytest.fixture(scope="module")
def path(toolkit, tmp_path_factory):
    return package(Every(), all_inputs(), tmp_path_factory.mktemp("every") / "every.pt2")


@pytest.fixture(scope="module")
def every(path):
    return torch._inductor.aoti_load_package(path, run_single_threaded=True)


def test_packages_launch_the_kernels_of_eager_calls(every):
    inputs = all_inputs()
    for _ in range(3):  # the workspace keeps what earlier launches wrote
        same(every(*inputs), expected(inputs))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        every(*inputs)
        torch.cuda.synchronize()
    names = [event.name for event in seen.events()]
    found = {tier: sum(name.endswith(f"ward_{tier}") for name in names) for tier in ("cluster", "split", "staged")}
    launches = [static_launch(tuple(inputs_of(*case)), "log" in case[0]) for case in CASES]
    kernels = [launch.kernel.__name__ for launch in launches if launch]
    assert found == {tier: sum(kernel.endswith(f"_{tier}") for kernel in kernels) for tier in found}
    assert all(found.values())


def test_packages_run_on_other_streams_and_take_odd_addresses(every):
    inputs = all_inputs()
    odd, want = [copied(tensor, 1) for tensor in inputs], expected(inputs)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    got = []
    for stream in streams:
        with torch.cuda.stream(stream):
            got.append(every(*odd))
    torch.cuda.synchronize()
    for one in got:
        same(one, want)


def test_a_cuda_graph_replays_a_package_on_fresh_input(every):
    inputs = all_inputs()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        every(*inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = every(*inputs)
    for _ in range(3):
        for tensor in inputs:
            tensor.normal_()
        graph.replay()
        same(results, expected(inputs))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
def test_a_package_runs_on_another_gpu(path):
    inputs = [copied(tensor, device="cuda:1") for tensor in all_inputs()]
    call = torch._inductor.aoti_load_package(path, device_index=1)
    for _ in range(2):
        results = call(*inputs)
        assert {result.device.index for result in results} == {1}
        same(results, expected(inputs))


def test_a_process_without_python_kernels_runs_a_package(path, tmp_path):
    """It does not import softbench."""
    inputs = all_inputs()
    torch.save((inputs, expected(inputs)), tmp_path / "tensors.pt")
    code = """
import sys, torch
inputs, want = torch.load(sys.argv[2])
call = torch._inductor.aoti_load_package(sys.argv[1])
for got, right in zip(call(*inputs), want, strict=True):
    assert torch.equal(got, right)
assert not any(name.split(".")[0] == "softbench" for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code, path, str(tmp_path / "tensors.pt")], check=True)


class Model(torch.nn.Module):
    """Softmax over the middle dimension, between other operations."""

    def forward(self, x):
        return softmax(x.exp(), 1) + softmax(x[:, :, 0].contiguous() * 2, -1)[:, :, None]


def test_a_model_has_other_operations_beside_the_kernels(toolkit, tmp_path):
    x = randn(2, 65_536, 3)
    call = torch._inductor.aoti_load_package(package(Model(), [x], tmp_path / "model.pt2"))
    close(call(x), torch.softmax(x.exp(), 1) + torch.softmax(x[:, :, 0] * 2, -1)[:, :, None], torch.float32)


def test_a_package_of_any_number_of_rows_has_traced_kernels(toolkit, tmp_path):
    class Forward(torch.nn.Module):
        def forward(self, x):
            return softmax(x, -1)

    shapes = {"x": {0: torch.export.Dim("M", max=100_000)}}
    call = torch._inductor.aoti_load_package(package(Forward(), [randn(37, 70_000)], tmp_path / "any.pt2", shapes))
    for M in (2, 37, 1000):
        x = randn(M, 70_000)
        close(call(x), torch.softmax(x, -1))
