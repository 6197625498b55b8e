"""Softmax in cuTile, NVIDIA's tile language for Python.

A block loads, reduces and stores a row as one tile. A tile has a power of two of columns; cuTile fills what lies beyond the row. It
chooses threads, registers and copies itself.

softbench run --plugin cutile_row.py
"""

import cuda.tile as ct
import torch

MAX_COLUMNS = 32768  # a longer row does not fit the registers of a block
MAX_BLOCKS = 2**24 - 1  # of a launch


@ct.kernel
def forward_row(x, y, BLOCK: ct.Constant[int]):
    row = ct.bid(0)
    given = ct.load(x, index=(row, 0), shape=(1, BLOCK), padding_mode=ct.PaddingMode.NEG_INF)
    values = ct.astype(given, ct.float32)
    numerator = ct.exp(values - ct.max(values, axis=1, keepdims=True))
    result = numerator / ct.sum(numerator, axis=1, keepdims=True)
    ct.store(y, index=(row, 0), tile=ct.astype(result, y.dtype))


@ct.kernel
def backward_row(dy, y, dx, BLOCK: ct.Constant[int]):
    row = ct.bid(0)
    gradients = ct.astype(ct.load(dy, index=(row, 0), shape=(1, BLOCK), padding_mode=ct.PaddingMode.ZERO), ct.float32)
    values = ct.astype(ct.load(y, index=(row, 0), shape=(1, BLOCK), padding_mode=ct.PaddingMode.ZERO), ct.float32)
    result = values * (gradients - ct.sum(gradients * values, axis=1, keepdims=True))
    ct.store(dx, index=(row, 0), tile=ct.astype(result, dx.dtype))


def launch(kernel, *tensors: torch.Tensor) -> torch.Tensor:
    """Run a kernel over the rows of tensors on the current stream; it writes the last one."""
    N = tensors[0].shape[1]
    for parts in zip(*(one.split(MAX_BLOCKS) for one in tensors), strict=True):
        ct.launch(torch.cuda.current_stream(), (len(parts[0]), 1, 1), kernel, (*parts, 1 << (N - 1).bit_length()))
    return tensors[-1]


def supports(case) -> str | None:
    """None, or why a run skips the case."""
    return None if case.M and 0 < case.N <= MAX_COLUMNS else f"it takes at least one row, of 1 to {MAX_COLUMNS} elements"


def softmax(x: torch.Tensor) -> torch.Tensor:
    return launch(forward_row, x, torch.empty_like(x))


def softmax_backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return launch(backward_row, dy, y, torch.empty_like(y))
