"""Rows without their mean, in units of their deviation: y = w h with h = (x - mean(x)) / sqrt(var(x) + EPS), and its gradient to x."""

import torch

from softbench.ops.operation import Operation, Pass, Preset, TensorSpec
from softbench.ops.values import Values

EPS = 1e-5
U = 2.0**-24  # half the spacing of float32 at 1, in which kernels compute
U_OUT = {"fp32": 0.0, "fp16": 2.0**-11, "bf16": 2.0**-8}  # the last rounding, to the dtype of the output
ETA = 2.0**-25  # half the spacing of the smallest fp16 numbers

ROWS = TensorSpec(("M", "N"))
OPERATION = Operation(
    name="standardize",
    summary="(x - mean(x)) / sqrt(var(x) + 1e-5) * w of each row, and its gradient to x",
    tensors={"x": ROWS, "w": TensorSpec(("N",)), "y": ROWS, "dy": ROWS, "dx": ROWS},
    passes={
        "forward": Pass(inputs=("x", "w"), outputs=("y",), reads=("x", "w")),
        "backward": Pass(inputs=("dy", "x", "w"), outputs=("dx",), reads=("dy", "x", "w")),
    },
    presets={"gpt2": Preset(("8192x768", "8192x1600"), "hidden sizes of GPT-2 and GPT-2 XL, 8 texts of 1024 tokens")},
)


def mean(rows):
    return rows.mean(dim=-1, keepdim=True)


class Standardize(Values):
    def draw(self, case, random):
        rows = [random.normal(case.M, case.N) for _ in OPERATION.passes[case.direction].inputs[:-1]]
        return *rows, 1 + 0.1 * random.normal(case.N)

    def parts(self, x):
        """h, 1 / sqrt(var(x) + EPS), and the size of the terms of h, which cancel."""
        below = x - mean(x)
        r = torch.rsqrt(mean(below.square()) + EPS)
        return below * r, r, r * (x.abs() + mean(x.abs()))

    def reference(self, case, *inputs):
        *rows, w = inputs
        h, r, _ = self.parts(rows[-1])
        if case.direction == "forward":
            return (w * h,)
        g = w * rows[0]
        return (r * (g - mean(g) - h * mean(g * h)),)

    def bound(self, case, *inputs):
        """Roundings of a sum of N terms add up as a random walk, to sqrt(N) u. Terms cancel, so their sizes count and not the results."""
        *rows, w = inputs
        h, r, size = self.parts(rows[-1])
        sizes = w.abs() * size
        if case.direction == "backward":
            g = (w * rows[0]).abs()
            sizes = r * (g + mean(g) + size * mean(g * h.abs()) + h.abs() * mean(g * size))
        (exact,) = self.reference(case, *inputs)
        return (U_OUT[case.dtype] * exact.abs() + U * (16 + case.N**0.5) * sizes + ETA,)

    def structured_rows(self, case):
        """The last rows but the weight are x; in the backward dy is before it and stays normal."""
        return {
            "small, so that EPS counts": lambda *given: given[-2].mul_(1e-3),
            "large": lambda *given: given[-2].mul_(100),
            "with one element of 300": lambda *given: given[-2][:, -1:].fill_(300),
            "with a mean": lambda *given: given[-2].add_(4),
            "far from zero": lambda *given: given[-2].add_(1000),
        }


NUMERICS = Standardize()
