"""Softmax by tiles: several rows a program. Tensor descriptors (Hopper's bulk copies) move the tiles if the strides allow it.

- Descriptors need a base and row strides that are multiples of 16 bytes. float32 rows of 781 or 50257 elements have others, and take masked
  pointers instead. (Block pointers, which older tutorials use here, are gone in Triton 3.9.)
- Heuristics compute the tile's shape from N before the autotuner looks up its key. The autotuner chooses only the number of warps, once
  for each power of two of N.
- Rows longer than a tile go to `dispatch.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from . import dispatch
from .generic import CONTRACTION, TILE_COLUMNS, backward_tile, block_m, block_n, forward_tile
from .interpreter import INTERPRETED

DESCRIPTOR_ALIGNMENT = 16  # bytes, of a descriptor's base and strides
WARPS = (1, 2, 4, 8, 16)


@triton.jit
def forward_descriptor(x, y, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    first = tl.program_id(0) * BLOCK_M
    columns = tl.arange(0, BLOCK_N)
    tile = x.load([first, 0]).to(tl.float32)  # outside the tensor it reads zeros, which would change a maximum
    tile = tl.where((columns < N)[None, :], tile, -float("inf"))
    numerator = tl.exp(tile - tl.max(tile, 1)[:, None])
    y.store([first, 0], (numerator / tl.sum(numerator, 1)[:, None]).to(y.dtype))


@triton.jit
def backward_descriptor(dy, y, dx, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    first = tl.program_id(0) * BLOCK_M
    dy_tile = dy.load([first, 0]).to(tl.float32)
    y_tile = y.load([first, 0]).to(tl.float32)  # outside the tensor both read zeros, which add nothing to the dot product
    dx.store([first, 0], (y_tile * (dy_tile - tl.sum(dy_tile * y_tile, 1)[:, None])).to(dx.dtype))


def autotuned(kernel: triton.JITFunction, tiles: int) -> triton.JITFunction:
    """`kernel` with its tile by heuristics and its warps by autotuning. `tiles`: how many tiles it has in registers at once."""
    configs = [triton.Config({}, num_warps=warps, num_stages=1) for warps in WARPS]
    tuner = triton.autotune(configs=configs, key=["BLOCK_N"])(kernel)
    heuristics = {"BLOCK_M": lambda args: block_m(tiles * args["N"]), "BLOCK_N": lambda args: block_n(args["N"])}
    return triton.heuristics(heuristics)(tuner)


if INTERPRETED:  # the autotuner fails under the interpreter: the kernels without it, with the same tile
    KERNELS = (forward_tile, backward_tile, forward_descriptor, backward_descriptor)
else:
    KERNELS = autotuned(forward_tile, 1), autotuned(backward_tile, 2), autotuned(forward_descriptor, 1), autotuned(backward_descriptor, 2)
FORWARD_TILE, BACKWARD_TILE, FORWARD_DESCRIPTOR, BACKWARD_DESCRIPTOR = KERNELS


def takes_descriptor(tensor: torch.Tensor) -> bool:
    """Whether a tensor descriptor can move tiles of these (M, N) rows."""
    size = tensor.element_size()
    aligned = tensor.data_ptr() % DESCRIPTOR_ALIGNMENT == 0 and tensor.stride(0) * size % DESCRIPTOR_ALIGNMENT == 0
    wide_enough = block_n(tensor.shape[1]) * size >= DESCRIPTOR_ALIGNMENT
    return aligned and tensor.stride(0) >= tensor.shape[1] and wide_enough and tensor.stride(1) == 1


def launch(tensors: tuple[torch.Tensor, ...], with_pointers: triton.JITFunction, with_descriptors: triton.JITFunction) -> None:
    """Runs one of the two kernels over the tensors' rows. It writes the last tensor."""
    M, N = tensors[0].shape
    BM, BN = block_m(N * (len(tensors) - 1)), block_n(N)
    grid = (triton.cdiv(M, BM),)
    constants = {"BLOCK_M": BM, "BLOCK_N": BN} if INTERPRETED else {}
    if all(takes_descriptor(tensor) for tensor in tensors):
        if not INTERPRETED:
            # Encoding a descriptor needs a current CUDA context, which autograd's thread may lack. Any runtime call creates it.
            torch.cuda.is_current_stream_capturing()
        with_descriptors[grid](*[TensorDescriptor.from_tensor(tensor, [BM, BN]) for tensor in tensors], N, **constants, **CONTRACTION)
    else:
        with_pointers[grid](*tensors, *[tensor.stride(0) for tensor in tensors], M, N, **constants, **CONTRACTION)


def launch_forward(x: torch.Tensor, y: torch.Tensor) -> None:
    """y = softmax(x) by tiles of rows; see `softbench.kernels.common.rows.Launch`."""
    if x.shape[1] > TILE_COLUMNS:
        dispatch.launch_forward(x, y)
    else:
        launch((x, y), FORWARD_TILE, FORWARD_DESCRIPTOR)


def launch_backward(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor) -> None:
    """dx by tiles of rows; see `softbench.kernels.common.rows.Launch`."""
    if y.shape[1] > TILE_COLUMNS // 2:
        dispatch.launch_backward(dy, y, dx)
    else:
        launch((dy, y, dx), BACKWARD_TILE, BACKWARD_DESCRIPTOR)


softmax = dispatch.softmax_of(launch_forward, launch_backward)
"""softmax(x, dim=-1), any shape and strides; see `softbench.kernels.common.softmax.Softmax`."""
