"""The operators of both packages on a GPU: PyTorch's own samples, and what torch asks of an operator."""

import itertools
import json

import opinfos
import pytest
import torch
from operators import EVERY_PAIR, EVERY_TEST, FUNCTIONS, SHAPES_AND_LONG, close, close_gradient, of, randn
from softbench.kernels.cuda import build
from torch.library import opcheck

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.usefixtures("fresh_compiler")]
needs_nvcc = pytest.mark.skipif(build.nvcc() is None, reason="no nvcc on this machine")

TRITON = ("triton", "triton log", "opaque", "opaque log")
each = pytest.mark.parametrize("name", [*TRITON, *(pytest.param(name, marks=needs_nvcc) for name in ("cuda", "cuda log"))])


plain = pytest.mark.parametrize("name", ["triton", "opaque", pytest.param("cuda", marks=needs_nvcc)])
"""The operators of softmax."""


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_results_agree_with_torch_on_its_samples(name, dtype):
    opinfos.agree_with_torch(FUNCTIONS[name], "cuda", dtype, of(name))
    if of(name) == "softmax":  # the suite has no samples of log_softmax's backward
        opinfos.backward_agrees_with_torch(lambda dy, y, dim: EVERY_PAIR[name][1](dy, y, dim), "cuda", dtype)


def test_float64_results_agree_with_torch():
    for name in TRITON:
        opinfos.agree_with_torch(FUNCTIONS[name], "cuda", torch.float64, of(name))


@needs_nvcc
def test_results_with_a_dtype_agree_with_torch():
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for name in ("cuda", "cuda log"):
            opinfos.widened_as_torch(FUNCTIONS[name], "cuda", dtype, of(name))


@each
def test_opcheck_passes_on_torchs_samples(name):
    opinfos.opchecked(*EVERY_PAIR[name], "cuda", torch.float32, of(name))


@pytest.mark.parametrize("name", TRITON)
def test_gradients_of_both_orders_are_right_on_torchs_samples(name):
    opinfos.gradchecked(FUNCTIONS[name], "cuda", of(name))


SHARED = (2, 1 << 20)
"""CTAs anywhere on the device share a row: a launch of CUDA's kernels needs a workspace."""


@plain
@pytest.mark.parametrize(("shape", "dim"), [*SHAPES_AND_LONG, pytest.param(SHARED, 1, id="shared")])
def test_opcheck_passes_with_all_its_tests(name, shape, dim):
    forward, backward = EVERY_PAIR[name]
    x, dy = (randn(*shape).requires_grad_() for _ in range(2))
    # Nearly a softmax. With an arbitrary y, two orders of summation differ by more than opcheck's tolerance. With a softmax, dx sums to 0.
    # opcheck differentiates the absolute value of that sum, and its sign would depend on rounding.
    y = (0.9 * torch.softmax(randn(*shape), dim)).requires_grad_()
    opcheck(forward, (x, dim), test_utils=EVERY_TEST)
    opcheck(backward, (dy, y, dim), test_utils=EVERY_TEST)


@plain
def test_vmap_takes_the_operators(name):
    forward, backward = EVERY_PAIR[name]
    x, dy = randn(3, 40, 50), randn(3, 40, 50)
    for at, dim in itertools.product((0, 1, 2), (0, 1, -1)):
        y = torch.vmap(lambda x, dim=dim: forward(x, dim), at)(x)
        close(y, torch.vmap(lambda x, dim=dim: torch.softmax(x, dim), at)(x))
    y = torch.softmax(x, -1)
    close_gradient(torch.vmap(lambda dy, y: backward(dy, y, -1))(dy, y), dy, y)


@plain
@pytest.mark.parametrize("shape", [(512, 4096), SHARED])
def test_operators_run_on_the_current_stream(name, shape):
    forward, backward = EVERY_PAIR[name]
    side = torch.cuda.Stream()
    x = torch.zeros(shape, device="cuda")
    fresh, dy = torch.randn_like(x), torch.randn_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.copy_(fresh)
        y = forward(x, -1)
        dx = backward(dy, y, -1)
    side.synchronize()
    close(y, torch.softmax(fresh.double(), -1))
    close_gradient(dx, dy, y)


@plain
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_operators_run_on_their_tensors_device(name):
    softmax = FUNCTIONS[name]
    assert torch.cuda.current_device() == 0
    for shape in ((37, 300), SHARED):
        x = torch.randn(shape, device="cuda:1")
        for function in (lambda x: softmax(x, -1), torch.compile(lambda x: softmax(x, -1), fullgraph=True)):
            torch.testing.assert_close(function(x), torch.softmax(x, -1))


@plain
def test_autocast_changes_nothing(name):
    x = randn(4, 50, dtype=torch.bfloat16)
    with torch.autocast("cuda"):
        assert FUNCTIONS[name](x, -1).dtype is torch.bfloat16


@pytest.mark.parametrize("backend", ["triton-compiled", "triton-op", "triton-custom-op", pytest.param("cuda-op", marks=needs_nvcc)])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_backends_pass_every_check_case(cli, backend, direction):
    done = cli("check", "--backends", backend, "--direction", direction, "--dtype", "fp32", "--json", "-", timeout=580)
    findings = json.loads(done.stdout)["findings"]
    bad = [finding for finding in findings if finding["verdict"] not in ("pass", "skipped")]
    assert (done.returncode, bad) == (0, []), done.stderr
