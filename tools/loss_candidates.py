"""Times launch plans of the losses against a kernel that moves the same bytes, on one GPU: `python tools/loss_candidates.py`.

For each pass, dtype and shape it prints the fraction of the traffic kernel's speed of the chosen plan, and of the fastest candidates. It
times by CUDA events over rotating inputs, which together are larger than L2.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from softbench.kernels.triton import dispatch, heuristics, loss_launch, loss_plans
from softbench.kernels.triton.launch_plan import Plan, Problem

from softbench.backends.copy_kernels import Launch
from softbench.core.case import Case, Direction
from softbench.ops.registry import numerics, operation
from softbench.ops.traffic import steps

SHAPES = [(1024, 32000), (4096, 32000), (4096, 50257), (1024, 128256), (4096, 128256), (4096, 151936), (1024, 262144), (4096, 4096),
          (4096, 1000), (1, 128256), (8, 128256), (64, 128256), (1, 262144), (8, 201088)]  # fmt: skip
PASSES = [("cross_entropy", Direction.FUSED), ("cross_entropy", Direction.FORWARD), ("cross_entropy", Direction.BACKWARD),
          ("logprob", Direction.FORWARD), ("logprob", Direction.BACKWARD)]  # fmt: skip
L2_BYTES = 128 << 20


def microseconds(call: Callable[[int], object], sets: int) -> float:
    """The median time of a call in a graph of 20 calls, which host time does not disturb."""
    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(20):
            call(i % sets)
    times = []
    for _ in range(7):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / 20)
    return statistics.median(times)


def stream_plans(problem: Problem, chosen: Plan, reads_only: bool) -> Iterator[Plan]:
    """Plans with other threads, tiles and parts than the chosen one."""
    vectors = loss_plans.vectors_of(problem)
    for tiles, threads in itertools.product((1, 2, 4, 8), (128, 256, 512)) if not reads_only else itertools.product((2, 4, 8), (256, 512)):
        if not reads_only:
            yield replace(chosen, tiles=tiles, threads=threads, warps=threads // 32, split_ctas=-(-vectors // (tiles * threads)))
            continue
        for parts in {1, 2, 4} if problem.M > 500 else {max(1, programs // problem.M) for programs in (66, 132, 264, 528)}:
            if parts <= loss_plans.MAX_PARTS and vectors // parts >= 64:
                for registers in (None, 32):
                    yield replace(chosen, tiles=tiles, threads=threads, warps=threads // 32, split_ctas=parts, registers=registers)


def prepared(
    name: str, problem: Problem, strides: tuple[int, ...], options: loss_launch.Options
) -> Iterator[tuple[str, loss_launch.Prepared]]:
    """The launch that would be chosen, then the candidates'."""
    if loss_plans.is_short(problem):
        yield "chosen", loss_launch._tile(name, problem, strides, options)
        return
    if name == "fused":
        chosen = loss_plans.fused_plan(problem, torch.cuda.get_device_name())
        plans: Iterator[Plan] = (plan for plan in heuristics.candidates(problem) if loss_plans._fits_fused(plan, 64))
        more = [replace(chosen, registers=chosen.registers + by) for by in (8, 16)] if chosen and chosen.registers else []
        make, plans = loss_launch._fused, itertools.chain(more, plans)
    else:
        reads_only = name == "reduction"
        chosen = loss_plans.reduction_plan(problem) if reads_only else loss_plans.gradient_plan(problem)
        plans = stream_plans(problem, chosen, reads_only)
        make = loss_launch._reduction if reads_only else loss_launch._gradient
    for number, plan in enumerate(itertools.chain([chosen], plans)):
        if plan is not None:
            told = f"{plan.tier} tiles {plan.tiles} threads {plan.threads} registers {plan.registers}"
            told += f" ctas {plan.cluster_ctas} parts {plan.split_ctas}"
            yield ("chosen: " if number == 0 else "") + told, make(problem, plan, strides, options)


def main(dtypes: list[str], most: int) -> None:
    """Print a block for each pass, dtype and shape."""
    device = torch.device("cuda")
    for (op, direction), dtype, (M, N) in itertools.product(PASSES, dtypes, SHAPES):
        case = Case(M, N, dtype, direction, "cuda", op)
        inputs = numerics(op).make(case, 0, device)
        size = inputs[0].numel() * inputs[0].element_size()
        sets = max(1, min(20, -(-L2_BYTES // size)))
        xs = [inputs[0]] + [inputs[0].clone() for _ in range(sets - 1)]
        outs = [torch.empty_like(xs[0]) for _ in range(sets)] if direction is not Direction.FORWARD else [None] * sets
        rows = [torch.empty(M, device=device) for _ in range(3)]
        name = {Direction.FUSED: "fused", Direction.FORWARD: "reduction", Direction.BACKWARD: "gradient"}[direction]
        options = loss_launch.Options(logprob=op == "logprob")

        def operands(i: int, name=name, op=op, xs=xs, outs=outs, inputs=inputs, rows=rows) -> loss_launch.Operands:  # type: ignore[no-untyped-def]
            if name == "fused":
                return xs[i], inputs[1], outs[i], rows[0]
            if name == "reduction":
                return xs[i], inputs[1], *rows[:2], rows[2] if op == "logprob" else None
            if op == "logprob":
                return xs[i], *inputs[1:], outs[i]
            return xs[i], inputs[1], inputs[2], None, inputs[3], None, outs[i]

        spec = operation(op)
        this = spec.passes[direction]
        tensors = {n: [xs[i] if n == "x" else outs[i] if n == "dx" else None for i in range(sets)] for n in (*this.inputs, *this.outputs)}
        named = dict(zip(this.inputs, inputs, strict=True)) | {n: torch.empty(M, device=device) for n in this.outputs if n != "dx"}
        traffic = [Launch(spec, case, step, list(tensors)) for step in steps(spec, case)]

        def move(i: int, traffic=traffic, tensors=tensors, named=named) -> None:  # type: ignore[no-untyped-def]
            for launch in traffic:
                launch([tensors[n][i] if tensors[n][i] is not None else named[n] for n in tensors])

        least = microseconds(move, sets)
        problem = dispatch.problem_of((xs[0], xs[0]))
        strides = (N,) if name == "reduction" else (N, N)
        found = []
        for told, ready in prepared(name, problem, strides, options):
            scratch = ready.scratch(device)

            def call(i: int, ready=ready, scratch=scratch, operands=operands) -> None:  # type: ignore[no-untyped-def]
                ready.kernel[(ready.programs,)](*operands(i), *scratch, *ready.arguments, **ready.options)

            try:
                found.append((microseconds(call, sets), told))
            except Exception as error:  # a candidate that does not compile
                print(f"  {told}: {type(error).__name__}", file=sys.stderr)
        print(f"{op} {direction.value} {dtype} {M}x{N}: traffic {least:.1f} us")
        for taken, told in [found[0], *sorted(found[1:])[:most]]:
            print(f"  {least / taken:.3f} of it, {taken:.1f} us  {told}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1].split(",") if len(sys.argv) > 1 else ["bf16"], 3)
