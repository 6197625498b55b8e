"""The operators on the CPU, and raw kernels as functions for torch.compile."""

import pytest
import torch
from operators import OPS
from softbench.kernels.triton import generic, traceable
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
from torch._subclasses.fake_tensor import FakeTensorMode

from softbench.kernels import triton as kernels

pytestmark = [pytest.mark.skipif(generic.INTERPRETED, reason="fake tensors are not interpreted"), pytest.mark.usefixtures("fresh_compiler")]


def test_wrong_dtypes_layouts_dims_and_gradients_are_refused():
    softmax, backward = kernels.softmax, OPS.triton_softmax_backward
    for dtype in (torch.int32, torch.bool, torch.complex64):
        with pytest.raises(TypeError, match=r"the kernels take float32, float16, bfloat16 and float64"):
            softmax(torch.ones(3, dtype=dtype))
    with pytest.raises(TypeError, match=r"log_softmax of torch\.int32"):
        kernels.log_softmax(torch.ones(3, dtype=torch.int32))
    with pytest.raises(TypeError, match="strided"):
        softmax(torch.eye(3).to_sparse())
    for shape, dim in (((3,), 1), ((3, 4), -3), ((), 1), ((0, 3), 2)):
        with pytest.raises(IndexError, match="Dimension out of range"):
            softmax(torch.ones(shape), dim)
    x = torch.ones(2, 3)
    for dy in (torch.ones(3, 2), x.double()):
        with pytest.raises(TypeError, match="they must agree"):
            backward(dy, x, -1)


@pytest.fixture
def graphs(monkeypatch):
    """`graphs(function, tensors)`: what Dynamo makes of a function on fake tensors. It does not run the kernels.

    Without a GPU, Dynamo looks for kernels only if it believes that there is one.
    """
    monkeypatch.setattr(torch.utils._triton, "has_triton", lambda **options: True)

    def made(function, *tensors):
        nodes = []

        def backend(graph, _):
            nodes.extend(node for node in graph.graph.nodes if node.op == "call_function")
            return graph.forward

        torch.compile(function, fullgraph=True, dynamic=False, backend=backend)(*tensors)
        return nodes

    return made


def launch_in(nodes):
    """The kernel, grid and warps of the only launch among nodes of a graph."""
    (launch,) = [node for node in nodes if "triton_kernel_wrapper" in str(node.target)]
    ((grid, *_),) = launch.kwargs["grid"]
    constants = kernel_side_table.get_constant_args(launch.kwargs["constant_args_idx"])
    kernel = kernel_side_table.get_kernel(launch.kwargs["kernel_idx"])
    (config,) = kernel.configs if hasattr(kernel, "configs") else (None,)
    return getattr(kernel, "fn", kernel).__name__, grid, config.num_warps if config else constants["num_warps"]


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.bfloat16])
def test_dynamo_takes_the_launches_that_compilers_trace(graphs, dtype):
    from softbench.kernels.triton import user_defined

    with FakeTensorMode():
        for N in (300, 781, 1000, 1024, 4096, 9216):
            x = torch.empty(37, N, dtype=dtype, device="cuda")
            for function, given in ((user_defined.forward, (x,)), (user_defined.backward, (x, x))):
                nodes = graphs(function, *given)
                if N * x.element_size() * len(given) > traceable.LONG_ROW:
                    assert not [node for node in nodes if "triton_kernel_wrapper" in str(node.target)]
                    continue
                kernel, programs, warps = launch_in(nodes)
                how = traceable.launch_of((*given, x), False)
                kind = "" if len(given) == 1 else "gradient_" if how.tier == "tile" else ""
                expected = {"rows": "forward" if len(given) == 1 else "backward", "tile": f"{kind}tile"}[how.tier]
                assert (kernel, programs, warps) == (f"{expected}_traceable", how.programs, how.num_warps)


def test_rows_for_several_programs_call_the_opaque_operator(graphs):
    from softbench.kernels.triton import user_defined

    with FakeTensorMode():
        x, y = torch.empty(3, 9217, device="cuda"), torch.empty(3, 4609, device="cuda")
        assert OPS.triton_softmax_opaque.unrecorded in [node.target for node in graphs(user_defined.forward, x)]
        backward = OPS.triton_softmax_opaque_backward.unrecorded
        assert backward in [node.target for node in graphs(user_defined.backward, y, y)]
