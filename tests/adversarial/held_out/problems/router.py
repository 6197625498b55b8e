"""The two largest of the experts' logits of each token: their softmax and their numbers."""

import torch


def inputs(M=512, N=16, dtype=torch.float32):
    return (torch.randn(M, N, dtype=dtype),)


def reference(x):
    top, experts = x.topk(2, dim=-1)
    return torch.softmax(top, -1), experts
