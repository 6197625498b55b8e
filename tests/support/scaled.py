"""Kernels of softmax with a scale and a float32 result: right ones, and wrong ones. Each makes the call of a case."""

import math
from types import SimpleNamespace

import torch

from softbench.core.case import Case, Direction
from softbench.ops import registry
from softbench.ops.dtypes import DTYPES
from softbench.worker.checking.pre_check import PreCheck

LOG2E = math.log2(math.e)


def softmax(z):
    return torch.softmax(z, dim=-1)


def gradient(dy, y):
    return y * (dy - (dy * y).sum(dim=-1, keepdim=True))


def kernel(
    *,
    scale=lambda s: s,
    times=lambda x, s: x.float() * s,
    forward=softmax,
    finish=lambda y, s: y,
    backward=gradient,
    factor=lambda dx, s: dx * s,
    rounded=False,
):
    """A kernel in float32 with one part exchanged. `s` is the scale as a float, or of shape (M, 1)."""

    def make(case):
        parameters, dx_dtype = case.parameters, DTYPES[case.dtype]
        y_dtype = DTYPES[parameters.get("out_dtype", case.dtype)]

        def of(given):
            s = given.pop()[:, None] if parameters.get("scale") == "row" else parameters.get("scale", 1.0)
            return scale(s)

        def y_of(x, s):
            return finish(forward(times(x, s)), s).to(y_dtype)

        def dx_of(dy, y, s):
            dx = backward(dy.float(), y.float())
            return factor(dx.to(dx_dtype) if rounded else dx, s).to(dx_dtype)

        def call(*tensors):
            given = [tensor.detach() for tensor in tensors]
            s = of(given)
            if case.direction is Direction.FORWARD:
                return y_of(given[0], s)
            if case.direction is Direction.BACKWARD:
                return dx_of(*given, s)
            y = forward(times(given[0], s))
            return y_of(given[0], s), dx_of(given[1], y, s)

        return call

    return make


def two_powers(z):
    """exp by exp2, as kernels that fold log2(e) into the scale."""
    e = torch.exp2(z - z.amax(dim=-1, keepdim=True))
    return e / e.sum(dim=-1, keepdim=True)


def online(z):
    """Two passes: a running maximum and sum of parts."""
    high, total = torch.full_like(z[:, :1], -math.inf), torch.zeros_like(z[:, :1])
    for part in z.split(128, dim=1):
        new = torch.maximum(high, part.amax(dim=1, keepdim=True))
        safe = torch.where(new == -math.inf, 0.0, new)
        total = total * torch.exp(high - safe) + torch.exp(part - safe).sum(dim=1, keepdim=True)
        high = torch.where(new == -math.inf, high, new)
    return torch.exp(z - high) / total


HONEST = {
    "float32": kernel(),
    "temperature": kernel(times=lambda x, s: x.float() / (1 / s), factor=lambda dx, s: dx / (1 / s)),
    "folded": kernel(scale=lambda s: s * LOG2E, forward=two_powers, factor=lambda dx, s: dx * (s / LOG2E)),
    "online": kernel(forward=online),
    "float64": kernel(times=lambda x, s: x.double() * s, backward=lambda dy, y: gradient(dy.double(), y.double())),
    "maximum first": kernel(times=lambda x, s: (x.float() - x.float().amax(dim=-1, keepdim=True)) * s),
}
ROUNDED = {
    "product in 16 bits": kernel(times=lambda x, s: (x * s).float()),
    "quotient in 16 bits": kernel(times=lambda x, s: (x / (1 / s)).float()),
    "dx in 16 bits before its factor": kernel(rounded=True),
}
"""Of low precision in 16 bits. A product with the scales of rows is in float32."""
WRONG_FORWARD = {
    "zeros": kernel(finish=lambda y, s: 0 * y),
    "ones": kernel(finish=lambda y, s: 0 * y + 1 / y.shape[1]),
    "ignores scale": kernel(times=lambda x, s: x.float()),
    "scale after softmax": kernel(times=lambda x, s: x.float(), finish=lambda y, s: y * s),
    "scale twice": kernel(times=lambda x, s: x.float() * s * s),
    "divides": kernel(times=lambda x, s: x.float() / s),
    "root of the scale": kernel(times=lambda x, s: x.float() * s**0.5),
    "adds": kernel(times=lambda x, s: torch.cat([x[:, :1].float() + s, x[:, 1:].float()], dim=1)),
    "base 2": kernel(forward=two_powers),
    "half of the row unscaled": kernel(times=lambda x, s: torch.cat([x[:, :100].float() * s, x[:, 100:].float()], dim=1)),
    "maximum unscaled": kernel(times=lambda x, s: (x.float() * s).clamp_max(8)),
}
WRONG_FLOAT32 = {
    "result in bfloat16": kernel(finish=lambda y, s: y.bfloat16()),
    "result in float16": kernel(finish=lambda y, s: y.half()),
}
"""Wrong if y is float32."""
WRONG_ROWS = {
    "scale of the row before": kernel(scale=lambda s: s.roll(1, 0)),
    "scale of the first row": kernel(scale=lambda s: s[:1]),
    "mean of the scales": kernel(scale=lambda s: s.mean()),
    "scales in reverse": kernel(scale=lambda s: s.flip(0)),
}
WRONG_BACKWARD = {
    "zeros": kernel(factor=lambda dx, s: 0 * dx),
    "no factor": kernel(factor=lambda dx, s: dx),
    "factor twice": kernel(factor=lambda dx, s: dx * s * s),
    "divides": kernel(factor=lambda dx, s: dx / s),
    "no sum": kernel(backward=lambda dy, y: dy * y),
    "scaled sum": kernel(backward=lambda dy, y: y * (dy - 0.9 * (dy * y).sum(dim=-1, keepdim=True))),
    "dy in 8 bits": kernel(backward=lambda dy, y: gradient((dy * 8).round() / 8, y)),
}


def wrong_ones(op, direction):
    """The wrong kernels of a case, by name."""
    found = {**WRONG_FORWARD, **(WRONG_FLOAT32 if "out_dtype" in op else {}), **(WRONG_ROWS if "row" in op else {})}
    if direction == "backward":
        found = {**WRONG_BACKWARD, **(WRONG_ROWS if "row" in op else {})}
    return found


def graded(make, op, dtype, direction, *, device="cpu", shape=(66, 257), seed=1):
    """The verdict of the check before timing, which follows a first call, as in a worker."""
    case = Case(*shape, dtype, Direction(direction), device, op)
    given, call = registry.numerics(op).make(case, 0, torch.device(device)), make(case)
    call(*given)
    return PreCheck(case, call, given, SimpleNamespace(name="user"), None).run(seed)
