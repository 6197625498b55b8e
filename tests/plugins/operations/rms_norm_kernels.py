"""Two backends for rms_norm: PyTorch's function, and the same by torch.compile."""

import torch

EPS = 1e-6


def forward(x, w):
    return torch.nn.functional.rms_norm(x, w.shape, w, EPS)


def backward(dy, x, w):
    wide, r = x.float(), torch.rsqrt(x.float().square().mean(dim=-1, keepdim=True) + EPS)
    scaled = w.float() * dy.float()
    return (r * scaled - r**3 * wide * (scaled * wide).mean(dim=-1, keepdim=True)).to(x.dtype)


class Functional:
    """F.rms_norm, eager; the backward is eager operations."""

    name, operations = "rms-torch", ("rms_norm",)

    def available(self):
        return None

    def supports(self, case):
        return None if case.direction in ("forward", "backward") else "it has forward and backward"

    def prepare(self, case):
        return forward if case.direction == "forward" else backward


class Compiled(Functional):
    """torch.compile of the functions of rms-torch."""

    name, compiles = "rms-compile", True

    def prepare(self, case):
        return torch.compile(super().prepare(case), dynamic=False)


backends = [Functional(), Compiled()]
