"""Gradients of losses from the maximum and the sum of a row: at rows far from zero, and where the target is in another part."""

import torch
from softbench.kernels.common.losses import ELSEWHERE
from torch.testing import assert_close


def check(losses, N, device="cpu"):
    """By kernels of losses, for float32 rows, against float64."""
    torch.manual_seed(0)
    for far in (0.0, 1e4):
        x, target = 3 * torch.randn(4, N, device=device) + far, torch.tensor([1, -100, N - 1, ELSEWHERE], device=device)
        a, b = torch.randn(2, 4, device=device)
        z = x.double().requires_grad_()
        y = torch.log_softmax(z, 1)
        inside = target >= 0
        found = torch.where(inside, y.gather(1, target.clamp(min=0)[:, None])[:, 0], 0.0)
        entropy = -(y.exp() * y).sum(1)
        (of_both,) = torch.autograd.grad((found * a + entropy * b).sum(), z, retain_graph=True)
        (of_loss,) = torch.autograd.grad(-(found * a).sum(), z)
        of_loss[3] = a[3] * y[3].exp()
        of_both[3] -= of_loss[3]
        loss, statistics = losses.cross_entropy_statistics(x, target)
        assert_close(loss[:3], -found[:3].float(), rtol=1e-5, atol=1e-6)
        dx = losses.cross_entropy_backward(x, target, statistics, a)
        assert_close(dx, of_loss.float(), rtol=1e-5, atol=1e-6)
        logprob, *_ = losses.logprob_statistics(x[:3], target[:3], ignore_index=-100)
        assert_close(logprob, found[:3].float(), rtol=1e-5, atol=1e-6)
        *_, statistics = losses.logprob_statistics(x, target)
        dx = losses.logprob_backward(x, target, statistics, entropy.detach().float(), a, b, ignore_index=-100)
        assert_close(dx, of_both.float(), rtol=1e-5, atol=1e-6)
    print("fine")
