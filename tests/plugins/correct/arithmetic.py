"""Honest arithmetic that rounds more than the plugins in variants.py: a fused exponent, and sums of one term after the other.

`classes` says which class of a check case each may get besides `pass`.
"""

import math

import numpy as np
import torch

from softbench import Direction

PARTS = 8
LOG2E = torch.tensor(math.log2(math.e))


def fused_exp(x, high):
    """exp(x - high) as exp2(fma(x, log2 e, -(high log2 e))). Products of two floats are exact in float64, so one rounding is left."""
    log2e = LOG2E.to(x.device)
    exponent = x.double() * log2e.double() - (high * log2e).double()
    return torch.exp2(exponent.float())


def fused_exponent(x):
    """Parts of a row have maxima of their own, as the warps of a kernel have; their sums are joined at the end."""
    if not x.numel():
        return torch.empty_like(x)
    parts = x.float().split(-(-x.shape[-1] // PARTS), dim=-1)
    highs = [part.amax(-1, keepdim=True) for part in parts]
    exps = [fused_exp(part, torch.where(high == -math.inf, 0.0, high)) for part, high in zip(parts, highs, strict=True)]
    highest = torch.stack(highs).amax(0)
    scaled = [e * torch.exp(high - highest) for e, high in zip(exps, highs, strict=True)]
    total = sum(e.sum(-1, keepdim=True) for e in scaled)
    return (torch.cat(scaled, -1) / total).to(x.dtype)


def serial(terms):
    """The sum of each row, one float32 term after the other. numpy adds so too, and faster than a vector of sums so far."""
    if terms.device.type == "cpu":
        with np.errstate(invalid="ignore", over="ignore"):
            return torch.from_numpy(np.add.accumulate(terms.detach().numpy(), axis=-1))[..., -1:]
    total = torch.zeros_like(terms[..., 0])
    for column in terms.movedim(-1, 0).contiguous():
        total = total + column
    return total[..., None]


def exps(x):
    wide = x.float()
    return torch.exp(wide - wide.amax(-1, keepdim=True)) if x.numel() else wide


def serial_sum(x):
    e = exps(x)
    return (e / serial(e)).to(x.dtype) if x.numel() else e.to(x.dtype)


def reversed_sum(x):
    e = exps(x)
    return (e / serial(e.flip(-1))).to(x.dtype) if x.numel() else e.to(x.dtype)


def over_another_axis(x):
    """torch adds one row after the other if it reduces the first axis."""
    return torch.softmax(x.movedim(-1, 0).contiguous(), dim=0).movedim(0, -1)


def serial_dot(dy, y):
    dy32, y32 = dy.float(), y.float()
    return (y32 * (dy32 - serial(dy32 * y32))).to(y.dtype) if y.numel() else torch.empty_like(y)


def backward(dy, y):
    dy32, y32 = dy.float(), y.float()
    return (y32 * (dy32 - (dy32 * y32).sum(-1, keepdim=True))).to(y.dtype)


class Arithmetic:
    """An honest softmax. In direction `both` its gradient uses its own y."""

    def __init__(self, name, forward, backward=backward, *, classes=("pass",)):
        self.name, self.forward, self.backward, self.classes = name, forward, backward, classes

    def available(self):
        return None

    def supports(self, case):
        return None

    def prepare(self, case):
        return {Direction.FORWARD: self.forward, Direction.BACKWARD: self.backward, Direction.BOTH: self.both}[case.direction]

    def both(self, x, dy):
        with torch.no_grad():
            y = self.forward(x)
            return y, self.backward(dy, y)

    def over_dim(self, direction):
        function = self.forward if direction is Direction.FORWARD else self.backward

        def over(*given):
            *tensors, dim = given
            return function(*(tensor.movedim(dim, -1) for tensor in tensors)).movedim(-1, dim)

        return over


backends = [
    Arithmetic("fused-exponent", fused_exponent, classes=("pass", "low-precision")),
    Arithmetic("serial-sum", serial_sum, serial_dot),
    Arithmetic("reversed-sum", reversed_sum),
    Arithmetic("over-another-axis", over_another_axis),
]
