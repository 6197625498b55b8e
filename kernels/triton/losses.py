"""Losses over rows with a target by softbench's Triton kernels: cross entropy, and log-probability with entropy.

`softbench.kernels.common.losses` says what they compute. x is on a CUDA device; under the interpreter, CPU tensors
are taken too.

`options` are the first five of `Options`.

`out` receives dx. It has x's shape, dtype and device, and may be x itself. All functions raise TypeError or ValueError for other arguments.
A launch is prepared once for operands with the same layout, as in `dispatch.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import triton

from ..common.invariance import placed
from ..common.linear_cross_entropy import Losses
from ..common.losses import (
    NO_CLASS,
    base_of_rows,
    check_output_of_rows,
    logits_and_targets,
    number_of_rows,
    result_of_rows,
    statistics_of_rows,
)
from . import dispatch, loss_plans
from .dispatch import DEVICE_TYPES, with_stable_key
from .generic import CONTRACTION, block_m, block_n, warps
from .grid_exchange import workspace
from .launch_plan import VECTOR_BYTES, WARP, Plan, Problem, chunk_of
from .loss_fused import fused_rows
from .loss_stream import FIELDS, gradient_of_row, reduce_row, reduce_row_by_element
from .loss_tiles import fused_tile, gradient_tile, reduction_tile
from .staggered_start import stagger

Operands = tuple[torch.Tensor | None, ...]
MAX_CACHED = 4096  # launches
COUNTERS = "rows that several programs reduce"
"""Of a workspace. Its first words are the counters of rows, and partial results follow. So a counter is never where a result was."""
WORD_BYTES = 8
BY_ELEMENT_THREADS = 512  # the most of a row that is reduced element by element


def cross_entropy_forward(
    x: torch.Tensor, target: torch.Tensor, *, invariant: bool = False, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, lse). x is read once. lse is that of z, also in ignored rows."""
    x, target = _given(x, target, invariant)
    loss, lse = result_of_rows(x), result_of_rows(x)
    launch("reduction", (x, target, loss, lse, None), Options(**options, invariant=invariant))
    return loss, lse


def cross_entropy_statistics(
    x: torch.Tensor, target: torch.Tensor, *, invariant: bool = False, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, statistics), as `cross_entropy_forward`."""
    x, target = _given(x, target, invariant)
    loss, statistics = result_of_rows(x), statistics_of_rows(x)
    launch("reduction", (x, target, loss, *statistics.unbind(1)), Options(**options, invariant=invariant))
    return loss, statistics


def cross_entropy_backward(
    x: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, dloss: torch.Tensor, *, classes: int = 0, out: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:  # fmt: skip
    """dx from the forward's lse or statistics and the gradient of the loss. x is read once and dx is written once.

    `classes`: of the whole vocabulary, over which labels are smoothed, if x has a part of it.
    """
    x, target = logits_and_targets(x, target, DEVICE_TYPES)
    x, dx = _with_gradient(x, out)
    of_rows, statistics = base_of_rows(lse, x)
    base: Operands = (of_rows, None) if statistics is None else statistics.unbind(1)
    given = Options(**options, classes=classes)
    launch("gradient", (x, target, *base, _scaled(number_of_rows(dloss, x, "dloss"), given.logit_scale), None, dx), given)
    return _result(dx, out)


def cross_entropy_fused(
    x: torch.Tensor, target: torch.Tensor, *, dloss: torch.Tensor | None = None, out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None, invariant: bool = False, **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(loss, dx) for a dloss of 1, or for one float32 number that is the dloss of every row, as that of a mean is.

    x is read once and dx is written once, unless no program or cluster can hold a row. `lse`, float32 of (M,), receives that of z, which
    takes a second read.
    """
    x, target = logits_and_targets(x, target, DEVICE_TYPES)
    if lse is not None:
        check_output_of_rows(lse, x, "lse")
    if dloss is not None and (dloss.dtype is not torch.float32 or dloss.numel() != 1 or dloss.device != x.device):
        raise TypeError(f"dloss is {tuple(dloss.shape)} {dloss.dtype} on {dloss.device}; it must be one float32 number on {x.device}")
    x, dx = _with_gradient(placed(x) if invariant else x, out)
    loss, given = result_of_rows(x), Options(**options, invariant=invariant)
    if (scale := given.logit_scale) != 1.0:
        dloss = x.new_full((1,), scale, dtype=torch.float32) if dloss is None else dloss * scale
    if lse is not None or (invariant and out is not None) or not launch("fused", (x, target, dx, loss, dloss), given):
        maximum, total = statistics_of_rows(x).unbind(1) if lse is None else (lse, None)
        launch("reduction", (x, target, loss, maximum, total), given)
        of_rows = None if dloss is None else dloss.expand(len(x)).contiguous()
        launch("gradient", (x, target, maximum, total, of_rows, None, dx), given)
    return loss, _result(dx, out)


PASSES = Losses(cross_entropy_forward, cross_entropy_backward, cross_entropy_fused)


def logprob_forward(
    x: torch.Tensor, target: torch.Tensor, *, ignore_index: int = NO_CLASS, logit_scale: float = 1.0, invariant: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(logprob, entropy, lse): z_t - lse, and -sum_j p_j (z_j - lse). x is read once. All are NaN for a row of -inf but lse."""
    x, target = _given(x, target, invariant)
    results = result_of_rows(x), result_of_rows(x), result_of_rows(x)
    launch("reduction", (x, target, *results), Options(ignore_index, logit_scale=logit_scale, logprob=1, invariant=invariant))
    return results


def logprob_statistics(
    x: torch.Tensor, target: torch.Tensor, *, ignore_index: int = NO_CLASS, logit_scale: float = 1.0, invariant: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(logprob, entropy, statistics), as `logprob_forward`."""
    x, target = _given(x, target, invariant)
    results = result_of_rows(x), result_of_rows(x), statistics_of_rows(x)
    launch("reduction", (x, target, *results), Options(ignore_index, logit_scale=logit_scale, logprob=2, invariant=invariant))
    return results


def logprob_backward(
    x: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, entropy: torch.Tensor, dlogprob: torch.Tensor, dentropy: torch.Tensor,
    *, ignore_index: int = NO_CLASS, logit_scale: float = 1.0, out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """dx = (dlogprob ([i = t] - p_i) - dentropy p_i (z_i - lse + entropy)) logit_scale, from lse or statistics, and the entropy."""
    x, target = logits_and_targets(x, target, DEVICE_TYPES)
    x, dx = _with_gradient(x, out)
    of_rows, statistics = base_of_rows(lse, x)
    named = {"entropy": entropy, "dlogprob": dlogprob, "dentropy": dentropy}
    entropy, dfirst, dsecond = (number_of_rows(given, x, name) for name, given in named.items())
    given = x, target, statistics if of_rows is None else of_rows, entropy, _scaled(dfirst, logit_scale), _scaled(dsecond, logit_scale), dx
    launch("gradient", given, Options(ignore_index, logit_scale=logit_scale, logprob=1 if statistics is None else 2))
    return _result(dx, out)


def _given(x: torch.Tensor, target: torch.Tensor, invariant: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Checked logits and targets of a forward."""
    x, target = logits_and_targets(x, target, DEVICE_TYPES)
    return placed(x) if invariant else x, target


def _scaled(gradient: torch.Tensor, logit_scale: float) -> torch.Tensor:
    """A gradient of rows times the derivative of z, which the kernels leave out."""
    return gradient if logit_scale == 1.0 else gradient * logit_scale


def _with_gradient(x: torch.Tensor, out: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """x, or a contiguous copy of it, and memory for dx whose rows start as far above a vector's boundary as those of x.

    That is `out` if possible.
    """
    M, N = x.shape
    if out is not None and (out.shape != x.shape or out.dtype != x.dtype or out.device != x.device):
        raise TypeError(f"out is {tuple(out.shape)} {out.dtype} on {out.device}; x is {tuple(x.shape)} {x.dtype} on {x.device}")
    if out is not None and (out.stride(1) == 1 or N == 1) and _apart(x, out) == (0, 0):
        return x, out
    size = x.element_size()
    if M > 1 and (x.stride(0) - N) * size % VECTOR_BYTES:
        x = x.contiguous()
    above = x.data_ptr() % VECTOR_BYTES // size
    return x, torch.empty(M * N + above, dtype=x.dtype, device=x.device)[above:].view(M, N)


def _apart(x: torch.Tensor, dx: torch.Tensor) -> tuple[int, int]:
    """Bytes modulo a vector between the starts of their first rows, and between their strides."""
    strides = (x.stride(0) - dx.stride(0)) * x.element_size() if x.shape[0] > 1 else 0
    return (x.data_ptr() - dx.data_ptr()) % VECTOR_BYTES, strides % VECTOR_BYTES


def _result(dx: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    return dx if out is None or out is dx else out.copy_(dx)


class Options(NamedTuple):
    """The parameters of cross entropy, or logprob."""

    ignore_index: int = -100
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    softcap: float = 0.0
    logit_scale: float = 1.0
    logprob: int = 0
    """1: logprob by lse; 2: by statistics."""
    classes: int = 0
    """Of the whole vocabulary, if the rows have a part of it."""
    invariant: bool = False
    """Whether a plan follows from the length of a row and the dtypes alone. Rows begin where `placed` has them."""

    def numbers(self, N: int) -> tuple[int | float | None, ...]:
        """As the kernels take them: ignore_index, hot, share, z_loss, softcap, inverse. None where it has no effect."""
        e, z_loss, of_logits = self.label_smoothing, self.z_loss, _with_inverse(self.softcap, self.logit_scale)
        return self.ignore_index, float(1 - e), e / (self.classes or N) if e else None, float(z_loss) if z_loss else None, *of_logits


def _with_inverse(cap: float, scale: float) -> tuple[float | None, float | None]:
    return (float(cap), scale / cap) if cap else (None, None if scale == 1.0 else float(scale))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A launch on operands of one layout."""

    kernel: triton.JITFunction
    programs: int
    arguments: tuple[object, ...]  # after the operands and the scratch memory: strides, sizes, numbers, constants
    options: dict[str, int]
    floats: int = 0  # of scratch memory: of the workspace if there are counters, else fresh
    counters: int = 0  # int64 of the workspace
    places: int = 0  # for scratch tensors in the kernel's signature
    share: float = 0.0  # the loss lacks this times the sums of its row in scratch memory

    def scratch(self, device: torch.device) -> Operands:
        """What the kernel takes after its operands."""
        if self.counters:
            words = self._words(device)
            return words[loss_plans.MOST_SHARED_ROWS :].view(torch.float32), words
        floats = torch.empty(self.floats, dtype=torch.float32, device=device) if self.floats else None
        return (floats, None)[: self.places]

    def addresses(self, device: torch.device) -> tuple[int | None, ...]:
        """The same as addresses, of a launch with counters or without scratch memory. A view of a tensor would cost two microseconds."""
        if not self.counters:
            return (None, None)[: self.places]
        start = self._words(device).data_ptr()
        return start + WORD_BYTES * loss_plans.MOST_SHARED_ROWS, start

    def _words(self, device: torch.device) -> torch.Tensor:
        return workspace(device, loss_plans.MOST_SHARED_ROWS + (self.floats + 1) // 2, COUNTERS)[1]


_cache: dict[tuple[Hashable, ...], tuple[Callable[..., object], Prepared]] = {}


def launch(name: str, operands: Operands, options: Options) -> bool:
    """Launches `reduction`, `gradient` or `fused` on x, the target and the kernel's other operands; dx is among them where there is one.

    Returns whether it could: `fused` launches nothing if neither a program nor a cluster can hold a row.
    """
    x = operands[0]
    assert x is not None
    device = x.device
    if x.numel() == 0:
        return True
    if device.type == "cuda" and device.index != torch._C._cuda_getDevice():  # Triton launches on the current device
        with torch.cuda.device(device):
            return launch(name, operands, options)
    pointers = [None if one is None else one.data_ptr() for one in operands]
    key = _layout_key(name, operands, pointers, options)
    found = _cache.get(key)
    if found is not None:
        run_compiled, ready = found
        if ready.counters or not ready.floats:
            scratch: Operands = ()
            run_compiled(*pointers, *ready.addresses(device), *ready.arguments)
        else:
            scratch = ready.scratch(device)
            run_compiled(*pointers, *(None if one is None else one.data_ptr() for one in scratch), *ready.arguments)
    else:
        prepared = prepare(name, operands, options)
        if prepared is None:
            return False
        ready, scratch = prepared, prepared.scratch(device)
        compiled = with_stable_key(ready.kernel)[(ready.programs,)](*operands, *scratch, *ready.arguments, **ready.options)
        if hasattr(compiled, "function"):  # not under the interpreter, nor while Triton compiles in the background
            if len(_cache) >= MAX_CACHED:
                _cache.clear()
            _cache[key] = compiled[(ready.programs, 1, 1)], ready
    if ready.share:
        loss, sums = operands[3], scratch[0]
        assert loss is not None and sums is not None
        loss.add_(sums.view(x.shape[0], -1).sum(1), alpha=ready.share)
    return True


def _layout_key(name: str, operands: Operands, pointers: list[int | None], options: Options) -> tuple[Hashable, ...]:
    """Everything that a launch depends on: what the choice of a plan and Triton's specialization look at.

    dx has the dtype of x. Other operands have one dtype, and their elements are adjacent.
    """
    x, dx = operands[0], _gradient_of(name, operands)
    assert x is not None
    starts = [None if one is None else one % dispatch.LINE_BYTES for one in pointers]
    return name, options, x.shape, x.device, x.dtype, x.stride(0), None if dx is None else dx.stride(0), *starts


def _gradient_of(name: str, operands: Operands) -> torch.Tensor | None:
    """dx among the operands of a pass."""
    return None if name == "reduction" else operands[-1] if name == "gradient" else operands[2]


def prepare(name: str, operands: Operands, options: Options) -> Prepared | None:
    """The launch of a pass, or None as `launch` says."""
    x, dx = operands[0], _gradient_of(name, operands)
    assert x is not None
    problem = dispatch.problem_of((x, x if dx is None else dx))
    strides = (x.stride(0), *(() if dx is None else (dx.stride(0),)))
    if loss_plans.is_short(problem):
        return _tile(name, problem, strides, options)
    as_planned = problem
    if options.invariant and name != "gradient":  # which adds nothing
        if problem.N * problem.element_size % VECTOR_BYTES:
            return None if name == "fused" else _by_element(problem, strides, options)
        as_planned = replace(problem, M=loss_plans.MOST_SHARED_ROWS + 1)  # so that no row is shared
    if name == "fused":
        additions = bool(options.label_smoothing) + (bool(options.softcap) or options.logit_scale != 1.0)
        plan = loss_plans.fused_plan(as_planned, dispatch.device_traits(x.device)[0], additions)
        return None if plan is None else _fused(problem, plan, strides, options)
    plan = loss_plans.reduction_plan(as_planned) if name == "reduction" else loss_plans.gradient_plan(problem)
    return (_reduction if name == "reduction" else _gradient)(problem, plan, strides, options)


TILES = {"reduction": reduction_tile, "gradient": gradient_tile, "fused": fused_tile}


def _tile(name: str, problem: Problem, strides: tuple[int, ...], options: Options) -> Prepared:
    M, N = problem.M, problem.N
    BM, BN = block_m(N), block_n(N)
    unit = VECTOR_BYTES // problem.element_size if problem.alignment == VECTOR_BYTES else 1
    # The stride of a single row is never used, and need not be a multiple of a vector. But 16 divides 0, so Triton adds in another order.
    counted = (stride // unit if M > 1 or options.invariant else 0 for stride in strides)
    arguments = *counted, M, N // unit, *options.numbers(N), unit, BM, BN, options.logprob
    return Prepared(TILES[name], triton.cdiv(M, BM), arguments, {"num_warps": warps(BM * BN), **CONTRACTION})


def _fused(problem: Problem, plan: Plan, strides: tuple[int, ...], options: Options) -> Prepared:
    sizes = dispatch._strides_and_N(problem, plan, strides)
    numbers = options.numbers(problem.N)
    layout = plan.threads, plan.vector_elements, plan.base_alignment, problem.keep_in_l2
    arguments = *sizes, chunk_of(problem, plan), *stagger(problem, plan), *numbers, plan.tiles, plan.cluster_ctas, *layout
    ctas = {"num_ctas": plan.cluster_ctas} if plan.tier == "cluster" else {}
    share = options.label_smoothing / problem.N if ctas else 0.0
    floats = problem.M * plan.cluster_ctas if share else 0
    return Prepared(fused_rows, problem.M, arguments, dispatch._options(plan, **ctas), floats, places=1, share=share)


def _reduction(problem: Problem, plan: Plan, strides: tuple[int, ...], options: Options) -> Prepared:
    sizes = dispatch._strides_and_N(problem, plan, strides)
    parts = plan.split_ctas
    most = triton.next_power_of_2(parts)
    constants = plan.tiles, plan.threads, plan.vector_elements, plan.base_alignment, most, options.logprob
    arguments = *sizes, parts, chunk_of(problem, plan), *options.numbers(problem.N), *constants
    shared = problem.M if parts > 1 else 0
    floats = shared * parts * FIELDS.value
    return Prepared(reduce_row, problem.M * parts, arguments, dispatch._options(plan), floats, shared, places=2)


def _by_element(problem: Problem, strides: tuple[int, ...], options: Options) -> Prepared:
    threads = min(BY_ELEMENT_THREADS, max(WARP, triton.next_power_of_2(problem.N)))
    arguments = *strides, problem.N, *options.numbers(problem.N), threads, options.logprob
    return Prepared(reduce_row_by_element, problem.M, arguments, {"num_warps": threads // WARP, **CONTRACTION})


def _gradient(problem: Problem, plan: Plan, strides: tuple[int, ...], options: Options) -> Prepared:
    sizes = dispatch._strides_and_N(problem, plan, strides)
    constants = plan.tiles, plan.threads, plan.vector_elements, plan.base_alignment, problem.keep_in_l2, options.logprob
    arguments = *sizes, plan.split_ctas, *options.numbers(problem.N), *constants
    return Prepared(gradient_of_row, problem.M * plan.split_ctas, arguments, dispatch._options(plan))
