"""The contract of `softbench.kernels` on a GPU, where our kernels run: torch's OpInfo, second gradients, transforms, options."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import contract
import exact_gradients
import pytest
import torch
from softbench.kernels.automatic.choice import which
from softbench.kernels.common import linear_cross_entropy as parts
from softbench.kernels.cuda import launch, losses as cuda_losses
from torch.testing import assert_close

from softbench import kernels

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

DEVICE = "cuda"


@contract.EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_and_gradients_are_those_of_torchs_operators(name, number, dtype):
    contract.check_results(name, number, "cuda", dtype)


@contract.EACH
def test_transforms_are_those_of_torchs_operators_without_warnings(name, number):
    contract.check_transforms(name, number, "cuda", torch.float32)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "cross_entropy"])
def test_samples_and_errors_of_torchs_opinfo(name):
    contract.check_opinfo(name, "cuda")


def test_other_results_and_a_given_lse_of_cross_entropy():
    contract.check_other_results("cuda", torch.float32)
    contract.check_given_lse("cuda", torch.float32)


def test_gradients_that_kernels_have_once_refuse_those_of_a_gradient():
    x, weight = (torch.randn(64, size, device=DEVICE, requires_grad=True) for size in (1000, 1000))
    target, lse = torch.randint(64, (64,), device=DEVICE), torch.logsumexp(x.detach(), 1)
    calls = (
        lambda: kernels.cross_entropy(x, target, lse=lse),
        lambda: kernels.cross_entropy(x * 1, target, inplace_backward=True),
        lambda: kernels.linear_cross_entropy(x, weight, target),
        lambda: kernels.softmax(x, invariant=True).square().sum(),
        lambda: launch.log_softmax(x).square().sum(),
    )
    for call in calls:
        (expected,) = torch.autograd.grad(call(), x)
        (dx,) = torch.autograd.grad(call(), x, create_graph=True)
        assert_close(dx.detach(), expected)
        with pytest.raises(RuntimeError, match=r"differentiable once|no autograd formula"):
            torch.autograd.grad(dx.square().sum() + x.sum(), x)


def test_autocast_gives_what_torch_gives():
    x, target = torch.randn(4, 9, device="cuda", dtype=torch.bfloat16), torch.tensor([0, 3, -100, 8], device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        found = kernels.softmax(x), kernels.log_softmax(x), kernels.cross_entropy(x, target), kernels.cross_entropy(x, target, z_loss=0.1)
        expected = torch.softmax(x, -1), torch.log_softmax(x, -1), torch.nn.functional.cross_entropy(x, target)
    assert_close(found[:2], expected[:2])
    assert_close(found[2], expected[2], atol=2e-2, rtol=1e-2)  # torch rounds log_softmax to 16 bits inside
    assert found[3].dtype is torch.float32
    assert kernels.cross_entropy(x, target).dtype is torch.bfloat16


@pytest.mark.parametrize("shape", [(64, 1000), (5, 40_001)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_scale_and_an_ignored_target_are_those_of_a_copy(shape, dtype):
    x = torch.randn(shape, device="cuda", dtype=dtype)
    target = torch.randint(shape[1], shape[:1], device="cuda")
    target[1] = -100
    leaf, leaf_of_copy = x.clone().requires_grad_(), x.double().requires_grad_()
    tolerance = {"atol": 1e-5, "rtol": 1e-5} if dtype is torch.float32 else {"atol": 1e-4, "rtol": 1e-2}
    for options in ({}, {"label_smoothing": 0.1, "z_loss": 0.01}, {"softcap": 2.0}):
        loss = kernels.cross_entropy(leaf, target, logit_scale=0.7, dtype=torch.float32, **options)
        expected = contract.with_options_of_torch(leaf_of_copy, target, logit_scale=0.7, **options)
        assert_close(loss.double(), expected, **tolerance)
        assert_close(torch.autograd.grad(loss, leaf)[0].double(), torch.autograd.grad(expected, leaf_of_copy)[0], **tolerance)
    found, expected = (
        kernels.logprob(leaf, target, temperature=1 / 0.7),
        contract.logprob_of_torch(leaf_of_copy, target, temperature=1 / 0.7),
    )
    for one, other in zip(found, expected, strict=True):
        assert_close(one.double(), other, **tolerance)
        pair = (torch.autograd.grad(each.sum(), at, retain_graph=True)[0].double() for each, at in ((one, leaf), (other, leaf_of_copy)))
        assert_close(*pair, **tolerance)
    if which(x, function="cross_entropy").kernels == "cuda":
        lse = torch.empty(shape[0], device="cuda")
        plain, _ = cuda_losses.cross_entropy_fused(x, target, lse=lse)
        assert_close(lse, torch.logsumexp(x.float(), 1))
        assert_close(plain, kernels.cross_entropy(x, target, reduction="none", dtype=torch.float32))


def test_a_gradient_over_the_logits_takes_no_memory():
    x = torch.randn(1024, 32_000, device="cuda", requires_grad=True)
    target = torch.randint(32_000, (1024,), device="cuda")
    expected = torch.autograd.grad(kernels.cross_entropy(x, target), x)[0]
    logits = x * 1.0
    loss = kernels.cross_entropy(logits, target, inplace_backward=True)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    (of_logits,) = torch.autograd.grad(loss, logits)
    assert torch.cuda.max_memory_allocated() - before < x.numel()
    assert of_logits.data_ptr() == logits.data_ptr()
    assert_close(of_logits, expected)


def test_rows_without_keys_may_be_zero():
    x = torch.randn(2, 2, 3, 40, device="cuda", requires_grad=True)
    keep = (torch.rand(3, 40, device="cuda") > 0.4).int()
    keep[1] = 0
    y = kernels.masked_softmax(x, mask=keep, without_keys="zero")
    assert_close(y, contract.masked_softmax_of_torch(x, mask=keep, without_keys="zero"))
    assert torch.autograd.grad(y.square().sum(), x)[0].isfinite().all()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logprob_of_a_linear_layer_in_parts_is_that_of_whole_logits(monkeypatch, dtype):
    monkeypatch.setattr(parts, "MOST_BYTES", 0)  # parts of 128 rows
    parts.rows_of_part.cache_clear()
    narrow = [torch.randn(size, device=DEVICE, dtype=dtype, requires_grad=True) for size in ((300, 256), (5003, 256))]
    wide = [one.detach().double().requires_grad_() for one in narrow]
    target = torch.randint(5003, (300,), device=DEVICE)
    target[::7] = -100
    tolerance = {"atol": 1e-3, "rtol": 1e-4} if dtype is torch.float32 else {"atol": 0.1, "rtol": 1e-2}  # logits are up to 60
    expected = contract.logprob_of_torch(wide[0] @ wide[1].T, target, temperature=16.0)
    upstream = [torch.randn_like(one) for one in expected]
    exact = torch.autograd.grad(expected, wide, upstream)
    for call in (kernels.linear_logprob, torch.compile(kernels.linear_logprob, fullgraph=True)):
        found = call(*narrow, target, temperature=16.0)
        for one, other in zip(found, expected, strict=True):
            assert_close(one.double(), other, **tolerance)
        for one, other in zip(torch.autograd.grad(found, narrow, [one.float() for one in upstream]), exact, strict=True):
            assert one.dtype is dtype
            assert (one.double() - other).norm() < tolerance["rtol"] * other.norm()
    parts.rows_of_part.cache_clear()


def test_logprob_of_a_linear_layer_stores_at_most_a_gigabyte_of_logits():
    x, w = (torch.randn(size, 512, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for size in (8192, 128256))
    target = torch.randint(len(w), (len(x),), device=DEVICE)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found, entropy = kernels.linear_logprob(x, w, target)
    gradients = torch.autograd.grad(found.sum() + entropy.sum(), (x, w))
    assert torch.cuda.max_memory_allocated() - before < sum(one.nbytes for one in gradients) + 10**9


def test_two_ranks_share_a_vocabulary_and_the_parts_of_a_dtensor():
    """By NCCL on two GPUs, by gloo on one, without DTensor. The cases are those of two processes on the CPU."""
    code = "import two_ranks; two_ranks.run(device='cuda')"
    paths = os.pathsep.join([str(Path(contract.__file__).parent), *filter(None, sys.path)])
    # Without NVML torch would initialize CUDA to count GPUs, before the fork. NVLink multicast needs rights that a container may lack.
    more = {"PYTHONPATH": paths, "PYTORCH_NVML_BASED_CUDA_CHECK": "1", "NCCL_NVLS_ENABLE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **more}, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout.endswith("fine\n"), done.stderr[-3000:]


@pytest.mark.parametrize("kind", ["cuda", "triton"])
@pytest.mark.parametrize("N", [37, 5003, 70000])
def test_gradients_of_rows_far_from_zero_lose_nothing(kind, N):
    exact_gradients.check(importlib.import_module(f"softbench.kernels.{kind}.losses"), N, "cuda")
