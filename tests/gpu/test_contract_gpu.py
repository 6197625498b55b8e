"""The contract of `softbench.kernels` on a GPU, where our kernels run: torch's OpInfo, second gradients, transforms, options."""

import contract
import pytest
import torch
from softbench.kernels.automatic.choice import which
from softbench.kernels.cuda import losses as cuda_losses
from torch.testing import assert_close

from softbench import kernels

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


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
