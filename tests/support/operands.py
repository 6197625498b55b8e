"""Operands and tolerances of the operators' tests on a GPU."""

import torch

LONG = 20_000  # longer than every tile
LAYOUTS = {
    "transposed": lambda dtype: randn(7, 5, dtype=dtype).t(),
    "every second column": lambda dtype: randn(5, 14, dtype=dtype)[:, ::2],
    "expanded columns": lambda dtype: randn(5, 1, dtype=dtype).expand(5, 7),
    "expanded rows": lambda dtype: randn(1, 7, dtype=dtype).expand(5, 7),
    "row stride over N": lambda dtype: randn(12, 128, dtype=dtype)[:, :100],
    "offset by one element": lambda dtype: randn(12 * 128 + 1, dtype=dtype)[1:].view(12, 128),
    "channels-last": lambda dtype: randn(2, 3, 4, 5, dtype=dtype).to(memory_format=torch.channels_last),
}
TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def randn(*shape, dtype=torch.float32):
    return torch.randn(shape, device="cuda", dtype=dtype)


def gradient(dy, y, dim=-1):
    return y.double() * (dy.double() - (dy.double() * y.double()).sum(dim, keepdim=True))


def close(got, expected, dtype=torch.float32):
    torch.testing.assert_close(got.double(), expected.double(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * 1e-2)
