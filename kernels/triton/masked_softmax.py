"""Softmax of attention scores (B, H, S, N) with scale, bias or mask, causal order and sink, and its gradient: rows in registers.

A program has whole rows of up to 16384 columns in registers, so it reads and writes each element once. A warp has 1024 columns.

- Causal: loads are masked beyond what the query sees, so memory is read up to there only. Zeros are written beyond. Long rows of 16 bits
  without mask and sink have kernels of their own (`causal_rows.py`).
- Bias and mask have strides of 0 along the axes that share them. Programs that share a row of them are neighbours in the grid, so it is
  read from memory once and from L2 later. Without H the heads are innermost, and without B the texts are.
- The sink of a head joins maximum and sum. Its share of the sum is written if the backward needs it.

exp(z - m) is exp2((z - m) log2 e), with the subtraction first (`softmax_ops.py`). A row in which nothing takes part has m = -inf without a
sink, so its results are NaN, as in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from ..common.masked_softmax import MaskedSoftmax
from .causal_rows import MOST_GRID, CausalPlan, backward_causal, causal_plan, forward_causal
from .dispatch import softmax, with_stable_key
from .generic import CONTRACTION
from .interpreter import INTERPRETED, interpreted_number
from .launch_plan import KEEP_IN_L2_BYTES, VECTOR_BYTES, WARP
from .packed_io import pack, rounded, unpack_high, unpack_low
from .softmax_ops import LOG2E, MINUS_INFINITY, exp_factor

MAX_COLUMNS = 16384
"""A row is at most 64 KiB of float32."""
SECTOR = tl.constexpr(16)
"""Causal loads end at a multiple of so many columns, so that they stay vectors; 16 bits have a sector of memory there."""
WARP_LANES = tl.constexpr(WARP)
NOT_SPECIALIZED = ["scale", "B", "H", "S", "first_sees"]
MAX_CACHED = 4096  # launches
REGISTERS = 64
"""Of a thread, at most: an SM then has two programs of 512 threads, or 32 of a warp, with 64 KiB of rows."""
WARP_COLUMNS = 1024
"""Columns of a warp: 32 of each thread."""
SHORT_BLOCK, SHORT_WARPS = 32, 8
"""A program of rows of up to 32 columns has as many elements as a warp of longer rows, on 8 warps. Each row has its own addresses, and
with the rows of 32 elements a thread spilled up to 1256 bytes."""
LEAST_CAUSAL_ROWS = 512
"""Fewer rows leave SMs idle, so their programs want more threads than those of `causal_rows.py`."""
HOPPER = 9


@triton.jit
def _rows(B, H, S, ROWS: tl.constexpr, ORDER: tl.constexpr):
    """Batch, head and query of a program's rows, (ROWS,) each, and whether they exist.

    ORDER: 0 has queries innermost, 1 heads (within a query), 2 texts (within a query), 3 both.
    """
    number = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    if ORDER == 1:
        h = number % H
        s = number // H % S
        b = number // H // S
    elif ORDER == 2:
        b = number % B
        s = number // B % S
        h = number // B // S
    elif ORDER == 3:
        h = number % H
        b = number // H % B
        s = number // H // B
    else:
        s = number % S
        h = number // S % H
        b = number // S // H
    return b, h, s, number < B * H * S


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def forward_scores(
    x_ptr, mask_ptr, sink_ptr, y_ptr, share_ptr, scale, B, H, S, N, mask_b, mask_h, mask_s, first_sees,
    KIND: tl.constexpr, CAUSAL: tl.constexpr, ORDER: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, POLICY: tl.constexpr,
):  # fmt: skip
    """ROWS rows a program. KIND: 0 without a mask, 1 a bias, 2 a mask of bytes. sink_ptr and share_ptr may be None."""
    VECTOR: tl.constexpr = min(BLOCK, 128 // x_ptr.dtype.element_ty.primitive_bitwidth)  # Triton fails to compile a larger one
    b, h, s, there = _rows(B, H, S, ROWS, ORDER)
    row = ((b * H + h) * S + s).to(tl.int64)
    columns = tl.arange(0, BLOCK)[None, :]
    inside = there[:, None] & (columns < N)
    read = inside
    if CAUSAL:
        seen = (s + first_sees)[:, None]
        read = inside & (columns < (seen + SECTOR - 1) // SECTOR * SECTOR)
    z = tl.load(x_ptr + row[:, None] * N + columns, mask=read, other=MINUS_INFINITY, eviction_policy=POLICY).to(tl.float32)
    if KIND > 0:
        place = (b.to(tl.int64) * mask_b + h.to(tl.int64) * mask_h + s.to(tl.int64) * mask_s)[:, None] + tl.max_contiguous(
            tl.multiple_of(columns, [1, VECTOR]), [1, VECTOR]
        )
    if KIND == 2:
        z = tl.where(tl.load(mask_ptr + place, mask=read, other=0) != 0, z, MINUS_INFINITY)
    if KIND == 1:
        z = z * scale + tl.load(mask_ptr + place, mask=read, other=0.0).to(tl.float32)
    if CAUSAL:
        z = tl.where(columns < seen, z, MINUS_INFINITY)
    if KIND == 1:
        factor = LOG2E
    elif sink_ptr is not None:
        z = z * scale
        factor = LOG2E
    else:
        factor = exp_factor(scale)
    m = tl.max(z, 1)
    if sink_ptr is not None:
        sink = tl.load(sink_ptr + h, mask=there, other=0.0).to(tl.float32)
        m = tl.maximum(m, sink)
    e = tl.exp2((z - m[:, None]) * factor)
    total = tl.sum(e, 1)
    if sink_ptr is not None:
        of_sink = tl.exp2((sink - m) * LOG2E)
        total += of_sink
    norm = 1.0 / total
    if share_ptr is not None:
        tl.store(share_ptr + row, of_sink * norm, mask=there)
    tl.store(y_ptr + row[:, None] * N + columns, rounded(e * norm[:, None], y_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def backward_scores(
    dy_ptr, y_ptr, share_ptr, dx_ptr, dsink_ptr, scale, B, H, S, N, first_sees,
    CAUSAL: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, POLICY: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """ROWS rows a program: dx = scale y (dy - sum(dy y)), and dsink = -share sum(dy y) unless share_ptr is None.

    y is 0 beyond what a query sees, so dy adds nothing there. PACKED: rows move as words of two elements of 16 bits. They stay packed in
    registers until they are used, and are unpacked again for the results.
    """
    EACH: tl.constexpr = 2 if PACKED else 1
    DTYPE: tl.constexpr = y_ptr.dtype.element_ty
    _, _, s, there = _rows(B, H, S, ROWS, 0)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK // EACH)[None, :]
    inside = there[:, None] & (columns < N // EACH)
    read = inside
    if CAUSAL:
        read = inside & (columns < (s[:, None] + first_sees + SECTOR - 1) // SECTOR * (SECTOR // EACH))
    place = row[:, None] * (N // EACH) + columns
    if PACKED:
        dy_ptr = dy_ptr.to(tl.pointer_type(tl.int32), bitcast=True)
        y_ptr = y_ptr.to(tl.pointer_type(tl.int32), bitcast=True)
        dx_ptr = dx_ptr.to(tl.pointer_type(tl.int32), bitcast=True)
    dy = tl.load(dy_ptr + place, mask=read, other=0, eviction_policy=POLICY)
    y = tl.load(y_ptr + place, mask=read, other=0, eviction_policy=POLICY)
    if PACKED:
        dot = tl.sum(unpack_low(dy, DTYPE) * unpack_low(y, DTYPE) + unpack_high(dy, DTYPE) * unpack_high(y, DTYPE), 1)
    elif BLOCK <= WARP_LANES:
        # Lanes may have one element of a row each. Contracted with the sum, each would round its own product less, and their sums differ.
        dot = tl.sum(tl.fma(dy.to(tl.float32), y.to(tl.float32), 0.0), 1)
    else:
        dot = tl.sum(dy.to(tl.float32) * y.to(tl.float32), 1)
    if share_ptr is not None:
        tl.store(dsink_ptr + row, -tl.load(share_ptr + row, mask=there, other=0.0) * dot, mask=there)
    d = dot[:, None]
    if PACKED:
        zero = tl.where(d != d, -1, 0)  # of a NaN, every result is NaN in any case
        dy = dy | zero
        y = y | zero
        lower = unpack_low(y, DTYPE) * (unpack_low(dy, DTYPE) - d) * scale
        upper = unpack_high(y, DTYPE) * (unpack_high(dy, DTYPE) - d) * scale
        tl.store(dx_ptr + place, pack(lower, upper, DTYPE), mask=inside)
    else:
        tl.store(dx_ptr + place, rounded(y.to(tl.float32) * (dy.to(tl.float32) - d) * scale, DTYPE), mask=inside)


@dataclass(frozen=True, slots=True)
class Shape:
    """How rows of N columns are spread over programs."""

    rows: int
    """Rows of a program."""
    block: int
    """Columns of a program's rows: N, or the next power of two."""
    warps: int


def shape_of(N: int, reads: int) -> Shape:
    """The shape of a launch that has `reads` tensors of rows unpacked. A thread has 32 elements of one of them, or 16 of each of two."""
    block = triton.next_power_of_2(N)
    columns = WARP_COLUMNS // reads
    return Shape(max(1, columns // block), block, SHORT_WARPS if block <= SHORT_BLOCK else max(1, min(32, block // columns)))


def launch_forward(
    x: torch.Tensor, mask: torch.Tensor | None, sink: torch.Tensor | None, y: torch.Tensor, share: torch.Tensor | None,
    scale: float, causal: bool, *, by_column: bool = False,
) -> None:  # fmt: skip
    """y of contiguous scores, and the share of the sink if `share` is given. A mask is a bias or a bool that is expanded to x.

    `by_column`: by the kernels for all N, whose order of sums does not depend on the number of rows.
    """
    B, H, S, N = x.shape
    if causal and not by_column and mask is None and sink is None and (plan := _causal_plan(False, x, y)) is not None:
        return _launch_causal(forward_causal, plan, (x, y), (x,), scale)
    shape, kind = shape_of(N, 1), 0 if mask is None else 2 if mask.dtype is torch.bool else 1
    strides = (0, 0, 0) if mask is None else mask.stride()[:3]
    order = 0 if mask is None or not strides[2] else (strides[1] == 0 and H > 1) + 2 * (strides[0] == 0 and B > 1)
    given = mask.view(torch.uint8) if kind == 2 and mask is not None else mask
    numbers = B, H, S, N, *strides, 1 + max(0, N - S)
    constants = kind, causal, order, shape.rows, shape.block, _policy(x)
    registers = None if kind == 1 and x.dtype is torch.float32 else REGISTERS  # a bias of float32 would spill
    grid = triton.cdiv(B * H * S, shape.rows), 1, 1
    _launch(forward_scores, (x, given, sink, y, share), scale, numbers, constants, grid, shape.warps, registers)
    return None


def launch_backward(
    dy: torch.Tensor, y: torch.Tensor, share: torch.Tensor | None, dx: torch.Tensor, dsink: torch.Tensor | None,
    scale: float, causal: bool, *, by_column: bool = False,
) -> None:  # fmt: skip
    """dx of contiguous dy and y, and dsink of each row if the share of the sink is given. `by_column`: as in `launch_forward`."""
    B, H, S, N = y.shape
    if causal and not by_column and share is None and (plan := _causal_plan(True, dy, y, dx)) is not None:
        return _launch_causal(backward_causal, plan, (dy, y, dx), (dy, y), scale)
    packed = N % 2 == 0 and all(tensor.element_size() == 2 and tensor.data_ptr() % 4 == 0 for tensor in (dy, y, dx))
    shape = shape_of(N, 1 if packed else 2)
    constants = causal, shape.rows, shape.block, _policy(dy, y), packed
    registers = REGISTERS if packed else None
    grid, numbers = (triton.cdiv(B * H * S, shape.rows), 1, 1), (B, H, S, N, 1 + max(0, N - S))
    _launch(backward_scores, (dy, y, share, dx, dsink), scale, numbers, constants, grid, shape.warps, registers)
    return None


def _causal_plan(backward: bool, *tensors: torch.Tensor) -> CausalPlan | None:
    """The plan of the kernels for long causal rows if they can take these, or None. Their limits of registers are those of Hopper."""
    B, H, S, N = tensors[0].shape
    aligned = all(tensor.element_size() == 2 and tensor.data_ptr() % VECTOR_BYTES == 0 for tensor in tensors)
    many = LEAST_CAUSAL_ROWS <= B * H * S and max(B, H) <= MOST_GRID
    return causal_plan(N, backward) if many and aligned and _hopper(tensors[0].device) else None


def _launch_causal(
    kernel: Any, plan: CausalPlan, tensors: tuple[torch.Tensor, ...], inputs: tuple[torch.Tensor, ...], scale: float
) -> None:
    B, H, S, N = tensors[0].shape
    numbers = N * tensors[0].element_size() // VECTOR_BYTES, 1 + max(0, N - S)
    constants = plan.tiles, plan.threads, plan.group, _policy(*inputs) != ""
    _launch(kernel, tensors, scale, numbers, constants, (S, H, B), plan.threads // WARP, plan.registers)


_cache: dict[tuple[Hashable, ...], Callable[..., object]] = {}


def _launch(
    kernel: Any, tensors: tuple[torch.Tensor | None, ...], scale: float, numbers: tuple[int, ...], constants: tuple[int | str, ...],
    grid: tuple[int, int, int], warps: int, registers: int | None,
) -> None:  # fmt: skip
    """Launches a kernel. Triton's binder takes longer than a small kernel, so a compiled one is called by what it is specialized on."""
    device = next(tensor.device for tensor in tensors if tensor is not None)
    if device.type == "cuda" and device.index != torch.cuda.current_device():  # Triton launches on the current device
        with torch.cuda.device(device):
            return _launch(kernel, tensors, scale, numbers, constants, grid, warps, registers)
    kinds = tuple(None if tensor is None else (tensor.dtype, tensor.data_ptr() % 16) for tensor in tensors)
    key = (kernel, device, kinds, numbers, constants, grid)
    if (found := _cache.get(key)) is not None:
        addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        found(*addresses, scale, *numbers, *constants)
        return None
    options = {"num_warps": warps, **CONTRACTION} | ({} if INTERPRETED or registers is None else {"maxnreg": registers})
    compiled = with_stable_key(kernel)[grid](*tensors, _number(scale), *numbers, *constants, **options)
    if hasattr(compiled, "function"):  # not under the interpreter
        if len(_cache) >= MAX_CACHED:
            _cache.clear()
        _cache[key] = compiled[grid]
    return None


def _policy(*inputs: torch.Tensor) -> str:
    """See `softbench.kernels.triton.launch_plan.Problem.keep_in_l2`."""
    large = sum(tensor.nbytes for tensor in inputs) >= KEEP_IN_L2_BYTES
    return "evict_last" if large and inputs[0].is_cuda and _hopper(inputs[0].device) else ""


def _hopper(device: torch.device) -> bool:
    """True on a GPU of compute capability 9.0, and under the interpreter, which runs the kernels for it too."""
    return INTERPRETED or (device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) == (HOPPER, 0))


def _number(value: float) -> Any:
    return interpreted_number(value) if INTERPRETED else float(value)


masked_softmax = MaskedSoftmax(softmax, launch_forward, launch_backward, MAX_COLUMNS)
"""masked_softmax(x): differentiable in x and sink; see `softbench.kernels.common.masked_softmax.MaskedSoftmax`."""
