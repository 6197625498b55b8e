"""Launches a tier once on gigabytes, between cudaProfilerStart and Stop, for ncu: python tools/one_launch.py TIER

First it prints the algorithmic bytes as JSON.
"""

from __future__ import annotations

import json
import sys

import torch
from softbench.kernels.cuda import launch, launch_plan

TIERS = {name: number for number, name in enumerate(launch_plan.TIERS)}
# dtype, M, N and launch plan of every tier that reads each element once; () is the plan of the heuristics
CELLS = {
    "sub_warp": (torch.bfloat16, 1 << 25, 64, ()),
    "staged": (torch.bfloat16, 1 << 26, 33, ()),
    "warp": (torch.float32, 1 << 21, 640, (TIERS["warp"], 5, 64, 1, 1, 16, 0)),
    "block": (torch.float32, 131072, 8192, ()),
    "cluster": (torch.bfloat16, 16384, 131072, (TIERS["cluster"], 8, 256, 8, 0, 128, 0)),
    "cluster_bulk": (torch.bfloat16, 8192, 262144, (TIERS["cluster_bulk"], 24, 256, 4, 0, 128, 0)),
    "split_bulk": (torch.float32, 2048, 524288, ()),
    "split": (torch.float32, 2048, 524288, (TIERS["split"], 8, 512, 16, 8, 128, 1 << 16)),
    "backward cluster_bulk": (torch.float32, 8192, 131072, (TIERS["cluster_bulk"], 12, 256, 7, 0, 128, 0)),
}


def main(name: str) -> None:
    dtype, M, N, numbers = CELLS[name]
    x = torch.empty(M, N, dtype=dtype, device="cuda").normal_()
    tensors = (x, torch.rand_like(x), torch.empty_like(x)) if name.startswith("backward") else (x, torch.empty_like(x))
    run = launch.launch_backward if len(tensors) == 3 else launch.launch_forward
    plan = launch_plan.Plan(*(numbers or (-1,)))
    run(*tensors, plan=plan)
    torch.cuda.synchronize()
    print(json.dumps({"tier": launch_plan.TIERS[plan.tier], "bytes": len(tensors) * M * N * dtype.itemsize}), flush=True)
    torch.cuda.cudart().cudaProfilerStart()
    run(*tensors, plan=plan)
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


if __name__ == "__main__":
    main(sys.argv[1])
