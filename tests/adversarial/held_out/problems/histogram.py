"""How often each of 8 values is in a row."""

import torch


def inputs(M=64, N=4000):
    return (torch.randint(0, 8, (M, N)),)


def reference(ids):
    return torch.stack([(ids == value).sum(1) for value in range(8)], 1)
