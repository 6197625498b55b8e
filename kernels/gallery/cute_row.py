"""Softmax in CuTe DSL, the Python of CUTLASS.

A block of threads takes a row, whole in registers, in vectors of up to 16 bytes. CuTe describes where things lie by layouts:
`zipped_divide` turns a row into columns of vectors, and each thread copies every T-th of them. The DSL compiles a kernel for each N
and dtype; the number of rows is a variable.

softbench run --plugin cute_row.py
"""

import functools
import math
import operator

import cutlass
import torch
from cutlass import cute
from cutlass.cute import arch, runtime

MAX_COLUMNS = 65536  # a longer row does not fit the registers of a block
DTYPES = {torch.float32: cutlass.Float32, torch.float16: cutlass.Float16, torch.bfloat16: cutlass.BFloat16}


@cute.jit
def over_block(value: cutlass.Float32, combine: cutlass.Constexpr, threads: cutlass.Constexpr) -> cutlass.Float32:
    """The value over all threads of the block: by shuffles within a warp, then through shared memory."""
    of_warps = cutlass.utils.SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout(threads // 32))
    value = arch.warp_reduction(value, combine)
    warp = arch.warp_idx()  # by a shuffle, in which all threads of a warp take part
    arch.sync_threads()  # the last use of this memory is over
    if arch.lane_idx() == 0:
        of_warps[warp] = value
    arch.sync_threads()
    value = of_warps[0]
    for other in cutlass.range_constexpr(1, threads // 32):
        value = combine(value, of_warps[other])
    return value


@cute.jit
def read(row: cute.Tensor, vector: cutlass.Constexpr, threads: cutlass.Constexpr, outside: cutlass.Constexpr) -> cute.Tensor:
    """This thread's elements of a row, in registers. Beyond the row they have the value `outside`."""
    vectors = cute.zipped_divide(row, (vector,))  # (element of the vector, number of the vector)
    count = cute.size(vectors, mode=[1])
    steps = cute.ceil_div(count, threads)
    mine = cute.make_rmem_tensor((vector, steps), row.element_type)
    mine.fill(row.element_type(outside))
    for step in cutlass.range_constexpr(steps):
        i = step * threads + arch.thread_idx()[0]
        if i < count:
            cute.autovec_copy(vectors[None, i], mine[None, step])
    return mine


@cute.jit
def write(mine: cute.Tensor, row: cute.Tensor, vector: cutlass.Constexpr, threads: cutlass.Constexpr) -> None:
    vectors = cute.zipped_divide(row, (vector,))
    count = cute.size(vectors, mode=[1])
    for step in cutlass.range_constexpr(cute.ceil_div(count, threads)):
        i = step * threads + arch.thread_idx()[0]
        if i < count:
            cute.autovec_copy(mine[None, step], vectors[None, i])


@cute.kernel
def forward_row(x: cute.Tensor, y: cute.Tensor, vector: cutlass.Constexpr, threads: cutlass.Constexpr):
    row = cutlass.Int64(arch.block_idx()[0])  # rows may lie beyond 2^31 elements
    mine = read(x[row, None], vector, threads, -math.inf)
    values = mine.load().to(cutlass.Float32)
    top = over_block(values.reduce(cute.ReductionOp.MAX, -cutlass.Float32.inf, 0), arch.fmax, threads)
    numerator = cute.math.exp(values - top)
    total = over_block(numerator.reduce(cute.ReductionOp.ADD, 0.0, 0), operator.add, threads)
    mine.store((numerator / total).to(x.element_type))
    write(mine, y[row, None], vector, threads)


@cute.kernel
def backward_row(dy: cute.Tensor, y: cute.Tensor, dx: cute.Tensor, vector: cutlass.Constexpr, threads: cutlass.Constexpr):
    row = cutlass.Int64(arch.block_idx()[0])
    gradients = read(dy[row, None], vector, threads, 0.0).load().to(cutlass.Float32)
    mine = read(y[row, None], vector, threads, 0.0)
    values = mine.load().to(cutlass.Float32)
    dot = over_block((gradients * values).reduce(cute.ReductionOp.ADD, 0.0, 0), operator.add, threads)
    mine.store((values * (gradients - dot)).to(dx.element_type))
    write(mine, dx[row, None], vector, threads)


@cute.jit
def launch_forward(x: cute.Tensor, y: cute.Tensor, stream, vector: cutlass.Constexpr, threads: cutlass.Constexpr):
    forward_row(x, y, vector, threads).launch(grid=[x.shape[0], 1, 1], block=[threads, 1, 1], stream=stream)


@cute.jit
def launch_backward(dy: cute.Tensor, y: cute.Tensor, dx: cute.Tensor, stream, vector: cutlass.Constexpr, threads: cutlass.Constexpr):
    backward_row(dy, y, dx, vector, threads).launch(grid=[y.shape[0], 1, 1], block=[threads, 1, 1], stream=stream)


@functools.cache
def compiled(function, tensors: int, N: int, dtype: torch.dtype, aligned: bool):
    """A launch function for rows of N columns. It takes torch's tensors, and torch's current stream."""
    vector = math.gcd(N, 16 // dtype.itemsize) if aligned else 1
    threads = min(1024, 32 * math.ceil(N / vector / 32 / 2))  # two vectors a thread, more in long rows
    rows = cute.sym_int()
    fakes = [
        runtime.make_fake_compact_tensor(DTYPES[dtype], (rows, N), stride_order=(1, 0), assumed_align=vector * dtype.itemsize)
        for _ in range(tensors)
    ]
    stream = runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(function, *fakes, stream, vector, threads, options="--enable-tvm-ffi")


def launch(function, *tensors: torch.Tensor) -> torch.Tensor:
    """Run a function over the rows of contiguous tensors; it writes the last one."""
    N, dtype = tensors[0].shape[1], tensors[0].dtype
    compiled(function, len(tensors), N, dtype, all(one.data_ptr() % 16 == 0 for one in tensors))(*tensors)
    return tensors[-1]


def supports(case) -> str | None:
    """None, or why a run skips the case."""
    return None if case.M and 0 < case.N <= MAX_COLUMNS else f"it takes at least one row, of 1 to {MAX_COLUMNS} elements"


def softmax(x: torch.Tensor) -> torch.Tensor:
    return launch(launch_forward, x, torch.empty_like(x))


def softmax_backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return launch(launch_backward, dy, y, torch.empty_like(y))
