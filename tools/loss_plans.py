"""Times launch plans of the CUDA kernels for losses: python tools/loss_plans.py [--shapes MxN] [--dtypes bf16] [--passes forward,fused]

For each pass it prints the plan of the heuristics and the fastest others, with microseconds and TB/s of the bytes that the pass moves, and
for fused and backward the fraction of the speed of a copy of these bytes. Use it to change `statistics_plan`, `gradient_plan` or the tiers.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from softbench.kernels.cuda import losses
from softbench.kernels.cuda.launch_plan import TIERS, Plan
from triton.testing import do_bench

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
WARP, STAGED, BLOCK, CLUSTER, SPLIT, CLUSTER_BULK, SPLIT_BULK = (
    TIERS.index(name) for name in ("warp", "staged", "block", "cluster", "split", "cluster_bulk", "split_bulk")
)
SHAPES = "4096x1000,4096x4096,4096x32000,4096x128256,1024x32000,1024x201088,1x128256,8x128256,64x128256,2048x50257"
SHOWN = 6
"""Plans of a pass, beside the best of each tier."""


def reading_plans(M: int, vectors: int) -> Iterator[Plan]:
    """Plans of a forward."""
    if vectors <= 2048:
        yield from (Plan(WARP, 4, threads, 1) for threads in (64, 128, 256))
    for in_flight in (4, 8):
        for threads in (64, 128, 256):
            most = -(-vectors // threads)
            yield from (Plan(SPLIT, in_flight, threads, ctas) for ctas in (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256) if ctas <= most)
    yield from (Plan(STAGED, 4, 256, ctas, stages) for ctas, stages in ((1, 12), (2, 4), (2, 5), (2, 6), (3, 3), (3, 4), (4, 2), (4, 3)))
    for threads in (64, 128, 192, 256):
        if M <= 1024:
            yield from (Plan(CLUSTER, 4, threads, ctas) for ctas in (2, 4, 8, 12, 16) if ctas * threads <= 2 * vectors)


def gradient_plans(M: int, vectors: int) -> Iterator[Plan]:
    """Plans of a backward: CTAs of a row that cover it, with a cache line to spare."""
    for in_flight in (2, 4, 8):
        for threads in (64, 128, 192, 256):
            yield Plan(SPLIT, in_flight, threads, -(-(vectors + 8) // (in_flight * threads)))


def fused_plans(M: int, vectors: int) -> Iterator[Plan]:
    """Plans of the tiers that hold a row in registers and shared memory."""
    for held in (1, 2, 4, 8, 16):
        if (threads := _threads(vectors, held)) <= (1024 if held != 4 else 512):
            yield Plan(BLOCK, held, threads, 1, 0, 128)
        for ctas in (2, 3, 4, 5, 6, 8, 10, 12, 16):
            if 96 <= (threads := _threads(vectors, held * ctas)) <= 512:
                yield Plan(CLUSTER, held, threads, ctas, 0, 128)
    for ctas in (4, 5, 6, 8, 12, 16):
        yield Plan(CLUSTER_BULK, 24, 256, ctas, 0, 128)
    for held, threads in ((8, 256), (8, 512), (24, 256)):
        for ctas in (3, 4, 6, 8, 12, 16, 33, 66, 132):
            yield Plan(SPLIT_BULK, held, threads, ctas, 0, 128, 1 << 16)


def _threads(vectors: int, held: int) -> int:
    return max(32, (vectors + 8 + 32 * held - 1) // (32 * held) * 32)


def calls(x: torch.Tensor, target: torch.Tensor) -> dict[str, tuple[Callable[..., Any], Callable[..., Iterator[Plan]], int]]:
    """The passes: their calls, which take a plan, the plans, and how often they move the bytes of x."""
    loss, lse = losses.cross_entropy_forward(x, target)
    _, entropy, _ = losses.logprob_forward(x, target)
    out = torch.empty_like(x)
    partial = functools.partial
    return {
        "forward": (partial(losses.cross_entropy_forward, x, target), reading_plans, 1),
        "logprob_forward": (partial(losses.logprob_forward, x, target), reading_plans, 1),
        "backward": (partial(losses.cross_entropy_backward, x, target, lse, loss, out=out), gradient_plans, 2),
        "logprob_backward": (partial(losses.logprob_backward, x, target, lse, entropy, loss, loss, out=out), gradient_plans, 2),
        "fused": (partial(losses.cross_entropy_fused, x, target, out=out), fused_plans, 2),
    }


def timed(call: Callable[[], Any]) -> float:
    """Microseconds of the device; infinite if the kernels refuse the plan."""
    try:
        call()
    except RuntimeError as error:
        if "invalid argument" not in str(error):
            raise
        return float("inf")
    return 1e3 * float(do_bench(call, warmup=5, rep=30, return_mode="median"))


def words(plan: Plan) -> str:
    """The plan in a few words."""
    held = f"{plan.vectors} vectors, {plan.threads} threads, {plan.per_row} a row"
    return f"{TIERS[plan.tier]:13}{held}" + (f", option {plan.tier_option}" if plan.tier_option else "")


def compare(which: str, x: torch.Tensor, target: torch.Tensor) -> None:
    """Prints the table of a pass."""
    call, plans, moves = calls(x, target)[which]
    M, N = x.shape
    own = Plan(-1)
    for _ in range(3):  # clocks and caches
        timed(functools.partial(call, plan=own))
    found = [(timed(call), f"{words(own)}  <- heuristics")]
    found += [(timed(functools.partial(call, plan=plan)), words(plan)) for plan in plans(M, -(-N * x.element_size() // 16))]
    copied = timed(functools.partial(torch.empty_like(x).copy_, x)) if moves == 2 else 0.0
    print(f"\n{which} {M}x{N} {x.dtype}" + (f", copy {copied:.1f} us" if copied else ""))
    ranked = sorted(found[1:])
    best = [next(one for one in ranked if one[1].split()[0] == tier) for tier in {text.split()[0] for _, text in ranked}]
    for us, text in [found[0], *sorted({*ranked[:SHOWN], *best})]:
        speed = moves * x.nbytes / us / 1e6
        print(f"  {us:9.1f} us {speed:6.2f} TB/s " + (f"{copied / us:5.3f} " if copied else "") + text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--dtypes", default="bf16")
    parser.add_argument("--passes", default="forward,logprob_forward,backward,fused")
    given = parser.parse_args()
    for shape in given.shapes.split(","):
        M, N = (int(size) for size in shape.split("x"))
        for dtype in given.dtypes.split(","):
            x = torch.randn(M, N, device="cuda", dtype=DTYPES[dtype])
            target = torch.randint(N, (M,), device="cuda")
            for which in given.passes.split(","):
                compare(which, x, target)


if __name__ == "__main__":
    main()
