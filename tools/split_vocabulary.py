"""Times cross entropy with its backward on one GPU, and with the vocabulary split across the GPUs of this host.

    NCCL_NVLS_ENABLE=0 torchrun --standalone --nproc-per-node 2 tools/split_vocabulary.py --M 8192 --N 128256

Each time is the least of five medians of events around twenty calls, on the slowest rank. Splitting is right if both losses are alike.
Without NCCL_NVLS_ENABLE=0, NCCL may need rights for NVLink multicast that a container lacks.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import torch
import torch.distributed as dist

from softbench import kernels

CALLS, REPEATS = 20, 5


def slowest_us(call: Callable[[], object]) -> float:
    """Microseconds of a call on the slowest rank, from one call to the next."""
    medians = []
    for _ in range(REPEATS):
        dist.barrier()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(CALLS + 1)]
        for event in events:
            event.record()
            call()
        torch.cuda.synchronize()
        medians.append(median(1e3 * a.elapsed_time(b) for a, b in pairwise(events)))
    found = torch.tensor(min(medians), device="cuda")
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--M", type=int, default=8192)
    parser.add_argument("--N", type=int, default=128256)
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "float16", "bfloat16"))
    given = parser.parse_args()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    kernels.build()
    torch.manual_seed(0)
    logits = torch.randn(given.M, given.N, device="cuda", dtype=getattr(torch, given.dtype))
    target = torch.randint(given.N, (given.M,), device="cuda")
    part = logits.tensor_split(ranks, 1)[rank].contiguous().requires_grad_()
    first = sum(one.shape[1] for one in logits.tensor_split(ranks, 1)[:rank])
    logits.requires_grad_()
    split = {"process_group": dist.group.WORLD, "shard": (first, given.N)}

    def step(x: torch.Tensor, **options: object) -> torch.Tensor:
        x.grad = None
        loss: torch.Tensor = kernels.cross_entropy(x, target, **options)
        loss.backward()
        return loss.detach()

    apart = abs(float(step(logits, dtype=torch.float32)) - float(step(part, dtype=torch.float32, **split)))
    whole_us, split_us = slowest_us(lambda: step(logits)), slowest_us(lambda: step(part, **split))
    if rank == 0:
        card = f"{given.M}x{given.N} {given.dtype}, {torch.cuda.get_device_name()}"
        print(f"{card}: one GPU {whole_us:.0f} us, {ranks} GPUs {split_us:.0f} us: {split_us / whole_us:.3f}; losses apart by {apart:.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
