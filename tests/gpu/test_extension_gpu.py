"""Calls of `softbench.kernels` on a GPU run no Python once C++ knows the launchers, but the launches of masked_softmax."""

import os
import subprocess
import sys

import pytest
import torch
from softbench.kernels.common import extension
from softbench.kernels.cuda import build, launch

from softbench import kernels

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


def calls(M, N):
    """Calls with their gradients, of the five functions, for M rows of N columns."""
    x = torch.randn(M, N, device="cuda")
    target = torch.randint(N, (M,), device="cuda")
    scores = torch.randn(1, 1, M, min(N, 4096), device="cuda")

    def with_gradients(function, x, *given, **options):
        def call():
            leaf = x.detach().requires_grad_()  # of this stream: autograd would make the stream of an older leaf wait, also in a capture
            results = function(leaf, *given, **options)
            results = results if isinstance(results, tuple) else (results,)
            return [*results, *torch.autograd.grad(results, leaf, [torch.ones_like(one) for one in results])]

        return call

    yield with_gradients(kernels.softmax, x)
    yield with_gradients(kernels.log_softmax, x)
    for reduction in ("mean", "none"):
        yield with_gradients(kernels.cross_entropy, x, target, reduction=reduction)
    yield with_gradients(kernels.logprob, x, target)
    for causal in (False, True):
        yield with_gradients(kernels.masked_softmax, scores, causal=causal)
    yield with_gradients(kernels.softmax, x.bfloat16(), dtype=torch.float32)


@pytest.fixture
def built(monkeypatch):
    """Calls in C++, whatever SOFTBENCH_CPP says."""
    if build.nvcc() is None or (library := extension.load(build=True)) is None:
        pytest.skip("needs nvcc and g++")
    kernels.build()
    monkeypatch.setattr(extension, "CALLS", True)
    for function in extension.FUNCTIONS:
        monkeypatch.setattr(extension.entries, function, extension.without)
    extension._take_calls(library)
    yield
    library.softbench_withdraw()
    extension._forget_kernels(extension._defined)


def on(stream, call):
    """What the call returns on another stream."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = call()
    torch.cuda.current_stream().wait_stream(stream)
    return found


@pytest.mark.parametrize("shape", [(64, 1024), (3, 200_000)], ids=["short", "with a workspace"])
def test_later_calls_are_launched_in_cpp(built, monkeypatch, shape):
    made, stream = list(calls(*shape)), torch.cuda.Stream()
    for _ in range(2):
        expected = [call() for call in made]
    on(stream, made[2])  # Python makes the counters of a stream, which the mean needs

    def launched(*given):
        raise AssertionError("Python launches")

    monkeypatch.setattr(launch, "_launch", launched)
    for call, wanted in zip(made, expected, strict=True):
        torch.testing.assert_close(call(), wanted, atol=1e-6, rtol=1e-5)
        if shape[0] > 3:  # a stream has a workspace of its own
            torch.testing.assert_close(on(stream, call), wanted, atol=1e-6, rtol=1e-5)


def test_graphs_capture_calls_that_need_a_workspace(built):
    for call in calls(3, 200_000):
        expected = call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = call()
        for _ in range(2):
            graph.replay()
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_compiled_autograd_has_the_gradients_of_eager_forwards(built):
    x, target = torch.randn(64, 1000, device="cuda"), torch.randint(1000, (64,), device="cuda")
    weight = torch.randn(1000, 1000, device="cuda", requires_grad=True)
    for function in (
        lambda x: kernels.log_softmax(x).square().sum(),
        lambda x: kernels.cross_entropy(x, target),
        lambda x: kernels.masked_softmax(x[None, None], causal=True).square().sum(),
    ):
        expected, loss = torch.autograd.grad(function(x @ weight), weight), function(x @ weight)
        with torch._dynamo.compiled_autograd._enable(torch.compile()):
            loss.backward()
        torch.testing.assert_close(weight.grad, *expected)
        weight.grad = None


ALLOCATOR = r"""
#include <dlfcn.h>
#include <cstddef>
template <typename... A> static int driver(const char* name, A... given) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<int (*)(A...)>(dlsym(library, name))(given...);
}
static long taken = 0;
extern "C" long count() { return taken; }
extern "C" void* take(size_t size, int device, void*) {
  void *context = nullptr, *found = nullptr;
  driver("cuDevicePrimaryCtxRetain", &context, device), driver("cuCtxSetCurrent", context);  // a thread of autograd may have none
  return ++taken, driver("cuMemAlloc_v2", &found, size), found;
}
extern "C" void give(void* memory, size_t, int, void*) { driver("cuMemFree_v2", memory); }
"""
OWN_ALLOCATOR = """
import ctypes, sys, torch
path = sys.argv[1]
torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator(path, "take", "give"))
from softbench import kernels
from softbench.kernels.common import extension
from softbench.kernels.cuda import launch
assert extension.load() is not None
x = torch.randn(64, 1024, device="cuda", requires_grad=True)
def gradient():
    y = kernels.softmax(x, -1)
    return torch.autograd.grad(y, x, y)[0]
for _ in range(2):
    expected = gradient()
def launched(*given):
    raise AssertionError("Python launches")
launch._launch = launched
count = ctypes.CDLL(path).count
before = count()
found = gradient()
assert count() >= before + 2
torch.testing.assert_close(found, expected)
"""


def test_results_come_from_an_allocator_that_replaced_torchs(built, tmp_path):
    (tmp_path / "own.cpp").write_text(ALLOCATOR)
    library = tmp_path / "own.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, tmp_path / "own.cpp", "-ldl"], check=True)
    command, environment = [sys.executable, "-c", OWN_ALLOCATOR, library], {**os.environ, "SOFTBENCH_CPP": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
