"""RMSNorm over the last axis: y = r w x with r = 1 / sqrt(mean(x^2) + EPS), and its gradient to x."""

import torch

from softbench.ops.operation import Operation, Pass, Preset, TensorSpec
from softbench.ops.values import Values

EPS = 1e-6
U = 2.0**-24  # half the spacing of float32 at 1, in which kernels compute
U_OUT = {"fp32": 0.0, "fp16": 2.0**-11, "bf16": 2.0**-8}  # the last rounding, to the dtype of the output
ETA = 2.0**-25  # half the spacing of the smallest fp16 numbers

ROWS = TensorSpec(("M", "N"))
OPERATION = Operation(
    name="rms_norm",
    summary="x / sqrt(mean(x^2) + 1e-6) * w of each row, and its gradient to x",
    tensors={"x": ROWS, "w": TensorSpec(("N",)), "y": ROWS, "dy": ROWS, "dx": ROWS},
    passes={
        "forward": Pass(inputs=("x", "w"), outputs=("y",), reads=("x", "w")),
        "backward": Pass(inputs=("dy", "x", "w"), outputs=("dx",), reads=("dy", "x", "w")),
    },
    presets={"llama": Preset(("4096x2048", "4096x4096", "4096x8192"), "hidden sizes of Llama 3.2 1B, 3 8B and 3 70B, 4096 tokens")},
)


class RmsNorm(Values):
    def draw(self, case, random):
        rows = [random.normal(case.M, case.N) for _ in OPERATION.passes[case.direction].inputs[:-1]]
        return *rows, 1 + 0.1 * random.normal(case.N)

    def reference(self, case, *inputs):
        *rows, w = inputs
        r = torch.rsqrt(rows[-1].square().mean(dim=-1, keepdim=True) + EPS)
        if case.direction == "forward":
            return (r * w * rows[0],)
        dy, x = rows
        return (r * w * dy - r**3 * x * (w * dy * x).mean(dim=-1, keepdim=True),)

    def bound(self, case, *inputs):
        """Roundings of a sum of N terms add up as a random walk, to sqrt(N) u. Terms of dx cancel, so their sizes count and not dx."""
        (exact,) = self.reference(case, *inputs)
        sizes = exact.abs()
        if case.direction == "backward":
            dy, x, w = inputs
            r = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + EPS)
            sizes = (r * w * dy).abs() + r**3 * x.abs() * (w * dy * x).abs().mean(dim=-1, keepdim=True)
        return (U_OUT[case.dtype] * exact.abs() + U * (16 + case.N**0.5) * sizes + ETA,)

    def structured_rows(self, case):
        """The last rows but the weight are x; in the backward dy is before it and stays normal."""
        return {
            "constant": lambda *given: given[-2].fill_(3),
            "small, so that EPS counts": lambda *given: given[-2].mul_(1e-3),
            "large": lambda *given: given[-2].mul_(100),
            "with one element of 300": lambda *given: given[-2][:, -1:].fill_(300),
            "with a mean": lambda *given: given[-2].add_(4),
        }


NUMERICS = RmsNorm()
