"""Whether Inductor fuses a pointwise producer or consumer with the kernels that it traces. Its scheduler decides without a GPU."""

import itertools
import types
from unittest import mock

import pytest
import torch
import triton
import triton.language as tl
from operators import OPS
from sampled import sampled
from softbench.kernels.triton import generic
from torch._inductor import config
from torch._inductor.debug import DebugContext
from torch._inductor.fx_passes.post_grad import decompose_triton_kernel_wrapper_functional
from torch._inductor.fx_passes.reinplace import reinplace_inplaceable_ops_core
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import Scheduler
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import triton_op, wrap_triton
from triton.backends.compiler import GPUTarget

from softbench.kernels import triton as kernels

pytestmark = pytest.mark.skipif(
    generic.INTERPRETED or torch.cuda.is_available() or not hasattr(config, "epilogue_fusion_user_defined_triton_kernel"),
    reason="it pretends to have a GPU, for a torch whose Inductor has an option to fuse",
)
H200 = types.SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=140 << 30,
    warp_size=32,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    L2_cache_size=50 << 20,
    shared_memory_per_block_optin=232448,
)


@pytest.fixture(autouse=True)
def h200(monkeypatch):
    """What Inductor and Triton ask of a GPU."""
    monkeypatch.setattr(triton.runtime.driver, "_active", types.SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", 90, 32)))
    monkeypatch.setattr("torch._inductor.scheduler.has_triton", lambda *_: True)
    for name, answer in (("get_device_properties", H200), ("get_device_capability", (9, 0)), ("current_device", 0), ("device_count", 1)):
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)


@triton.jit
def doubling(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < N) * 2, mask=at < N)


@triton_op("softbench_test::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    """A kernel with one store, in its own source."""
    y = torch.empty_like(x)
    wrap_triton(doubling)[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y


def scheduled(function, fuse, shape, tensors=1):
    """What Inductor schedules of a function of fake CUDA tensors: the kind of each of its nodes that launches something."""
    mode = FakeTensorMode()
    with mode:
        given = [torch.empty(shape, device="cuda") for _ in range(tensors)]
    traced = make_fx(dispatch_functionalize(function), tracing_mode="fake")(*given)
    reinplace_inplaceable_ops_core(traced.graph)
    decompose_triton_kernel_wrapper_functional(traced.graph)
    traced.recompile()
    with mode, V.set_fake_mode(mode), config.patch(epilogue_fusion_user_defined_triton_kernel=fuse):
        lowered = GraphLowering(traced, example_inputs=given)
        with V.set_graph_handler(lowered), V.set_debug_handler(DebugContext()), mock.patch.object(config, "benchmark_fusion", False):
            lowered.run(*given)
            nodes = [type(node).__name__ for node in Scheduler(lowered.operations).nodes]
    return [name for name in nodes if name != "NopKernelSchedulerNode"]


APART = ["SchedulerNode", "ExternKernelSchedulerNode", "SchedulerNode"]


def test_a_consumer_of_one_store_is_fused_if_asked():
    """With its option Inductor fuses the consumer of a kernel that has one store. It has no option for a producer."""
    function = lambda x: doubled(x.sin()).relu()  # noqa: E731
    assert scheduled(function, True, (37, 300)) == ["SchedulerNode", "FusedExternTritonKernelSchedulerNode"]
    assert scheduled(function, False, (37, 300)) == APART


@pytest.mark.parametrize(("fuse", "N"), sampled(itertools.product((False, True), (64, 781)), lambda fuse, N: fuse == (N == 781)))
def test_traced_kernels_are_fused_with_nothing(fuse, N):
    """Their stores are in functions that they call, and there Inductor finds none to put a consumer in."""
    backward = OPS.triton_softmax_backward
    for function in (kernels.softmax, kernels.log_softmax):
        assert scheduled(lambda x, function=function: function(x.sin(), -1).relu(), fuse, (37, N)) == APART
    assert scheduled(lambda dy, y: backward(dy.sin(), y, -1).relu(), fuse, (37, N), 2) == APART
