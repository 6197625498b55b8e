"""Times launch plans of the CUDA kernels: python tools/cuda_plans.py [--shapes MxN] [--dtypes bf16] [--passes softmax_backward,fused]

For each pass it prints the plan of the heuristics and the fastest others, with microseconds and TB/s of the bytes that the pass moves. A
pass that writes as much as x has the fraction of a yardstick's speed too: a copy, or an addition for a gradient of softmax. Passes of
softmax also have a line for the Triton kernels, quack and liger. Use it to change the heuristics. For Triton's plans there is
`python -m softbench.kernels.triton.tune --only WORDS`.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from softbench.kernels.cuda import launch, losses
from softbench.kernels.cuda.launch_plan import TIERS, Plan
from softbench.kernels.triton import dispatch
from softbench.kernels.triton.devices import device_traits
from triton.testing import do_bench

Call = Callable[..., Any]
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
WARP, BLOCK, CLUSTER, SPLIT, CLUSTER_BULK, SPLIT_BULK = (
    TIERS.index(name) for name in ("warp", "block", "cluster", "split", "cluster_bulk", "split_bulk")
)
SHAPES = "4096x1000,4096x4096,4096x32000,4096x128256,1024x32000,1024x201088,1x128256,8x128256,64x128256,2048x50257"
LOSSES = ("forward", "logprob_forward", "backward", "logprob_backward", "fused")
ROWWISE = {
    "softmax_forward": launch.launch_forward,
    "softmax_backward": launch.launch_backward,
    "log_softmax_forward": launch.launch_log_forward,
    "log_softmax_backward": launch.launch_log_backward,
}
SHOWN = 6
"""Plans of a pass, beside the fastest of each tier.

Each is measured in ROUNDS rounds, because one short measurement is good to a percent or two."""
ROUNDS = 5
MAX_POLLS, LINE = 1 << 16, 128  # as in heuristics.cuh
STAGGER_BYTES = 8 << 20
SM_SHARED, SM_REGISTERS = 200 << 10, 65536


class Pass(NamedTuple):
    """A pass of x."""

    call: Call  # takes a plan
    plans: Iterator[Plan]
    moves: int  # how often it moves the bytes of x
    yardstick: Call | None = None
    others: tuple[tuple[str, Call], ...] = ()  # other kernels that do the same, by name


def reading_plans(M: int, vectors: int) -> Iterator[Plan]:
    """Plans of a forward."""
    if vectors <= 2048:
        yield from (Plan(WARP, 4, threads, 1) for threads in (64, 128, 256))
    for in_flight in (4, 8):
        for threads in (64, 128, 160, 192, 224, 256):
            most = -(-vectors // threads)
            yield from (Plan(SPLIT, in_flight, threads, ctas) for ctas in (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256) if ctas <= most)
    for threads in (64, 96, 128, 160, 192, 224, 256) if M <= 1024 else ():
        yield from (Plan(CLUSTER, 4, threads, ctas) for ctas in (2, 4, 8, 12, 16) if ctas * threads <= 2 * vectors)


def gradient_plans(M: int, vectors: int) -> Iterator[Plan]:
    """Plans of a backward: CTAs of a row that cover it, with a cache line to spare."""
    for in_flight in (2, 4, 8):
        for threads in (64, 128, 192, 256):
            yield Plan(SPLIT, in_flight, threads, -(-(vectors + 8) // (in_flight * threads)))


def fused_plans(M: int, vectors: int) -> Iterator[Plan]:
    """Plans of the tiers that hold a row in registers and shared memory."""
    if 2 < (held := -(-vectors // 32)) <= 8:  # rows of whole vectors; 16-bit rows have at most four vectors a lane
        yield from (Plan(WARP, held, threads, 1, 1, 16) for threads in (32, 64, 128))
    for held in (1, 2, 4, 8, 16):
        if (threads := _threads(vectors, held)) <= (1024 if held != 4 else 512):
            yield Plan(BLOCK, held, threads, 1, 0, LINE)
        for ctas in (2, 3, 4, 5, 6, 8, 10, 12, 16):
            if 96 <= (threads := _threads(vectors, held * ctas)) <= 512:
                yield Plan(CLUSTER, held, threads, ctas, 0, LINE)
    for ctas in (4, 5, 6, 8, 12, 16):
        yield Plan(CLUSTER_BULK, 24, 256, ctas, 0, LINE)
    for held, threads in ((8, 256), (8, 512), (24, 256)):
        for ctas in (3, 4, 6, 8, 12, 16, 33, 66, 132):
            yield Plan(SPLIT_BULK, held, threads, ctas, 0, LINE, MAX_POLLS)


def _threads(vectors: int, held: int) -> int:
    return max(32, (vectors + 8 + 32 * held - 1) // (32 * held) * 32)


def softmax_plans(M: int, vectors: int, reads: int, sms: int, stagger: int) -> Iterator[Plan]:
    """Plans of softmax for rows of more than a few KB.

    Args:
        vectors: of a row in one tensor, 16 bytes each.
        reads: 1 for a forward, 2 for a gradient.
        sms: of the device.
        stagger: cycles between the starts of rows, as `stagger_cycles` says.
    """
    for total in (1, 2, 4, 8, 12, 16):  # vectors of all tensors that a thread holds
        if not (held := total // reads):
            continue
        if (threads := _threads(vectors, held)) <= (1024 if total <= 8 else 128):
            yield Plan(BLOCK, held, threads, 1, 0, LINE)
        for ctas in range(2, 17) if total in (2, 4, 8, 12) else ():
            if 96 <= (threads := _threads(vectors, held * ctas)) <= (256 if total == 12 else 512):
                yield from (Plan(CLUSTER, held, threads, ctas, 0, LINE, 0, cycles) for cycles in sorted({0, stagger}))
    for ctas in range(4, 17):
        chunk = _chunk(vectors, ctas)
        if chunk > 128 * (24 // reads) and _in_shared(chunk, 24, 256, reads) <= SM_SHARED:
            yield from (Plan(CLUSTER_BULK, 24 // reads, 256, ctas, 0, LINE, 0, cycles) for cycles in sorted({0, stagger}))
    yield from _split_plans(M, vectors, reads, sms, stagger)


def _split_plans(M: int, vectors: int, reads: int, sms: int, stagger: int) -> Iterator[Plan]:
    """Plans whose CTAs of a row run anywhere on the device, one to four an SM: one wave of them, or the fewest that hold a row."""
    for programs in (1, 2, 3, 4):
        for total in (2, 4, 8):  # vectors of all tensors that a thread holds
            for threads in (128, 256, 320, 512):
                most = SM_SHARED // programs // (16 * reads * threads) if total > 2 else 0  # tiles of each tensor in shared memory
                for ctas in _shares(M, vectors, programs * sms, (total // reads + most) * threads):
                    tiles = max(0, -(-_chunk(vectors, ctas) // threads) - total // reads)
                    fits = tiles <= most and programs * threads * 64 <= SM_REGISTERS
                    if fits and total // reads * threads < 2 * _chunk(vectors, ctas):
                        for cycles in sorted({0, stagger if M * ctas <= programs * sms else 0}):
                            yield Plan(SPLIT, total // reads, threads, ctas, tiles, LINE, MAX_POLLS, cycles)
        for total, threads in ((8, 256), (8, 512), (24, 256), *([(24, 128)] if reads == 2 else [])):
            registers = total // reads * threads
            for ctas in _shares(M, vectors, programs * sms, registers + SM_SHARED // programs // (16 * reads)):
                chunk = _chunk(vectors, ctas)
                fits = programs * threads * (128 if total == 24 else 64) <= SM_REGISTERS
                if fits and _in_shared(chunk, total, threads, reads) * programs <= SM_SHARED and registers < 2 * chunk:
                    for cycles in sorted({0, stagger, 4 * stagger // 3}):
                        yield Plan(SPLIT_BULK, total // reads, threads, ctas, 0, LINE, MAX_POLLS, cycles)


def _shares(M: int, vectors: int, resident: int, capacity: int) -> list[int]:
    """CTAs of a row, all of which fit at once: as many as fill the device once, and the fewest of `capacity` vectors that hold the row."""
    found = {resident // M, -(-(vectors + 16) // capacity)}
    return sorted(ctas for ctas in found if 2 <= ctas <= min(resident, 2 * resident // M) and vectors // ctas >= 64)


def _chunk(vectors: int, ctas: int) -> int:
    """Vectors of a CTA, whole lines, with a line to spare."""
    return (-(-(vectors + 8) // ctas) + 7) // 8 * 8


def _in_shared(chunk: int, total: int, threads: int, reads: int) -> int:
    """Bytes of a chunk that a CTA has in shared memory."""
    return max(0, chunk - total // reads * threads) * reads * 16


def stagger_cycles(row_bytes: int, M: int) -> int:
    """Cycles in which memory reads a row; 0 for a single row, for launches of a few microseconds, and if the speed of memory is unknown."""
    per_cycle = device_traits(torch.device("cuda", torch.cuda.current_device()))[3]
    return round(row_bytes / per_cycle) if M > 1 and M * row_bytes >= STAGGER_BYTES and per_cycle else 0


def rowwise_pass(name: str, x: torch.Tensor) -> Pass:
    """A pass of softmax or log_softmax. A gradient has x as dy."""
    backward, log = name.endswith("backward"), name.startswith("log_")
    y, out = (torch.log_softmax if log else torch.softmax)(torch.randn_like(x), -1), torch.empty_like(x)
    operands = (x, y, out) if backward else (x, out)
    reads = len(operands) - 1
    triton = {False: (dispatch.launch_forward, dispatch.launch_backward), True: (dispatch.launch_log_forward, dispatch.launch_log_backward)}
    others: dict[str, Call] = {"triton": functools.partial(triton[log][backward], *operands)}
    if not log:
        with suppress(Exception):  # it is not installed, or does not find its libraries
            from quack.softmax import softmax_bwd, softmax_fwd

            others["quack"] = functools.partial(softmax_bwd if backward else softmax_fwd, *operands[:-1])
        with suppress(Exception):
            from liger_kernel.ops import softmax as liger

            if x.shape[1] <= 65536:  # its limit
                settings = liger.calculate_settings(x.shape[1])
                others["liger"] = (
                    (lambda: liger._softmax_backward(x, y, *settings, False)) if backward else (lambda: liger._softmax_forward(x))
                )
    sms = torch.cuda.get_device_properties(x.device).multi_processor_count
    plans = softmax_plans(x.shape[0], -(-x[0].nbytes // 16), reads, sms, stagger_cycles(reads * x[0].nbytes, x.shape[0]))
    yardstick = functools.partial(torch.add, x, y, out=out) if backward else functools.partial(out.copy_, x)
    return Pass(functools.partial(ROWWISE[name], *operands), plans, reads + 1, yardstick, tuple(others.items()))


def loss_pass(name: str, x: torch.Tensor, target: torch.Tensor) -> Pass:
    """A pass of cross entropy or logprob."""
    partial, out, size = functools.partial, torch.empty_like(x), (x.shape[0], -(-x[0].nbytes // 16))
    copy = partial(out.copy_, x)
    if name == "forward":
        return Pass(partial(losses.cross_entropy_forward, x, target), reading_plans(*size), 1)
    if name == "logprob_forward":
        return Pass(partial(losses.logprob_forward, x, target), reading_plans(*size), 1)
    if name == "fused":
        return Pass(partial(losses.cross_entropy_fused, x, target, out=out), fused_plans(*size), 2, copy)
    loss, lse = losses.cross_entropy_forward(x, target)
    if name == "backward":
        return Pass(partial(losses.cross_entropy_backward, x, target, lse, loss, out=out), gradient_plans(*size), 2, copy)
    entropy = losses.logprob_forward(x, target)[1]
    return Pass(partial(losses.logprob_backward, x, target, lse, entropy, loss, loss, out=out), gradient_plans(*size), 2, copy)


def timed(call: Call) -> float:
    """Microseconds of the device; infinite if the kernels refuse the plan."""
    try:
        call()
    except RuntimeError as error:
        if not any(text in str(error) for text in ("invalid argument", "too many resources")):
            raise
        return float("inf")
    return 1e3 * float(do_bench(call, warmup=2, rep=10, return_mode="median"))


def _runs(other: tuple[str, Call]) -> bool:
    """Whether a kernel of others can be timed; prints why not."""
    try:
        other[1]()
    except Exception as error:  # another library may raise anything
        print(f"{other[0]}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:120]}")
        return False
    return True


def words(plan: Plan) -> str:
    """The plan in a few words."""
    held = f"{plan.vectors} vectors, {plan.threads} threads, {plan.per_row} a row"
    stagger = f", stagger {plan.stagger_cycles}" if plan.stagger_cycles else ""
    return f"{TIERS[plan.tier]:13}{held}" + (f", option {plan.tier_option}" if plan.tier_option else "") + stagger


def compare(told: str, x: torch.Tensor, one: Pass) -> None:
    """Prints the table of a pass."""
    own = Plan(-1)
    one.call(plan=own)
    found = [(timed(call := functools.partial(one.call, plan=plan)), words(plan), call) for plan in one.plans]
    tried = len(found)
    ranked = sorted((taken for taken in found if taken[0] < float("inf")), key=lambda taken: taken[0])
    tiers = [text.split()[0] for _, text, _ in ranked]
    finalists = [taken for place, taken in enumerate(ranked) if place < SHOWN or tiers.index(tiers[place]) == place]
    calls = [
        *([("yardstick", one.yardstick)] if one.yardstick else []),
        *filter(_runs, one.others),
        (f"{words(own)}  <- heuristics", one.call),
    ]
    calls += [(text, call) for _, text, call in finalists]
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for taken, (_, call) in zip(times, calls, strict=True):
            taken.append(timed(call))
    print(f"\n{told}, {tried} plans tried")
    for (text, _), taken in zip(calls, times, strict=True):
        us = statistics.median(taken)
        share = f"{statistics.median(times[0]) / us:5.3f} " if one.yardstick else ""
        print(f"  {us:9.2f} us {one.moves * x.nbytes / us / 1e6:6.2f} TB/s {share}{text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--dtypes", default="bf16")
    parser.add_argument("--passes", default="forward,logprob_forward,backward,fused", help=", ".join((*ROWWISE, *LOSSES)))
    given = parser.parse_args()
    if unknown := {*given.passes.split(",")} - {*ROWWISE, *LOSSES}:
        parser.error(f"--passes: no pass {', '.join(sorted(unknown))}; the passes are {', '.join((*ROWWISE, *LOSSES))}")
    for shape in given.shapes.split(","):
        M, N = (int(size) for size in shape.split("x"))
        for dtype in given.dtypes.split(","):
            x = torch.randn(M, N, device="cuda", dtype=DTYPES[dtype])
            target = torch.randint(N, (M,), device="cuda")
            for name in given.passes.split(","):
                one = rowwise_pass(name, x) if name in ROWWISE else loss_pass(name, x, target)
                compare(f"{name} {M}x{N} {dtype}", x, one)


if __name__ == "__main__":
    main()
