"""A matrix product, with K terms in each sum."""

import torch


def inputs(M=64, N=48, K=100, dtype=torch.float32):
    return torch.randn(M, K, dtype=dtype), torch.randn(K, N, dtype=dtype)


def reference(a, b):
    return a @ b
