"""Small launches of every tier of our kernels, for compute-sanitizer: python tools/every_tier.py cuda|triton [--function F] [--verbose]

F is softmax, scaled_softmax, log_softmax, cross_entropy, logprob or masked_softmax. Half of the scaled launches have a scale for each row.
The launches of losses are in loss_launches.py, and those of masked_softmax in masked_launches.py.

Some launches are just large enough for the kernels whose loads have a policy for L2; `--bytes` and `--rows` leave out what moves more.
PYTORCH_NO_CUDA_MEMORY_CACHING=1 makes allocations exact, so that the sanitizer sees an access one byte beside a tensor. The script prints
the launched tiers as JSON, of all launches and of the large ones. Exit code 1: a result is wrong.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import launches
import loss_launches
import masked_launches
import torch
from launches import BRAIN, FULL, HALF, Launch, Pairs, agrees, spaced
from softbench.kernels.triton.launch_plan import KEEP_IN_L2_BYTES  # launch_plan.cuh has the same

from softbench.core.errors import UsageError
from softbench.plan.deal import parse_shard

ELSEWHERE = {"cross_entropy": loss_launches, "logprob": loss_launches, "masked_softmax": masked_launches}
Scale = float | torch.Tensor
Tensors = tuple[torch.Tensor, ...]
Run = Callable[..., str]


@dataclass(frozen=True)
class Operands:
    """(x, y) of a forward or (dy, y, dx) of a backward. Rows are `N + pad` elements apart; the first starts at `offset`."""

    backward: bool
    dtype: torch.dtype
    M: int
    N: int
    pad: int = 0
    offset: int = 0
    out: torch.dtype | None = None
    """The dtype of the result, if another."""
    out_offset: int | None = None
    """Where the first row of the result starts, if elsewhere."""

    @property
    def read(self) -> int:
        return (2 if self.backward else 1) * self.M * self.N * self.dtype.itemsize

    @property
    def moved(self) -> int:
        return self.read + self.M * self.N * (self.out or self.dtype).itemsize

    def empty(self) -> Tensors:
        """Tensors without values; no kernel runs."""
        given = [spaced(self.M, self.N, self.dtype, self.pad, self.offset) for _ in range(2 if self.backward else 1)]
        start = self.offset if self.out_offset is None else self.out_offset
        return *given, spaced(self.M, self.N, self.out or self.dtype, self.pad, start)

    def tensors(self) -> Tensors:
        found = self.empty()
        found[0].copy_(torch.randn(self.M, self.N, device=launches.DEVICE))
        if self.backward:
            found[1].copy_(torch.softmax(torch.randn(self.M, self.N, device=launches.DEVICE), -1))
        return found


def large(backward: bool, dtype: torch.dtype, N: int, offset: int = 0, out: torch.dtype | None = None) -> Operands:
    """Operands with just enough rows for the kernels whose loads have a policy for L2."""
    M = math.ceil(KEEP_IN_L2_BYTES / ((2 if backward else 1) * N * dtype.itemsize))
    return Operands(backward, dtype, M, N, offset=offset, out=out)


def pair(tensors: Tensors, function: str, scale: Scale) -> tuple[torch.Tensor, torch.Tensor]:
    """The result and what it should be, as one row each."""
    given = [tensor.cpu().double() for tensor in tensors]
    factor = scale.cpu().double()[:, None] if isinstance(scale, torch.Tensor) else scale
    if len(tensors) == 2:
        expected = getattr(torch, function.removeprefix("scaled_"))(given[0] * factor, -1)
    elif function == "log_softmax":
        expected = given[0] - given[1].exp() * given[0].sum(-1, keepdim=True)
    else:
        expected = factor * given[1] * (given[0] - (given[0] * given[1]).sum(-1, keepdim=True))
    return tensors[-1].cpu().reshape(1, -1), expected.reshape(1, -1)


def scale_of(function: str, tensors: Tensors) -> Scale:
    """The scale of a launch: that of each row for an even number of columns."""
    M, N = tensors[0].shape
    return 1.0 if function != "scaled_softmax" else 0.7 if N % 2 else torch.rand(M, device=launches.DEVICE) + 0.5


def cuda_launches(function: str) -> Iterator[tuple[Run, Operands]]:
    from softbench.kernels.cuda import launch

    pair = launch.log_softmax if function == "log_softmax" else launch.softmax

    def by(*numbers: int) -> Run:
        def run(tensors: Tensors, *scale: Scale) -> str:
            plan = launch.Plan(*(numbers or (-1,)))
            (pair.launch_backward if len(tensors) == 3 else pair.launch_forward)(*tensors, *scale, plan=plan)
            return launch.TIERS[plan.tier]

        return run

    tier = {name: number for number, name in enumerate(launch.TIERS)}
    for backward, dtype in itertools.product((False, True), (BRAIN, FULL, HALF)):
        R = 2 if backward else 1
        for N in (1, 2, 7, 8, 16, 24, 33, 50, 64, 100, 197, 256, 333, 513, 781, 1000, 1024, 2048, 5003, 8190):
            yield by(), Operands(backward, dtype, 5, N)
        for lanes in (1, 2, 4, 8, 16, 32):  # a piece and part of one, by one warp or by several
            lengths = range(1, 11) if lanes == 1 else (5 * lanes + 1, 7 * lanes, 8 * lanes - 1, 9 * lanes - 1, 10 * lanes)
            longer = () if backward else (10 * lanes + 1, 12 * lanes)  # of 11 and 12 elements a lane
            for N in (*lengths, *longer):
                rows = 8 if N % 2 else 64
                yield (
                    by(tier["staged"], math.ceil(N / lanes), 32 if rows == 8 else 128, lanes, rows, 16, 0),
                    Operands(backward, dtype, rows + 3, N),
                )
        for threads in () if backward else (32, 64, 128):  # as many rows as it takes for a warp's to lie apart
            yield by(tier["staged"], 8, threads, 8, 64, 16, 0), Operands(backward, dtype, 16900, 63)
        yield by(), Operands(backward, dtype, 5, 300, pad=4, offset=1)
        yield by(), Operands(backward, dtype, 3, 4097, offset=3)
        if dtype == HALF:
            continue
        for N in (16384, 16389):
            for (words, threads), C in itertools.product(((2, 512), (4, 512), (8, 256), (8, 512), (12, 256)), (2, 3, 16)):
                if C * threads * words // R * 16 // dtype.itemsize >= N + 128:
                    yield by(tier["cluster"], words // R, threads, C, 0, 128, 0), Operands(backward, dtype, 3, N)
            for (words, threads), C in itertools.product(((2, 512), (8, 256), (8, 512)), (1, 2, 16)):
                if C * threads * words // R * 16 // dtype.itemsize >= N + 128:
                    yield by(tier["by_column"], words // R, threads, C, 0, 16, 0), Operands(backward, dtype, 3, N, offset=N % 8)
            bulk = (8, 256), (24, 256), *([(24, 128)] if backward else [])
            for (words, threads), G, max_polls in itertools.product(bulk, (1, 3, 5), (1 << 16, 0)):
                yield by(tier["split_bulk"], words // R, threads, G, 0, 128, max_polls), Operands(backward, dtype, 3, N)
            # Rows that begin in turns: more of them than the card holds.
            yield by(tier["cluster"], 8 // R, 256, 16, 0, 128, 0, 2000), Operands(backward, dtype, 70, N)
            yield by(tier["split_bulk"], 8 // R, 256, 66, 0, 128, 1 << 16, 2000), Operands(backward, dtype, 40, N)
            for C in (1, 3):
                yield by(tier["cluster_bulk"], 24 // R, 256, C, 0, 128, 0), Operands(backward, dtype, 3, N)
                long = C * 7000 // R * 16 // dtype.itemsize + N % 8  # more than registers hold: the rest is in shared memory
                yield by(tier["cluster_bulk"], 24 // R, 256, C, 0, 128, 0), Operands(backward, dtype, 2, long)
            for words, threads, G, smem, max_polls in (
                (8, 512, 4, 0, 1 << 16),
                (4, 256, 3, 2, 1 << 16),
                (8, 256, 4, 1, -1),
                (8, 512, 1, 4, 0),
            ):
                yield by(tier["split"], words // R, threads, G, smem, 128, max_polls), Operands(backward, dtype, 3, N)
            for words, max_polls in itertools.product((2, 4, 8), (1 << 16, -1)):  # registers hold each chunk
                G = math.ceil(N * dtype.itemsize / 16 * R / (words * 256)) + 1
                yield by(tier["split"], words // R, 256, G, 0, 128, max_polls), Operands(backward, dtype, 3, N)
        yield by(), Operands(backward, dtype, 2, 60000)
        yield by(), Operands(backward, dtype, 140, 40000)
    for dtype, N in itertools.product((BRAIN, HALF), (64, 100, 781, 1000, 20001)):
        yield by(), Operands(False, dtype, 3, N, out=FULL)
        yield by(), Operands(True, FULL, 3, N, out=dtype)
        yield by(), Operands(True, FULL, 3, N, pad=4, offset=1, out=dtype)
    yield by(), Operands(False, FULL, 3, 300, offset=1, out_offset=2)
    for N in (64, 197, 1030, 16389, 200001):
        yield by(), large(False, BRAIN, N, out=FULL)
        yield by(), large(True, FULL, N, out=BRAIN)
    for backward, dtype in ((False, BRAIN), (False, FULL), (True, BRAIN), (True, FULL)):
        R = 2 if backward else 1
        for N in (16, 33, 50, 64, 197, 781, 1024, 1030, 8190):
            yield by(), large(backward, dtype, N)
        for words, threads, C in ((8, 256, 5), (8, 512, 4), (12, 256, 16)):
            yield by(tier["cluster"], words // R, threads, C, 0, 128, 0, 2000), large(backward, dtype, 16389)
        yield by(tier["by_column"], 8 // R, 256, 8, 0, 16, 0), large(backward, dtype, 16389)
        long, each = 270000 // R, dtype.itemsize // 2  # more than registers hold: the rest is in shared memory, or read twice
        yield by(tier["cluster_bulk"], 24 // R, 256, 3 * each, 0, 128, 0, 2000), large(backward, dtype, long, offset=1)
        yield by(tier["split_bulk"], 8 // R, 256, 9 * each, 0, 128, 1 << 16, 2000), large(backward, dtype, long)
        if backward:
            yield by(tier["split_bulk"], 12, 128, 25 * each, 0, 128, 1 << 16, 2000), large(True, dtype, long, offset=1)
        # Rows of 2.16 MB that begin in turns; an H200 holds all 16 at once.
        yield by(tier["split"], 4 // R, 256, 33, 12 // R, 128, 1 << 16, 2000), Operands(backward, dtype, 16, 2160000 // R // dtype.itemsize)
        for words, threads, G, smem, max_polls in (
            (8, 512, 4, 1, 1 << 16),
            (4, 256, 3, 2, -1),
            *((words, 256, 140 // words * each, 0, 1 << 16) for words in (2, 4, 8)),  # registers hold each chunk
        ):
            yield by(tier["split"], words // R, threads, G, smem, 128, max_polls), large(backward, dtype, long, offset=1)


def triton_launches(function: str) -> Iterator[tuple[Run, Operands]]:
    from softbench.kernels.triton import dispatch
    from softbench.kernels.triton.launch_plan import Plan
    from softbench.kernels.triton.planner import make_plan

    def by(plan: Plan | None = None) -> Run:
        def run(tensors: Tensors, *scale: Scale) -> str:
            problem, chosen = dispatch.choose_plan(tensors)
            dispatch.run(problem, plan or chosen, tensors, function == "log_softmax", *scale)
            return (plan or chosen).tier

        return run

    for backward, (dtype, out) in itertools.product((False, True), ((BRAIN, FULL), (HALF, FULL))):
        given, result = (out, dtype) if backward else (dtype, out)
        for N in (16, 100, 197, 1000, 5003):
            yield by(), Operands(backward, given, 5, N, pad=N % 2 * 3, out=result)
            yield by(), large(backward, given, N, out=result)
        if not backward:  # the last row ends in the middle of 16 bytes
            yield by(Plan("split", 2, 128, 2, 4, 128, 4, split_ctas=2, smem_tiles=2)), Operands(backward, given, 3, 4060, out=result)
        layout = 4, 16 // given.itemsize, 128
        ctas = 4 if backward else 2  # of 1024 vectors
        for plan in (
            Plan("rows", 8, 256, *layout, 8),
            Plan("cluster", 4, 128, *layout, 4, cluster_ctas=ctas),
            Plan("split", 1 if backward else 4, 128, *layout, 4, split_ctas=ctas, smem_tiles=2),
            Plan("split", 2, 128, *layout, 4, split_ctas=2),  # read twice
        ):
            yield by(plan), Operands(backward, given, 3, 4057, offset=1, out=result)
    for backward, dtype in itertools.product((False, True), (BRAIN, FULL)):
        V = 16 // dtype.itemsize
        for N in (1, 7, 16, 100, 197, 1000, 5003):
            yield by(), Operands(backward, dtype, 5, N)
        for N, alignment in ((8192, 0), (8153, 128)):  # the longest rows that the plans hold, aligned and behind a line's start
            layout = 4, V, alignment
            for plan in (
                Plan("rows", 8, 256, *layout, 8),
                *(Plan("cluster", math.ceil(N / V / ctas / 128) + 1, 128, *layout, 4, cluster_ctas=ctas) for ctas in (2, 16)),
                Plan("cluster", 4, 128, *layout, 4, cluster_ctas=4),
                Plan("cluster", 3, 128, *layout, 4, cluster_ctas=8),
                Plan("split", 4, 128, *layout, 4, split_ctas=3, smem_tiles=2),
                Plan("split", 2, 128, *layout, 4, split_ctas=2),  # longer than registers hold: read twice
                Plan("loop"),
            ):
                yield by(plan), Operands(backward, dtype, 3, N, offset=0 if alignment == 0 else 1)
                if N % 2 and plan.tier != "loop":
                    yield by(plan), large(backward, dtype, N, offset=1)
        for N in (16, 100, 1000):
            yield by(), large(backward, dtype, N)
        for N in (5, 17, 50, 77, 197):  # rows back to back, in whole blocks and in part of one
            problem = replace(dispatch.problem_of(Operands(backward, dtype, 3, N).empty()), M=1 << 24)
            plans = [make_plan(problem, ("staged", 10, 4, size)) for size in (8192, 16384)]
            for M, plan in itertools.product((3, 301), plans):
                yield by(plan), Operands(backward, dtype, M, N)
            if N in (50, 77):
                yield by(plans[0]), large(backward, dtype, N)


def every_launch(kernels: str, function: str) -> Iterator[Launch]:
    """The launches of a function."""
    if (module := ELSEWHERE.get(function)) is not None:
        yield from (module.cuda_launches if kernels == "cuda" else module.triton_launches)(function)
        return
    for run, operands in (cuda_launches if kernels == "cuda" else triton_launches)(function):
        yield launch_of(function, run, operands)


def launch_of(function: str, run: Run, operands: Operands) -> Launch:
    def launch() -> tuple[str, Callable[[], Pairs]]:
        tensors = operands.tensors()
        scale = scale_of(function, tensors)
        tier = run(tensors, scale) if function == "scaled_softmax" else run(tensors)
        return tier, lambda: [pair(tensors, function, scale)]

    return Launch(operands.M, operands.read, operands.moved, launch)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kernels", choices=("cuda", "triton"))
    parser.add_argument("--rows", type=int, default=math.inf, help="leave out launches of more rows")
    parser.add_argument("--bytes", type=int, default=math.inf, help="leave out launches that move more bytes")
    parser.add_argument("--part", default="1/1", help="launch every Nth from the Kth on, as in 2/8, so that several processes share them")
    parser.add_argument("--function", choices=("softmax", "scaled_softmax", "log_softmax", *ELSEWHERE), default="softmax")
    parser.add_argument("--verbose", action="store_true", help="name each launch on stderr before it ends")
    asked = parser.parse_args()
    if (asked.kernels, asked.function) == ("cuda", "masked_softmax"):
        parser.error("masked_softmax has Triton kernels only")
    try:
        part = parse_shard(asked.part, "--part")
    except UsageError as error:
        parser.error(str(error))
    torch.manual_seed(0)
    seen: Counter[str] = Counter()
    staying: Counter[str] = Counter()
    wrong = []
    for number, launch in enumerate(every_launch(asked.kernels, asked.function)):
        if launch.rows > asked.rows or launch.moved > asked.bytes or number % part.of != part.number - 1:
            continue
        tier, pairs = launch.run()
        named = f"{number}: {tier}, {launch.rows} rows, {launch.moved} bytes"
        if asked.verbose:
            print(named, file=sys.stderr, flush=True)
        torch.cuda.synchronize()
        seen[tier] += 1
        if launch.read >= KEEP_IN_L2_BYTES:
            staying[tier] += 1
        if not all(agrees(*one) for one in pairs()):
            wrong.append(named)
    print(json.dumps({"launches": seen, "large": staying, "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
