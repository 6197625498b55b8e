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
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from ..common.rows import check_same
from ..common.softmax import Softmax
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


Tensors = tuple[torch.Tensor | None, ...]
Rows = Callable[..., None]


class Launch(NamedTuple):
    """A launch on tensors of one layout."""

    kernel: Any
    taken: tuple[int, ...]
    """Which of the tensors the kernel has."""
    numbers: tuple[int | str, ...]
    """The arguments after the scale."""
    grid: tuple[int, int, int]
    warps: int
    registers: int | None


def launch_forward(
    x: torch.Tensor, mask: torch.Tensor | None, sink: torch.Tensor | None, y: torch.Tensor, share: torch.Tensor | None,
    scale: float, causal: bool, by_column: bool = False, rows: Rows = softmax.launch_forward,
) -> None:  # fmt: skip
    """Writes y of contiguous scores, and the share of the sink if there is a tensor for it. Both are fresh, so they are aligned.

    A mask is a bias or a bool that broadcasts to x, with adjacent keys. `by_column`: by the kernels for all N, whose order of sums does not
    depend on the number of rows. Without mask, order and sink, `rows` launches softmax.
    """
    if mask is None and sink is None and not causal:
        N = x.shape[3]
        return rows(x.view(-1, N), y.view(-1, N), scale)
    layouts = x.data_ptr() % VECTOR_BYTES, _layout(mask), _layout(sink), share is None
    return _launch(_forward, (x.shape, x.dtype, causal, by_column, *layouts), (x, mask, sink, y, share), scale)


def launch_backward(
    dy: torch.Tensor, y: torch.Tensor, share: torch.Tensor | None, dx: torch.Tensor, dsink: torch.Tensor | None,
    scale: float, causal: bool, by_column: bool = False, rows: Rows = softmax.launch_backward,
) -> None:  # fmt: skip
    """Writes dx of contiguous dy and y, and dsink of each row if the share of the sink is given. See `launch_forward`."""
    if share is None and not causal:
        N = y.shape[3]
        return rows(dy.view(-1, N), y.view(-1, N), dx.view(-1, N), scale)
    layouts = dy.data_ptr() % VECTOR_BYTES, y.data_ptr() % VECTOR_BYTES, _layout(share)
    return _launch(_backward, (y.shape, y.dtype, causal, by_column, *layouts), (dy, y, share, dx, dsink), scale)


def _layout(tensor: torch.Tensor | None) -> Hashable:
    return None if tensor is None else (tensor.dtype, tensor.shape, tensor.stride(), tensor.data_ptr() % VECTOR_BYTES)


def _forward(tensors: tuple[Any, ...], causal: bool, by_column: bool) -> Launch:
    x, mask, sink, y, _ = tensors
    B, H, S, N = x.shape
    if causal and not by_column and mask is None and sink is None and (found := _long_causal(forward_causal, (0, 3), x, y)) is not None:
        return found
    shape, kind = shape_of(N, 1), 0 if mask is None else 2 if mask.dtype is torch.bool else 1
    strides = (0, 0, 0) if mask is None else mask.expand(x.shape).stride()[:3]
    order = 0 if mask is None or not strides[2] else (strides[1] == 0 and H > 1) + 2 * (strides[0] == 0 and B > 1)
    numbers = B, H, S, N, *strides, 1 + max(0, N - S), kind, causal, order, shape.rows, shape.block, _policy(x)
    registers = None if kind == 1 and x.dtype is torch.float32 else REGISTERS  # a bias of float32 would spill
    return Launch(forward_scores, (0, 1, 2, 3, 4), numbers, (triton.cdiv(B * H * S, shape.rows), 1, 1), shape.warps, registers)


def _backward(tensors: tuple[Any, ...], causal: bool, by_column: bool) -> Launch:
    dy, y, share, dx, _ = tensors
    B, H, S, N = y.shape
    if causal and not by_column and share is None and (found := _long_causal(backward_causal, (0, 1, 3), dy, y, dx)) is not None:
        return found
    packed = N % 2 == 0 and all(tensor.element_size() == 2 and tensor.data_ptr() % 4 == 0 for tensor in (dy, y, dx))
    shape = shape_of(N, 1 if packed else 2)
    numbers = B, H, S, N, 1 + max(0, N - S), causal, shape.rows, shape.block, _policy(dy, y), packed
    registers = REGISTERS if packed else None
    return Launch(backward_scores, (0, 1, 2, 3, 4), numbers, (triton.cdiv(B * H * S, shape.rows), 1, 1), shape.warps, registers)


def _long_causal(kernel: Any, taken: tuple[int, ...], *tensors: torch.Tensor) -> Launch | None:
    """The launch of a kernel for long causal rows if it can take these, or None. Limits of registers are those of Hopper."""
    B, H, S, N = tensors[0].shape
    aligned = all(tensor.element_size() == 2 and tensor.data_ptr() % VECTOR_BYTES == 0 for tensor in tensors)
    many = LEAST_CAUSAL_ROWS <= B * H * S and max(B, H) <= MOST_GRID
    plan = causal_plan(N, len(tensors) == 3) if many and aligned and _hopper(tensors[0].device) else None
    return None if plan is None else causal_launch(kernel, plan, taken, tensors, 1 + max(0, N - S))


def causal_launch(kernel: Any, plan: CausalPlan, taken: tuple[int, ...], tensors: tuple[torch.Tensor, ...], first_sees: int) -> Launch:
    """The launch of a plan on (x, y) or (dy, y, dx), of which `taken` are the places among the tensors of a pass."""
    B, H, S, N = tensors[0].shape
    keep_in_l2 = _policy(*tensors[:-1]) != ""
    numbers = N * tensors[0].element_size() // VECTOR_BYTES, first_sees, plan.tiles, plan.threads, plan.group, keep_in_l2
    return Launch(kernel, taken, numbers, (S, H, B), plan.threads // WARP, plan.registers)


_cache: dict[tuple[Hashable, ...], tuple[Callable[..., object], Launch]] = {}


def _launch(choose: Callable[[tuple[Any, ...], bool, bool], Launch], layout: tuple[Any, ...], tensors: Tensors, scale: float) -> None:
    """Launches a pass. A launch is chosen once for a layout of tensors, and a compiled kernel is called without Triton's binder."""
    first: Any = tensors[0]
    device = first.device
    if device.type == "cuda" and device.index != torch._C._cuda_getDevice():  # Triton launches on the current device
        with torch.cuda.device(device):
            return _launch(choose, layout, tensors, scale)
    key = choose, device.index, layout
    if (found := _cache.get(key)) is None:
        launch = choose(tensors, *layout[2:4])
        compiled = run(launch, tensors, scale)
        if hasattr(compiled, "function"):  # not under the interpreter
            if len(_cache) >= MAX_CACHED:
                _cache.clear()
            _cache[key] = compiled[launch.grid], launch
        return None
    run_compiled, launch = found
    addresses = [None if (one := tensors[at]) is None else one.data_ptr() for at in launch.taken]
    run_compiled(*addresses, scale, *launch.numbers, stream=torch._C._cuda_getCurrentRawStream(device.index))
    return None


def run(launch: Launch, tensors: Tensors, scale: float) -> Any:
    """Launches through Triton's interface, which compiles the kernel if necessary; returns the compiled kernel."""
    taken = [tensors[at] for at in launch.taken]
    given = [one.view(torch.uint8) if one is not None and one.dtype is torch.bool else one for one in taken]
    registers = {} if INTERPRETED or launch.registers is None else {"maxnreg": launch.registers}
    number = interpreted_number(scale) if INTERPRETED else scale
    return with_stable_key(launch.kernel)[launch.grid](*given, number, *launch.numbers, num_warps=launch.warps, **CONTRACTION, **registers)


def _policy(*inputs: torch.Tensor) -> str:
    """See `softbench.kernels.triton.launch_plan.Problem.keep_in_l2`."""
    large = sum(tensor.nbytes for tensor in inputs) >= KEEP_IN_L2_BYTES
    return "evict_last" if large and inputs[0].is_cuda and _hopper(inputs[0].device) else ""


def _hopper(device: torch.device) -> bool:
    """True on a GPU of compute capability 9.0, and under the interpreter, which runs the kernels for it too."""
    return INTERPRETED or (device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) == (HOPPER, 0))


@dataclass(frozen=True, slots=True)
class MaskedSoftmax:
    """softmax(scale x + bias) over the last axis of scores (B, H, S, N), and its gradient, without autograd.

    Scores that have neither mask, causal order nor sink are rows of softmax with a scale, and so is a gradient without causal order and
    sink. Softmax takes those, so they may have any number of columns; others have at most MAX_COLUMNS. The caller has checked x and scale.
    """

    softmax: Softmax
    by_column: bool = False
    """See `launch_forward`."""

    def forward(
        self, x: torch.Tensor, *, scale: float = 1.0, mask: torch.Tensor | None = None, causal: bool = False,
        sink: torch.Tensor | None = None, shares: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
        """y, and with `shares` the share of the sink, float32 of shape (B, H, S).

        Args:
            mask: a bias that is added, or a bool that is True where an element takes part; any shape that broadcasts to that of x.
            causal: query s sees its first s + 1 + max(0, N - S) keys.
            sink: (H,), a logit of each head that joins the sum and has no result.

        Raises:
            RuntimeError: mask or sink have another shape.
        """
        x = x.contiguous()
        if mask is not None:
            mask = mask.expand_as(x)
            mask = mask if mask.stride(3) == 1 or x.shape[3] == 1 else mask.contiguous()
        y, share = torch.empty_like(x), None
        if sink is not None:
            sink = sink.expand(x.shape[1]).contiguous()
            share = x.new_empty(x.shape[:3], dtype=torch.float32) if shares else None
        if x.numel():
            launch_forward(x, mask, sink, y, share, float(scale), causal, self.by_column, self.softmax.launch_forward)
        return y, share

    def backward(
        self, dy: torch.Tensor, y: torch.Tensor, share: torch.Tensor | None = None, *, scale: float = 1.0, causal: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """dx, and dsink of each row if the share of the sink is given: float32 of shape (B, H, S). TypeError: shapes or dtypes differ."""
        check_same(dy, y)
        if share is not None:
            share = share.expand(y.shape[:3]).contiguous()
        dy, y = dy.contiguous(), y.contiguous()
        dx, dsink = torch.empty_like(y), None if share is None else torch.empty_like(share)
        if y.numel():
            launch_backward(dy, y, share, dx, dsink, float(scale), causal, self.by_column, self.softmax.launch_backward)
        return dx, dsink


masked_softmax = MaskedSoftmax(softmax)
