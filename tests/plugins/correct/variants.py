"""Honest ways to compute a softmax, which must pass wherever the mutants beside them do not: eager, torch's, online, with exp2."""

import math

import torch

from softbench import Direction

TILE = 256


def eager(x):
    wide = x.float()
    e = torch.exp(wide - wide.amax(-1, keepdim=True))
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


def exp2(x):
    """exp(d) as exp2(d log2 e), as kernels do; the difference is taken before it is scaled."""
    wide = x.float()
    e = torch.exp2((wide - wide.amax(-1, keepdim=True)) * math.log2(math.e))
    return (e * (1 / e.sum(-1, keepdim=True))).to(x.dtype)


def online(x):
    """One pass over tiles: a running maximum, and a running sum that is rescaled when it rises; then the normalizing pass."""
    wide = x.float()
    high = wide.new_full(wide.shape[:-1], -math.inf)
    total = wide.new_zeros(wide.shape[:-1])
    for tile in wide.split(TILE, dim=-1):
        higher = torch.maximum(high, tile.amax(-1))
        safe = torch.where(higher == -math.inf, 0.0, higher)  # a tile of -inf alone has no scale yet
        total = total * torch.exp(high - safe) + torch.exp(tile - safe[..., None]).sum(-1)
        high = higher
    return (torch.exp(wide - high[..., None]) / total[..., None]).to(x.dtype)


def backward(dy, y):
    dy32, y32 = dy.float(), y.float()
    return (y32 * (dy32 - (dy32 * y32).sum(-1, keepdim=True))).to(y.dtype)


def fused(dy, y):
    """The same with the product kept, as a kernel that holds the row would."""
    product = dy.float() * y.float()
    return (product - y.float() * product.sum(-1, keepdim=True)).to(y.dtype)


class Variant:
    """An honest softmax."""

    def __init__(self, name, forward, backward):
        self.name, self.forward, self.backward = name, forward, backward

    def available(self):
        return None

    def supports(self, case):
        return "autograd is not wired up" if case.direction is Direction.BOTH else None

    def prepare(self, case):
        return self.forward if case.direction is Direction.FORWARD else self.backward

    def over_dim(self, direction):
        function = self.forward if direction is Direction.FORWARD else self.backward

        def over(*given):
            *tensors, dim = given
            return function(*(tensor.movedim(dim, -1) for tensor in tensors)).movedim(-1, dim)

        return over


backends = [
    Variant("eager", eager, backward),
    Variant("of-torch", lambda x: torch.softmax(x, dim=-1), backward),
    Variant("online", online, fused),
    Variant("with-exp2", exp2, backward),
]
