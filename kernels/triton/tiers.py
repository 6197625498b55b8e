"""softbench's Triton softmax over rows: launches of the tier that `rules.py` chooses.

Any M and N, row strides without a copy, 64-bit offsets; float32, float16, bfloat16 in float32 arithmetic, float64 in its own.

A launch is worked out once for operands that lie alike (`_key`) and kept with its compiled kernel: on few rows the GPU would otherwise
wait for Triton's binder and for the choice of a plan, which take several times what the kernel takes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import triton

from ..common.rows import Launch
from ..common.softmax import Softmax
from . import carveout
from .backward import backward_cluster, backward_group, backward_rows
from .forward import forward_cluster, forward_group, forward_rows
from .plain import (
    INTERPRETED,
    LOOP_COLUMNS,
    backward_loop,
    backward_tile,
    backward_tile_stays,
    block_m,
    block_n,
    forward_loop,
    forward_tile,
    forward_tile_stays,
    warps,
)
from .plans import Plan, Shape
from .rules import LINE, VECTOR, chunk, plan
from .turns import bytes_a_cycle, turns
from .workspace import workspace

HOPPER = 9
LARGE_SHARED = 200 * 1024  # bytes a program: what tells the large cards of a generation, with clusters of 16, from the small, with 8
INTERPRETED_SMS = 4
MOST_KEPT = 4096  # launches
WARP = 32


@dataclass(frozen=True, slots=True)
class Call:
    """A launch on operands that lie alike: of `programs` programs, with `slots` int64 of workspace if any."""

    kernel: Any
    programs: int
    numbers: tuple[int, ...]  # behind the operands: strides, sizes, tile
    options: dict[str, Any] = field(default_factory=dict)
    slots: int = 0

    def __call__(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        """Through Triton's own door, which compiles; returns the compiled kernel."""
        return self.kernel[(self.programs,)](*self.operands(tensors), *self.numbers, **self.options)

    def operands(self, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (*tensors, *workspace(tensors[0].device, self.slots)) if self.slots else tensors

    def addresses(self, tensors: tuple[torch.Tensor, ...]) -> list[int]:
        """The operands as a launch that is kept takes them: of a tensor Triton would ask the driver whether its address is one."""
        return [operand.data_ptr() for operand in self.operands(tensors)]


def launch_forward(x: torch.Tensor, y: torch.Tensor) -> None:
    """y = softmax(x) by rows; see `softbench.kernels.common.rows.Launch`."""
    _launch((x, y))


def launch_backward(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor) -> None:
    """dx of rows, likewise."""
    _launch((dy, y, dx))


_kept: dict[tuple[Any, ...], tuple[Any, Call]] = {}


def _launch(tensors: tuple[torch.Tensor, ...]) -> None:
    device = tensors[0].device
    if device.type == "cuda" and device.index != torch._C._cuda_getDevice():  # Triton launches there, wherever the tensors are
        with torch.cuda.device(device):
            return _launch(tensors)
    key = _key(tensors)
    found = _kept.get(key)
    if found is not None:
        ready, call = found
        ready(*call.addresses(tensors), *call.numbers)
        return None
    shape, plan = _chosen(tensors)
    compiled = run(shape, plan, tensors)
    if hasattr(compiled, "function"):  # not under the interpreter, nor where Triton compiles in the background
        if len(_kept) >= MOST_KEPT:
            _kept.clear()
        _kept[key] = _ready(compiled, call := call_of(shape, plan, tensors), tensors), call
    return None


def _key(tensors: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
    """All that a launch depends on: what the plan and what Triton's specialization look at."""
    first = tensors[0]
    key: list[Any] = [first.shape, first.device]
    for tensor in tensors:
        key += (tensor.dtype, tensor.stride(0), tensor.data_ptr() % LINE)
    return tuple(key)


def shape_of(tensors: tuple[torch.Tensor, ...]) -> Shape:
    """What the choice of a launch depends on; the last tensor is written, two tensors are a forward, three a backward."""
    first = tensors[0]
    M, N = first.shape
    size = first.element_size()
    addresses = [tensor.data_ptr() % LINE for tensor in tensors]
    strides = [tensor.stride(0) * size % LINE if M > 1 else 0 for tensor in tensors]
    alike = all(tensor.dtype == first.dtype for tensor in tensors)  # the plain kernels convert, the others move words
    spread = N * size % LINE
    for number in (*addresses, *strides):
        spread |= number
    alignment = min(VECTOR, spread & -spread) if spread else VECTOR
    apart = [(number - addresses[0]) % VECTOR for number in addresses] + [(number - strides[0]) % VECTOR for number in strides]
    return Shape(len(tensors) == 3, M, N, size, alignment, alike and not any(apart), *_device(first.device)[1:])


def _chosen(tensors: tuple[torch.Tensor, ...]) -> tuple[Shape, Plan]:
    shape = shape_of(tensors)
    return shape, plan(shape, _device(tensors[0].device)[0])


@functools.cache
def _device(device: torch.device) -> tuple[str, int, bool, float, bool]:
    """(name, SMs, whether it has clusters, its memory's bytes a cycle, whether it is Hopper's)."""
    if INTERPRETED or device.type != "cuda":
        return "", INTERPRETED_SMS, False, 0.0, False
    found = torch.cuda.get_device_properties(device)
    clusters = found.major >= HOPPER and found.shared_memory_per_block_optin >= LARGE_SHARED
    return found.name, found.multi_processor_count, clusters, bytes_a_cycle(device.index or 0), (found.major, found.minor) == (HOPPER, 0)


def run(shape: Shape, plan: Plan, tensors: tuple[torch.Tensor, ...]) -> Any:
    """Launch a plan on a forward's (x, y) or a backward's (dy, y, dx); returns the compiled kernel."""
    if INTERPRETED and plan.tier in ("tile", "loop"):
        return rounded(lambda *operands: call_of(shape, plan, operands)(operands), *tensors)
    return call_of(shape, plan, tensors)(tensors)


def prepared(shape: Shape, plan: Plan, tensors: tuple[torch.Tensor, ...]) -> Callable[[], object]:
    """`run` as a call that takes no more of the host's time than a launch that is kept."""
    call = call_of(shape, plan, tensors)
    ready = _ready(call(tensors), call, tensors)
    return lambda: ready(*call.addresses(tensors), *call.numbers)


def _ready(compiled: Any, call: Call, tensors: tuple[torch.Tensor, ...]) -> Any:
    if call.kernel is forward_group:  # holds part of a row in shared memory
        carveout.prefer(compiled, tensors[0].device)
    return compiled[(call.programs, 1, 1)]


def call_of(shape: Shape, plan: Plan, tensors: tuple[torch.Tensor, ...]) -> Call:
    """The launch of a plan on operands.

    Raises:
        ValueError: the plan has threads that hold no vector of a tile, or more than one: a join would mix rows or leave some out.
    """
    if plan.T > WARP and plan.tier in ("rows", "cluster", "group") and (plan.BM > 1 or plan.T != WARP * plan.warps):
        raise ValueError(f"{plan} is no plan: beyond a warp T is 32 * warps, and BM is 1")
    return CALLS[plan.tier](shape, plan, tuple(tensor.stride(0) for tensor in tensors))


def rounded(launch: Callable[..., Any], *tensors: torch.Tensor) -> Any:
    """`launch` with a float32 tensor for a bfloat16 one that it writes: Triton's interpreter truncates where hardware rounds to nearest."""
    if not INTERPRETED or tensors[-1].dtype != torch.bfloat16:
        return launch(*tensors)
    wide = torch.empty(tensors[-1].shape, dtype=torch.float32, device=tensors[-1].device)
    result = launch(*tensors[:-1], wide)
    tensors[-1].copy_(wide)
    return result


def _options(plan: Plan, **more: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"num_warps": plan.warps, **more}
    if plan.registers is not None and not INTERPRETED:
        options["maxnreg"] = plan.registers
    return options


def _units(shape: Shape, plan: Plan, strides: tuple[int, ...]) -> tuple[int, ...]:
    """Strides and N as the kernels count them: in vectors when rows start at one, so that the compiler knows it."""
    if plan.ALIGN:
        return *strides, shape.N
    # A single row's stride says nothing, and need not be a multiple of a vector.
    return *(stride // plan.V if shape.M > 1 else 0 for stride in strides), shape.N // plan.V


def _tile(shape: Shape, plan: Plan, strides: tuple[int, ...]) -> Call:
    M, N = shape.M, shape.N
    BM, BN = block_m(shape.tensors * N), block_n(N)
    if plan.V > 1:  # short aligned rows: a vector a thread, 4 warps
        BM = max(1, 128 * plan.V // BN)
        count = max(1, min(4, BM * BN // (32 * plan.V)))
    else:
        count = warps(shape.tensors * BM * BN)
    kernel = (forward_tile_stays, backward_tile_stays)[shape.backward] if shape.stays else (forward_tile, backward_tile)[shape.backward]
    return Call(kernel, triton.cdiv(M, BM), (*strides, M, N, BM, BN), {"num_warps": count})


def _loop(shape: Shape, plan: Plan, strides: tuple[int, ...]) -> Call:
    kernel = backward_loop if shape.backward else forward_loop
    BLOCK = LOOP_COLUMNS // shape.tensors // (2 if shape.size == 8 else 1)
    return Call(kernel, shape.M, (*strides, shape.M, shape.N, BLOCK), {"num_warps": warps(LOOP_COLUMNS)})


def _rows(shape: Shape, plan: Plan, strides: tuple[int, ...]) -> Call:
    kernel = backward_rows if shape.backward else forward_rows
    *units, N = _units(shape, plan, strides)
    tile = plan.BM, plan.P, plan.T, plan.W, plan.V, plan.ALIGN, shape.stays
    return Call(kernel, triton.cdiv(shape.M, plan.BM), (*units, shape.M, N, *tile), _options(plan))


def _cluster(shape: Shape, plan: Plan, strides: tuple[int, ...]) -> Call:
    kernel = backward_cluster if shape.backward else forward_cluster
    tile = plan.P, plan.C, plan.T, plan.V, plan.ALIGN, shape.stays
    return Call(
        kernel, shape.M, (*_units(shape, plan, strides), chunk(shape, plan), *turns(shape, plan), *tile), _options(plan, num_ctas=plan.C)
    )


def _group(shape: Shape, plan: Plan, strides: tuple[int, ...]) -> Call:
    peers = triton.next_power_of_2(plan.G)
    programs = shape.M * plan.G
    each = chunk(shape, plan)
    extra = max(0, triton.cdiv(each, plan.T) - plan.P - plan.H)
    held = () if shape.backward else (plan.H,)
    tile = plan.P, *held, plan.T, plan.V, plan.ALIGN, peers, extra > 0, shape.stays
    numbers = *_units(shape, plan, strides), plan.G, each, programs, extra, *turns(shape, plan), *tile
    kernel = backward_group if shape.backward else forward_group
    return Call(kernel, programs, numbers, _options(plan), slots=shape.M * peers * (1 if shape.backward else 2))


CALLS: dict[str, Callable[[Shape, Plan, tuple[int, ...]], Call]] = {
    "tile": _tile,
    "loop": _loop,
    "rows": _rows,
    "cluster": _cluster,
    "group": _group,
}


def softmax_of(forward: Launch, backward: Launch) -> Softmax:
    """A `Softmax` of two Triton launchers that write float32 results of bfloat16 rows as float32 where that is asked of them."""
    if not INTERPRETED:
        return Softmax(forward, backward)
    return Softmax(functools.partial(rounded, forward), functools.partial(rounded, backward), ("cuda", "cpu"))


softmax = Softmax(launch_forward, launch_backward, ("cuda", "cpu") if INTERPRETED else ("cuda",))
"""softmax(x, dim=-1): differentiable, any shape and strides; see `softbench.kernels.common.softmax.Softmax`."""
