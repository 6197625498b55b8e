"""The raw kernels in functions for torch.compile."""

import pytest
import torch
from softbench.kernels.triton import generic, tiled, traceable
from torch._subclasses.fake_tensor import FakeTensorMode

pytestmark = pytest.mark.skipif(generic.INTERPRETED, reason="fake tensors and TRITON_INTERPRET=1 do not go together")


@pytest.fixture
def graphs(monkeypatch):
    """`graphs(function, tensors)`: what Dynamo makes of a function on fake tensors. It does not run the kernels.

    Without a GPU, Dynamo looks for kernels only if it believes that there is one.
    """
    torch._dynamo.reset()
    monkeypatch.setattr(torch.utils._triton, "has_triton", lambda: True)

    def made(function, *tensors):
        nodes = []

        def backend(graph, _):
            nodes.extend(node for node in graph.graph.nodes if node.op == "call_function")
            return graph.forward

        torch.compile(function, fullgraph=True, dynamic=False, backend=backend)(*tensors)
        return nodes

    return made


def test_dynamo_takes_the_raw_kernels_whole(graphs):
    from softbench.kernels.triton import user_defined

    configs = {}
    with FakeTensorMode():
        for N in (300, 4096, 9216):
            x = torch.empty(37, N, device="cuda")
            for function, given in ((user_defined.forward, (x,)), (user_defined.backward, (x, x))):
                launches = [node for node in graphs(function, *given) if "triton_kernel_wrapper" in str(node.target)]
                if N * 4 * len(given) > traceable.LONG_ROW:
                    assert not launches
                    continue
                (launch,) = launches
                grid = launch.kwargs["grid"]
                assert len(set(grid)) == 1  # the warps are tuned, the tile is not
                configs[N, len(given)] = len(grid)
    assert configs == {(300, 1): len(tiled.WARPS), (300, 2): len(tiled.WARPS), (4096, 1): 1, (4096, 2): 1, (9216, 1): 1}


def test_rows_for_several_programs_call_the_opaque_operator(graphs):
    from softbench.kernels.triton import user_defined

    with FakeTensorMode():
        x, y = torch.empty(3, 9217, device="cuda"), torch.empty(3, 4609, device="cuda")
        assert torch.ops.softbench.triton_softmax_opaque.default in [node.target for node in graphs(user_defined.forward, x)]
        opaque = torch.ops.softbench.triton_softmax_opaque_backward.default
        assert opaque in [node.target for node in graphs(user_defined.backward, y, y)]
