"""Two backends for standardize: PyTorch's function, and the same by torch.compile."""

import torch

EPS = 1e-5


def forward(x, w):
    return torch.nn.functional.layer_norm(x, w.shape, w, None, EPS)


def backward(dy, x, w):
    below = x.float() - x.float().mean(dim=-1, keepdim=True)
    r = torch.rsqrt(below.square().mean(dim=-1, keepdim=True) + EPS)
    g, h = w.float() * dy.float(), below * r
    return (r * (g - g.mean(dim=-1, keepdim=True) - h * (g * h).mean(dim=-1, keepdim=True))).to(x.dtype)


class Functional:
    """F.layer_norm, eager; the backward is eager operations."""

    name, operations = "layer-torch", ("standardize",)

    def available(self):
        return None

    def supports(self, case):
        return None if case.direction in ("forward", "backward") else "it has forward and backward"

    def prepare(self, case):
        return forward if case.direction == "forward" else backward


class Compiled(Functional):
    """torch.compile of the functions of layer-torch."""

    name, compiles = "layer-compile", True

    def prepare(self, case):
        return torch.compile(super().prepare(case), dynamic=False)


backends = [Functional(), Compiled()]
