"""softbench's Triton softmax over rows: launches of the tier that `rules.py` chooses.

Any M and N, row strides without a copy, 64-bit offsets; float32, float16, bfloat16 in float32 arithmetic, float64 in its own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton

from .backward import backward_cluster, backward_group, backward_rows
from .forward import forward_cluster, forward_group, forward_rows
from .plain import (
    INTERPRETED,
    LOOP_COLUMNS,
    backward_loop,
    backward_tile,
    block_m,
    block_n,
    forward_loop,
    forward_tile,
    warps,
)
from .plans import Plan, Shape
from .rows import Launch, Softmax
from .rules import VECTOR, chunk, plan
from .workspace import workspace

HOPPER = 9
INTERPRETED_SMS = 4


def launch_forward(x: torch.Tensor, y: torch.Tensor) -> None:
    """y = softmax(x) by rows; see `softbench.kernels.triton.rows.Launch`."""
    run(*_chosen(False, (x, y)), (x, y))


def launch_backward(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor) -> None:
    """dx of rows, likewise."""
    run(*_chosen(True, (dy, y, dx)), (dy, y, dx))


def shape_of(tensors: tuple[torch.Tensor, ...]) -> Shape:
    """What the choice of a launch depends on; the last tensor is written, two tensors are a forward, three a backward."""
    return _shape(len(tensors) == 3, *_key(tensors))


def _chosen(backward: bool, tensors: tuple[torch.Tensor, ...]) -> tuple[Shape, Plan]:
    return _plan(backward, *_key(tensors))


def _key(tensors: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
    first = tensors[0]
    M, N = first.shape
    size = first.element_size()
    strides = tuple(tensor.stride(0) * size % 128 for tensor in tensors) if M > 1 else (0,) * len(tensors)
    alike = all(tensor.dtype == first.dtype for tensor in tensors)  # the plain kernels convert, the others move words
    return M, N, size, tuple(tensor.data_ptr() % 128 for tensor in tensors), strides, first.device, alike


@functools.lru_cache(4096)
def _shape(
    backward: bool, M: int, N: int, size: int, addresses: tuple[int, ...], strides: tuple[int, ...], device: torch.device, alike: bool
) -> Shape:
    spread = N * size % 128
    for number in (*addresses, *strides):
        spread |= number
    alignment = min(VECTOR, spread & -spread) if spread else VECTOR
    apart = [(number - addresses[0]) % VECTOR for number in addresses] + [(number - strides[0]) % VECTOR for number in strides]
    sms, hopper = _device(device)[1:]
    return Shape(backward, M, N, size, alignment, alike and not any(apart), sms, hopper)


@functools.lru_cache(4096)
def _plan(backward: bool, *key: Any) -> tuple[Shape, Plan]:
    shape = _shape(backward, *key)
    return shape, plan(shape, _device(key[-2])[0])


@functools.cache
def _device(device: torch.device) -> tuple[str, int, bool]:
    """(name, SMs, whether it has clusters)."""
    if INTERPRETED or device.type != "cuda":
        return "", INTERPRETED_SMS, False
    found = torch.cuda.get_device_properties(device)
    return found.name, found.multi_processor_count, found.major >= HOPPER


def run(shape: Shape, plan: Plan, tensors: tuple[torch.Tensor, ...]) -> Any:
    """Launch a plan on a forward's (x, y) or a backward's (dy, y, dx)."""
    return LAUNCHERS[plan.tier](shape, plan, tensors, tuple(tensor.stride(0) for tensor in tensors))


def _options(plan: Plan) -> dict[str, Any]:
    options: dict[str, Any] = {"num_warps": plan.warps}
    if plan.registers is not None and not INTERPRETED:
        options["maxnreg"] = plan.registers
    return options


def _units(shape: Shape, plan: Plan, strides: tuple[int, ...]) -> tuple[int, ...]:
    """Strides and N as the kernels count them: in vectors when rows start at one, so that the compiler knows it."""
    if plan.ALIGN:
        return *strides, shape.N
    # A single row's stride says nothing, and need not be a multiple of a vector.
    return *(stride // plan.V if shape.M > 1 else 0 for stride in strides), shape.N // plan.V


def _run_tile(shape: Shape, plan: Plan, tensors: tuple[torch.Tensor, ...], strides: tuple[int, ...]) -> Any:
    M, N = shape.M, shape.N
    held = len(tensors) - 1
    BM, BN = block_m(held * N), block_n(N)
    kernel = backward_tile if shape.backward else forward_tile
    if plan.V > 1:  # short aligned rows: a vector a thread, 4 warps
        BM = max(1, 128 * plan.V // BN)
        count = max(1, min(4, BM * BN // (32 * plan.V)))
    else:
        count = warps(held * BM * BN)
    with _rounded(tensors) as operands:
        return kernel[(triton.cdiv(M, BM),)](*operands, *strides[:held], operands[-1].stride(0), M, N, BM, BN, num_warps=count)


def _run_loop(shape: Shape, plan: Plan, tensors: tuple[torch.Tensor, ...], strides: tuple[int, ...]) -> Any:
    kernel = backward_loop if shape.backward else forward_loop
    BLOCK = LOOP_COLUMNS // (len(tensors) - 1) // (2 if shape.size == 8 else 1)
    with _rounded(tensors) as operands:
        units = *strides[:-1], operands[-1].stride(0)
        return kernel[(shape.M,)](*operands, *units, shape.M, shape.N, BLOCK, num_warps=warps(LOOP_COLUMNS))


@contextlib.contextmanager
def _rounded(tensors: tuple[torch.Tensor, ...]) -> Iterator[tuple[torch.Tensor, ...]]:
    """The operands, of which Triton's interpreter writes the last in float32: it truncates to bfloat16 where hardware rounds to nearest."""
    if not INTERPRETED or tensors[-1].dtype != torch.bfloat16:
        yield tensors
        return
    wide = torch.empty(tensors[-1].shape, dtype=torch.float32, device=tensors[-1].device)
    yield (*tensors[:-1], wide)
    tensors[-1].copy_(wide)


def _run_rows(shape: Shape, plan: Plan, tensors: tuple[torch.Tensor, ...], strides: tuple[int, ...]) -> Any:
    kernel = backward_rows if shape.backward else forward_rows
    *units, N = _units(shape, plan, strides)
    tile = plan.BM, plan.P, plan.T, plan.W, plan.V, plan.ALIGN
    return kernel[(triton.cdiv(shape.M, plan.BM),)](*tensors, *units, shape.M, N, *tile, **_options(plan))


def _run_cluster(shape: Shape, plan: Plan, tensors: tuple[torch.Tensor, ...], strides: tuple[int, ...]) -> Any:
    kernel = backward_cluster if shape.backward else forward_cluster
    tile = plan.P, plan.C, plan.T, plan.V, plan.ALIGN
    units = _units(shape, plan, strides)
    return kernel[(shape.M,)](*tensors, *units, chunk(shape, plan), *tile, num_ctas=plan.C, **_options(plan))


def _run_group(shape: Shape, plan: Plan, tensors: tuple[torch.Tensor, ...], strides: tuple[int, ...]) -> Any:
    peers = triton.next_power_of_2(plan.G)
    programs = shape.M * plan.G
    counter, slots = workspace(tensors[0].device, shape.M * peers * (1 if shape.backward else 2))
    each = chunk(shape, plan)
    extra = max(0, triton.cdiv(each, plan.T) - plan.P - plan.H)
    sizes = *_units(shape, plan, strides), plan.G, each, programs, extra
    if shape.backward:
        tile: tuple[Any, ...] = (plan.P, plan.T, plan.V, plan.ALIGN, peers, extra > 0)
        return backward_group[(programs,)](*tensors, counter, slots, *sizes, *tile, **_options(plan))
    tile = plan.P, plan.H, plan.T, plan.V, plan.ALIGN, peers, extra > 0
    return forward_group[(programs,)](*tensors, counter, slots, *sizes, *tile, **_options(plan))


LAUNCHERS: dict[str, Callable[..., Any]] = {
    "tile": _run_tile,
    "loop": _run_loop,
    "rows": _run_rows,
    "cluster": _run_cluster,
    "group": _run_group,
}


def softmax_of(forward: Launch, backward: Launch) -> Softmax:
    """A `Softmax` of two Triton launchers that write float32 results of bfloat16 rows as float32 where that is asked of them."""

    def rounded(launch: Launch, *tensors: torch.Tensor) -> None:
        with _rounded(tensors) as operands:
            launch(*operands)

    if not INTERPRETED:
        return Softmax(forward, backward)
    return Softmax(functools.partial(rounded, forward), functools.partial(rounded, backward), ("cuda", "cpu"))


softmax = Softmax(launch_forward, launch_backward, ("cuda", "cpu") if INTERPRETED else ("cuda",))
"""softmax(x, dim=-1): differentiable, any shape and strides, float32, float16 and bfloat16; see `softbench.kernels.triton.rows.Softmax`."""
