"""A step of SGD with momentum, in place in the parameter and the momentum."""

import torch


def inputs(M=64, N=256, dtype=torch.float32):
    return torch.randn(M, N, dtype=dtype), torch.randn(M, N, dtype=dtype), torch.randn(M, N, dtype=dtype)


def reference(p, momentum, grad):
    momentum.mul_(0.9).add_(grad)
    p.sub_(0.1 * momentum)
    return p
