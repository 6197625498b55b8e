"""The raw kernels in functions for torch.compile."""

import pytest
import torch
from softbench.kernels.triton import generic, tiled
from torch._subclasses.fake_tensor import FakeTensorMode

pytestmark = pytest.mark.skipif(generic.INTERPRETED, reason="fake tensors and TRITON_INTERPRET=1 do not go together")


def test_dynamo_takes_the_raw_autotuned_kernels_whole(monkeypatch):
    """Without a GPU, Dynamo looks for kernels only if it believes that there is one. It does not run them."""
    from softbench.kernels.triton import user_defined

    torch._dynamo.reset()
    monkeypatch.setattr(torch.utils._triton, "has_triton", lambda: True)
    launches = []

    def backend(graph, _):
        launches.extend(node.kwargs["grid"] for node in graph.graph.nodes if "triton_kernel_wrapper" in str(node.target))
        return graph.forward

    with FakeTensorMode():
        for N in (300, 10_000, 20_000):
            x = torch.empty(37, N, device="cuda")
            torch.compile(user_defined.forward, fullgraph=True, dynamic=False, backend=backend)(x)
            torch.compile(user_defined.backward, fullgraph=True, dynamic=False, backend=backend)(x, x)
    assert all(len(set(grid)) == 1 for grid in launches)  # the warps are tuned, the tile is not
    tiles, loops = len(tiled.WARPS), len(user_defined.LOOP_CONFIGS)
    assert [len(grid) for grid in launches] == [tiles, tiles, tiles, loops, loops, loops]
    assert [grid[0] for grid in launches[2:]] == [(37, 1, 1)] * 4
