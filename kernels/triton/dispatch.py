"""softbench's Triton softmax and log_softmax over rows: launches the plan that `planner.py` chooses.

Any M and N, row strides without a copy, 64-bit offsets. float32, float16 and bfloat16 in float32 arithmetic, float64 in its own.

All functions share the plans, which depend on the bytes that are read.

A launch is prepared once for operands with the same layout (`_layout_key`), and cached with its compiled kernel. Triton's binder and the
choice of a plan take several times as long as a kernel on few rows. The GPU would wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import triton

from ..common.rows import Scale
from ..common.softmax import Softmax
from .backward import backward_cluster, backward_rows, backward_split
from .devices import device_traits, prefer_shared_memory
from .forward import forward_cluster, forward_rows, forward_split
from .generic import (
    CONTRACTION,
    LOOP_COLUMNS,
    block_m,
    block_n,
    gradient_loop,
    gradient_tile,
    loop_over_row,
    tile_of_rows,
    warps,
)
from .grid_exchange import SLOT_WORDS, workspace
from .interpreter import INTERPRETED, interpreted_number, round_to_nearest
from .launch_plan import VECTOR_BYTES, WARP, Plan, Problem, chunk_of, for_wide_results, staged_layout
from .planner import LINE_BYTES, choose, invariant_plan
from .stable_key import with_stable_key
from .staged import backward_staged, forward_staged
from .staggered_start import stagger
from .strided import launch as launch_columns, launch_log as launch_log_columns

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

MAX_CACHED = 4096  # launches
IN_SHARED_MEMORY = (forward_split, backward_split, forward_staged, backward_staged)
"""The kernels that keep rows in shared memory."""


@dataclass(frozen=True, slots=True)
class PreparedLaunch:
    """A launch on operands of one layout."""

    kernel: triton.JITFunction
    programs: int
    arguments: tuple[int | str, ...]  # after the operands: strides, sizes, constants
    options: dict[str, int] = field(default_factory=dict)
    slots: int = 0  # int64 words of workspace

    def __call__(self, tensors: tuple[torch.Tensor, ...], scale: Scale | None = None) -> CompiledKernel:
        """Launches through Triton's interface, which compiles the kernel if necessary; returns the compiled kernel."""
        if INTERPRETED and isinstance(scale, float):
            scale = interpreted_number(scale)
        return with_stable_key(self.kernel)[(self.programs,)](*self.operands(tensors), *self.arguments, scale, **self.options)

    def operands(self, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The tensors and, if the kernel needs them, the workspace's counter and slots."""
        return (*tensors, *workspace(tensors[0].device, self.slots)) if self.slots else tensors

    def addresses(self, tensors: tuple[torch.Tensor, ...]) -> list[int]:
        """The operands as a compiled kernel takes them. Triton would ask the driver about the address of each tensor."""
        return [operand.data_ptr() for operand in self.operands(tensors)]


def launch_forward(x: torch.Tensor, y: torch.Tensor, scale: Scale | None = None) -> None:
    """y = softmax(x * scale) by rows; see `softbench.kernels.common.rows.Launch`."""
    _launch((x, y), False, scale)


def launch_backward(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor, scale: Scale | None = None) -> None:
    """dx by rows; see `softbench.kernels.common.rows.Launch`."""
    _launch((dy, y, dx), False, scale)


def launch_log_forward(x: torch.Tensor, y: torch.Tensor, scale: Scale | None = None) -> None:
    """y = log_softmax(x * scale) by rows; see `softbench.kernels.common.rows.Launch`."""
    _launch((x, y), True, scale)


def launch_log_backward(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor, scale: Scale | None = None) -> None:
    """dx of log_softmax by rows; see `softbench.kernels.common.rows.Launch`."""
    _launch((dy, y, dx), True, scale)


_cache: dict[tuple[Hashable, ...], tuple[Callable[..., object], PreparedLaunch]] = {}


def _launch(tensors: tuple[torch.Tensor, ...], log: bool, scale: Scale | None, *, invariant: bool = False) -> None:
    """`invariant`: by a plan of `invariant_plan`, whose rows begin where `softbench.kernels.common.invariance.placed` has them."""
    device = tensors[0].device
    if device.type == "cuda" and device.index != torch._C._cuda_getDevice():  # Triton launches on the current device
        with torch.cuda.device(device):
            return _launch(tensors, log, scale, invariant=invariant)
    if isinstance(scale, int):
        scale = float(scale)
    key = (invariant, *_layout_key(tensors, log, scale))
    found = _cache.get(key)
    if found is not None:
        run_compiled, launch = found
        run_compiled(*launch.addresses(tensors), *launch.arguments, None if scale is None else _scale_argument(scale))
        return None
    problem, plan = choose_plan(tensors)
    if invariant:
        plan = invariant_plan(problem)
    compiled = run(problem, plan, tensors, log, scale)
    if hasattr(compiled, "function"):  # not under the interpreter, nor while Triton compiles in the background
        if len(_cache) >= MAX_CACHED:
            _cache.clear()
        launch = prepare_launch(problem, plan, tensors, log)
        _cache[key] = _compiled_launch(compiled, launch, tensors), launch
    return None


def _scale_argument(scale: Scale | None) -> float | int | None:
    """`scale` as a compiled kernel takes it. The kernels are not specialized on its alignment or its value."""
    return scale.data_ptr() if isinstance(scale, torch.Tensor) else scale


def _layout_key(tensors: tuple[torch.Tensor, ...], log: bool, scale: Scale | None) -> tuple[Hashable, ...]:
    """Everything that a launch depends on: what the choice of a plan and Triton's specialization look at."""
    first = tensors[0]
    kind = None if scale is None else type(scale).__name__
    key: list[Hashable] = [first.shape, first.device, log, kind]
    for tensor in tensors:
        key += (tensor.dtype, tensor.stride(0), tensor.data_ptr() % LINE_BYTES)
    return tuple(key)


def problem_of(tensors: tuple[torch.Tensor, ...]) -> Problem:
    """What the choice of a plan depends on, for a forward's (x, y) or a backward's (dy, y, dx)."""
    first, last = tensors[0], tensors[-1]
    M, N = first.shape
    size = first.element_size()
    # Of tensors with elements of another size, in bytes of as many elements of the first.
    addresses = [tensor.data_ptr() // tensor.element_size() * size % LINE_BYTES for tensor in tensors]
    strides = [tensor.stride(0) * size % LINE_BYTES if M > 1 else 0 for tensor in tensors]
    misaligned = N * size % LINE_BYTES
    for number in (*addresses, *strides):
        misaligned |= number
    alignment = min(VECTOR_BYTES, misaligned & -misaligned) if misaligned else VECTOR_BYTES
    backward = len(tensors) == 3
    wide = not backward and size == 2 and last.element_size() == 4
    vector = VECTOR_BYTES // 2 if wide else VECTOR_BYTES
    apart = [(number - addresses[0]) % vector for number in addresses] + [(number - strides[0]) % vector for number in strides]
    # The generic kernels convert any dtype to any other; the others only between float32 and 16 bits.
    one_dtype = all(tensor.dtype == first.dtype for tensor in tensors[:-1])
    converted = last.dtype == first.dtype or wide or (backward and size == 4 and last.element_size() == 2)
    nvidia = torch.version.hip is None  # the fast tiers contain PTX
    congruent = nvidia and one_dtype and converted and not any(apart)
    back_to_back = all(tensor.data_ptr() % VECTOR_BYTES == 0 and tensor.stride(0) == N for tensor in tensors)
    contiguous = congruent and back_to_back and last.dtype == first.dtype
    return Problem(backward, M, N, size, alignment, congruent, *device_traits(first.device)[1:], contiguous=contiguous, wide=wide)


def choose_plan(tensors: tuple[torch.Tensor, ...]) -> tuple[Problem, Plan]:
    """The problem of these operands, and the plan for it."""
    problem = problem_of(tensors)
    return problem, choose(problem, device_traits(tensors[0].device)[0])


def run(problem: Problem, plan: Plan, tensors: tuple[torch.Tensor, ...], log: bool = False, scale: Scale | None = None) -> CompiledKernel:
    """Launches a plan on a forward's (x, y) or a backward's (dy, y, dx); returns the compiled kernel. `log`: of log_softmax."""
    if INTERPRETED and plan.tier in ("tile", "loop"):
        return round_to_nearest(lambda *operands: prepare_launch(problem, plan, operands, log)(operands, scale), *tensors)
    return prepare_launch(problem, plan, tensors, log)(tensors, scale)


def _compiled_launch(compiled: CompiledKernel, launch: PreparedLaunch, tensors: tuple[torch.Tensor, ...]) -> Callable[..., object]:
    if launch.kernel in IN_SHARED_MEMORY:
        prefer_shared_memory(compiled, tensors[0].device)
    return compiled[(launch.programs, 1, 1)]


def prepare_launch(problem: Problem, plan: Plan, tensors: tuple[torch.Tensor, ...], log: bool = False) -> PreparedLaunch:
    """The launch of a plan on operands, of log_softmax if `log`.

    Raises:
        ValueError: some threads of the plan would have no vector of a tile, or more than one. A reduction would then mix rows or miss some.
    """
    fast = plan.tier in ("rows", "cluster", "split")
    if plan.threads > WARP and fast and (plan.rows > 1 or plan.threads != WARP * plan.warps):
        raise ValueError(f"invalid plan {plan}: above 32, threads must be 32 * warps and rows must be 1")
    fitted = for_wide_results(plan) if problem.wide and fast else plan
    return PREPARE[plan.tier](problem, fitted, tuple(tensor.stride(0) for tensor in tensors), log)


def _options(plan: Plan, **more: int) -> dict[str, int]:
    options: dict[str, int] = {"num_warps": plan.warps, **more, **CONTRACTION}
    if plan.registers is not None and not INTERPRETED:
        options["maxnreg"] = plan.registers
    return options


def _strides_and_N(problem: Problem, plan: Plan, strides: tuple[int, ...]) -> tuple[int, ...]:  # noqa: N802
    """Strides and N as the kernels count them: in vectors if rows start at a vector, so that the compiler knows their alignment."""
    if plan.base_alignment:
        return *strides, problem.N
    # The stride of a single row is never used, and need not be a multiple of a vector.
    return *(stride // plan.vector_elements if problem.M > 1 else 0 for stride in strides), problem.N // plan.vector_elements


def _tile(problem: Problem, plan: Plan, strides: tuple[int, ...], log: bool) -> PreparedLaunch:
    M, N = problem.M, problem.N
    BM, BN = block_m(problem.reads * N), block_n(N)
    if plan.vector_elements > 1:  # short aligned rows: a vector a thread, 4 warps
        BM = max(1, 128 * plan.vector_elements * plan.rows // BN)
        count = max(1, min(4, BM * BN // (32 * plan.vector_elements)))
    else:
        count = warps(problem.reads * BM * BN)
    kernel = gradient_tile if problem.backward else tile_of_rows
    eviction = "evict_last" if problem.keep_in_l2 else ""
    return PreparedLaunch(kernel, triton.cdiv(M, BM), (*strides, M, N, BM, BN, eviction, log), {"num_warps": count, **CONTRACTION})


def _loop(problem: Problem, plan: Plan, strides: tuple[int, ...], log: bool) -> PreparedLaunch:
    kernel = gradient_loop if problem.backward else loop_over_row
    block = LOOP_COLUMNS // problem.reads // (2 if problem.element_size == 8 else 1)
    return PreparedLaunch(
        kernel, problem.M, (*strides, problem.M, problem.N, block, log), {"num_warps": warps(LOOP_COLUMNS), **CONTRACTION}
    )


def _rows(problem: Problem, plan: Plan, strides: tuple[int, ...], log: bool) -> PreparedLaunch:
    kernel = backward_rows if problem.backward else forward_rows
    *units, N = _strides_and_N(problem, plan, strides)
    layout = plan.vector_words, plan.vector_elements, plan.base_alignment
    constants = plan.rows, plan.tiles, plan.threads, *layout, problem.keep_in_l2, log
    return PreparedLaunch(kernel, triton.cdiv(problem.M, plan.rows), (*units, problem.M, N, *constants), _options(plan))


def _staged(problem: Problem, plan: Plan, strides: tuple[int, ...], log: bool) -> PreparedLaunch:
    kernel = backward_staged if problem.backward else forward_staged
    arguments = problem.M, problem.N, *staged_layout(problem, plan), log
    return PreparedLaunch(kernel, triton.cdiv(problem.M, plan.rows), arguments, _options(plan))


def _cluster(problem: Problem, plan: Plan, strides: tuple[int, ...], log: bool) -> PreparedLaunch:
    kernel = backward_cluster if problem.backward else forward_cluster
    constants = plan.tiles, plan.cluster_ctas, plan.threads, plan.vector_elements, plan.base_alignment, problem.keep_in_l2, log
    arguments = *_strides_and_N(problem, plan, strides), chunk_of(problem, plan), *stagger(problem, plan), *constants
    return PreparedLaunch(kernel, problem.M, arguments, _options(plan, num_ctas=plan.cluster_ctas))


def _split(problem: Problem, plan: Plan, strides: tuple[int, ...], log: bool) -> PreparedLaunch:
    max_ctas = triton.next_power_of_2(plan.split_ctas)
    programs = problem.M * plan.split_ctas
    chunk = chunk_of(problem, plan)
    in_smem = plan.smem_tiles * (VECTOR_BYTES // (4 * plan.vector_words))
    extra_tiles = max(0, triton.cdiv(chunk, plan.threads) - plan.tiles - in_smem)
    read_twice: int = extra_tiles > 0
    if problem.backward and (plan.registers or 255) > 64:  # tiles at once; with a lower limit an SM has more threads
        read_twice *= 2
    layout = plan.threads, plan.vector_elements, plan.base_alignment
    constants = plan.tiles, plan.smem_tiles, *layout, max_ctas, read_twice, problem.policy(plan), log
    sizes = plan.split_ctas, chunk, programs, read_twice * plan.threads if problem.backward else extra_tiles
    arguments = *_strides_and_N(problem, plan, strides), *sizes, *stagger(problem, plan), *constants
    kernel = backward_split if problem.backward else forward_split
    return PreparedLaunch(kernel, programs, arguments, _options(plan), slots=problem.M * max_ctas * SLOT_WORDS.value)


PREPARE: dict[str, Callable[[Problem, Plan, tuple[int, ...], bool], PreparedLaunch]] = {
    "tile": _tile,
    "loop": _loop,
    "staged": _staged,
    "rows": _rows,
    "cluster": _cluster,
    "split": _split,
}


DEVICE_TYPES = ("cuda", "cpu") if INTERPRETED else ("cuda",)
softmax = Softmax(launch_forward, launch_backward, DEVICE_TYPES, columns=launch_columns)
"""softmax(x, dim=-1): differentiable, any shape and strides; see `softbench.kernels.common.softmax.Softmax`."""
log_softmax = Softmax(launch_log_forward, launch_log_backward, DEVICE_TYPES, "log_softmax", columns=launch_log_columns)
"""log_softmax(x, dim=-1), as `softmax`."""
