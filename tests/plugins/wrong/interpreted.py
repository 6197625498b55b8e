"""A softmax whose Triton kernel runs in Triton's interpreter, which the file selects itself."""

import os

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl

from softbench import Direction


@triton.jit
def row(x, y, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    values = tl.load(x + at)
    e = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + at, e / tl.sum(e, axis=0))


def softmax(x):
    y = torch.empty_like(x)
    row[(x.shape[0],)](x, y, N=x.shape[1])
    return y


class Interpreted:
    name = "interpreted-by-itself"

    def available(self):
        return None

    def supports(self, case):
        return None if case.direction is Direction.FORWARD else "forward only"

    def prepare(self, case):
        return softmax


backend = Interpreted()
