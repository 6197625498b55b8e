"""The operators of the losses without a GPU: the shapes that a compiler sees, and what they pass on."""

import pytest
import torch
from softbench.kernels.cuda import loss_operators, losses
from torch._subclasses.fake_tensor import FakeTensorMode

SHAPES = {
    "cross_entropy_forward": [(3,), (3,)],
    "cross_entropy_backward": [(3, 5)],
    "cross_entropy_fused": [(3,), (3, 5)],
    "logprob_forward": [(3,), (3,), (3,)],
    "logprob_backward": [(3, 5)],
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_compiler_sees_the_shapes_and_dtypes_of_results(name):
    operator = getattr(torch.ops.softbench, f"cuda_{name}").default
    tensors = loss_operators.SCHEMAS[name].count("Tensor ")
    with FakeTensorMode():
        x, rows = torch.empty(3, 10, dtype=torch.bfloat16)[:, ::2], torch.empty(3)
        results = operator(x, torch.zeros(3, dtype=torch.int64), *[rows] * (tensors - 2))
        results = results if isinstance(results, tuple) else (results,)
        assert [tuple(result.shape) for result in results] == SHAPES[name]
        assert [result.dtype for result in results] == [torch.bfloat16 if result.dim() == 2 else torch.float32 for result in results]
        assert all(result.is_contiguous() for result in results)


def test_options_arrive_by_name(monkeypatch):
    given = []
    monkeypatch.setattr(losses, "cross_entropy_backward", lambda *tensors, **options: given.append((tensors, options)))
    loss_operators._kernel("cross_entropy_backward")(1, 2, 3, 4, 5, 0.5, 0.25, 30.0)
    assert given == [((1, 2, 3, 4), {"ignore_index": 5, "label_smoothing": 0.5, "z_loss": 0.25, "softcap": 30.0})]
