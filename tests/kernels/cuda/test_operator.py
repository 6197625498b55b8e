"""The CUDA operators of softmax and log_softmax without a GPU.

Tensors are on the CPU, where the operators are torch's functions. Launches that call torch's functions test the code around the kernels.
"""

import itertools

import pytest
import torch
from operators import EVERY_TEST, INPUTS, run_and_differentiate
from sampled import sampled
from softbench.kernels.common.softmax import Softmax
from softbench.kernels.cuda import build, log_softmax, operator, softmax
from torch.library import opcheck

from softbench.backends import torch_library
from softbench.backends.cuda import backend as cuda
from softbench.core.case import Case, Direction

pytestmark = pytest.mark.usefixtures("fresh_compiler")

OPS = torch.ops.softbench
FORWARD, BACKWARD = OPS.cuda_softmax.default, OPS.cuda_softmax_backward.default
LOG_FORWARD, LOG_BACKWARD = OPS.cuda_log_softmax.default, OPS.cuda_log_softmax_backward.default
PAIRS = {"softmax": (FORWARD, BACKWARD), "log_softmax": (LOG_FORWARD, LOG_BACKWARD)}
PYTHON = {"softmax": softmax, "log_softmax": log_softmax}
each = pytest.mark.parametrize("name", PAIRS)
NARROW = [torch.float16, torch.bfloat16]


@each
@pytest.mark.parametrize("dtype", sampled(NARROW, lambda dtype: dtype is NARROW[0]))
def test_opcheck_passes_on_wider_results(name, dtype):
    (forward, backward), (x, dy, y) = PAIRS[name], torch.randn(3, 5, 7).unbind()
    opcheck(forward, (x.to(dtype).requires_grad_(), -1, torch.float32), test_utils=EVERY_TEST)
    opcheck(backward, (dy.requires_grad_(), y.requires_grad_(), -1, dtype), test_utils=EVERY_TEST, rtol=2e-2, atol=2e-2)


def results_of(dtype):
    return [None, dtype, torch.float32] if dtype in NARROW else [None, dtype]


def near(got, expected, dtype):
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(dtype, 1e-6)
    assert torch.allclose(got.double(), expected.double(), rtol=tolerance, atol=tolerance)


def gradient(name, dy, y, dim):
    """dx in float64."""
    dy, y = dy.double(), y.double()
    return y * (dy - (dy * y).sum(dim, keepdim=True)) if name == "softmax" else dy - y.exp() * dy.sum(dim, keepdim=True)


@each
@pytest.mark.parametrize("dtype", [torch.float32, *NARROW])
def test_launches_get_rows_and_fill_the_result(name, dtype, monkeypatch):
    launched, torchs, own = [], getattr(torch, name), getattr(operator, name.upper())

    def forward(x, y):
        launched.append((x, y))
        y.copy_(torchs(x.double(), 1))

    def backward(dy, y, dx):
        launched.append((dy, y, dx))
        assert (dy.dtype, dx.dtype) == (y.dtype, dtype)  # no pass converts the gradient
        dx.copy_(gradient(name, dy, y, 1))

    def columns(*tensors, scale):
        (forward if len(tensors) == 2 else backward)(*tensors)
        return True

    monkeypatch.setattr(own.function, "columns", columns)
    monkeypatch.setattr(own.function, "launch_forward", forward)
    monkeypatch.setattr(own.function, "launch_backward", backward)
    for (x, dim), result in itertools.product(INPUTS, results_of(dtype)):
        x = x.to(dtype)
        launched.clear()
        y = own.forward(x, dim, result)
        dy = torch.randn(x.shape).to(y.dtype)
        dx = own.backward(dy, y, dim, dtype)
        assert len(launched) == (2 if x.numel() else 0)
        assert all(tensor.dim() == 3 or tensor.stride(1) == 1 for given in launched for tensor in given if tensor.shape[1] > 1)
        expected = torchs(x, dim)
        assert (y.dtype, y.shape, y.stride()) == (result or dtype, x.shape, expected.stride())
        assert (dx.dtype, dx.shape, dx.stride()) == (dtype, x.shape, expected.stride())
        near(y, torchs(x.double(), dim), dtype if result is None else result)
        near(dx, gradient(name, dy, y, dim), dtype)


@each
@pytest.mark.parametrize("dtype", NARROW)
def test_wider_results_have_gradients_in_the_inputs_dtype(name, dtype):
    x, dy, g = (torch.randn(4, 50) for _ in range(3))
    x = x.to(dtype).requires_grad_()
    y = PYTHON[name](x, dtype=torch.float32)
    dy.requires_grad_()
    (dx,) = torch.autograd.grad(y, x, dy, create_graph=True)
    of_x, of_dy = torch.autograd.grad(dx, (x, dy), g.to(dtype))
    assert (y.dtype, dx.dtype, of_x.dtype, of_dy.dtype) == (torch.float32, dtype, dtype, torch.float32)
    wide, slope = x.detach().double().requires_grad_(), dy.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(getattr(torch, name)(wide, -1), wide, slope, create_graph=True)
    near(dx, expected, dtype)
    for got, want in zip((of_x, of_dy), torch.autograd.grad(expected, (wide, slope), g.to(dtype).double()), strict=True):
        near(got, want, dtype)


def test_refused_arguments_raise_a_one_line_error():
    wrong = [
        (TypeError, "the kernels take float32, float16 and bfloat16", lambda: softmax(torch.ones(3, dtype=torch.int32))),
        (TypeError, "the kernels take float32, float16 and bfloat16", lambda: softmax(torch.ones(3, dtype=torch.bool))),
        (TypeError, "layout", lambda: softmax(torch.eye(3).to_sparse())),
        (TypeError, "log_softmax of torch.int32 on cpu", lambda: log_softmax(torch.ones(3, dtype=torch.int32))),
        (IndexError, "Dimension out of range", lambda: softmax(torch.ones(3, 4), -3)),
        (IndexError, "Dimension out of range", lambda: softmax(torch.ones(()), 1)),
        (TypeError, "they must agree", lambda: BACKWARD(torch.ones(3, 2), torch.ones(2, 3), -1)),
        (TypeError, "they must agree", lambda: BACKWARD(torch.ones(3).half(), torch.ones(3), -1)),
        (TypeError, "dx as torch.float64 of y as torch.float32", lambda: BACKWARD(torch.ones(3), torch.ones(3), -1, torch.float64)),
        (TypeError, "dx as torch.float16 of y as", lambda: BACKWARD(torch.ones(3).bfloat16(), torch.ones(3).bfloat16(), -1, torch.float16)),
        (NotImplementedError, "forward mode AD", forward_mode),
    ]
    refused = [
        (torch.float32, torch.float16),
        (torch.float32, torch.float64),
        (torch.float16, torch.bfloat16),
        (torch.float16, torch.int32),
    ]
    for dtype, result in refused:
        wrong.append((TypeError, f"softmax of {dtype} as {result}", lambda d=dtype, r=result: softmax(torch.ones(3, dtype=d), dtype=r)))
    for error, part, call in wrong:
        with pytest.raises(error, match=part) as raised:
            call()
        assert "\n" not in str(raised.value)


def forward_mode():
    with torch.autograd.forward_ad.dual_level():
        softmax(torch.autograd.forward_ad.make_dual(torch.ones(3), torch.ones(3)))


@pytest.mark.parametrize(
    ("dynamic", "dtype"),
    sampled(itertools.product((False, True), (torch.float32, torch.bfloat16)), lambda dynamic, dtype: dynamic == (dtype == torch.bfloat16)),
)
def test_it_compiles_without_graph_breaks(dynamic, dtype):
    graphs = []

    def backend(graph, example):
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, example)

    compiled = torch.compile(lambda x: softmax(x * 2, -1, torch.float32) + 1, fullgraph=True, dynamic=dynamic, backend=backend)
    for M, N in ((3, 5), (4, 6), (5, 700)):
        x, dy = torch.randn(M, N).to(dtype), torch.randn(M, N)
        expected = run_and_differentiate(lambda x: torch.softmax(x * 2, -1, dtype=torch.float32) + 1, x, dy)
        for got, want in zip(run_and_differentiate(compiled, x, dy), expected, strict=True):
            assert got.dtype == want.dtype
            near(got, want, dtype)
    assert len(graphs) == (1 if dynamic else 3)


def test_export_keeps_one_call_of_each():
    class Module(torch.nn.Module):
        def forward(self, x):
            return softmax(x), log_softmax(x)

    exported = torch.export.export(Module(), (torch.randn(3, 5),))
    assert [node.target for node in exported.graph.nodes if node.op == "call_function"] == [FORWARD, LOG_FORWARD]


def test_the_sources_of_the_operator_are_known():
    assert {"softmax.cu", "operator.py", "launch.py"} <= {file.name for file in torch_library.cuda_op.sources()}


@pytest.mark.parametrize(
    ("op", "given"),
    [
        ("softmax", {}),
        ("log_softmax", {}),
        ("softmax(scale=0.7)", {"scale": 0.7}),
        ("softmax(out_dtype=fp32)", {"dtype": torch.float32}),
        ("softmax(scale=row,out_dtype=fp32)", {"scale": "row", "dtype": torch.float32}),
    ],
)
def test_the_cuda_backend_gives_parameters_to_its_function(op, given, monkeypatch):
    """Each call of the three passes equals a call of the function with its keywords. The kernels are torch's, on the CPU."""

    def factor(scale):
        return scale[:, None] if isinstance(scale, torch.Tensor) else scale

    def forward(x, y, scale=1.0):
        y.copy_(getattr(torch, op.partition("(")[0])(x.float() * factor(scale), 1))

    def backward(dy, y, dx, scale=1.0):
        dx.copy_(factor(scale) * (dy - y.exp() * dy if op.startswith("log") else dy * y))

    function = Softmax(forward, backward, ("cpu",))
    monkeypatch.setattr(type(cuda), "function", lambda self, operation: function)
    x = torch.randn(4, 6, dtype=torch.bfloat16)
    keywords = {**given, **({"scale": torch.rand(4) + 0.5} if given.get("scale") == "row" else {})}
    more = (keywords["scale"],) if given.get("scale") == "row" else ()
    dy = torch.randn(4, 6, dtype=keywords.get("dtype", x.dtype))

    def prepared(direction):
        return cuda.prepare(Case(4, 6, "bf16", direction, "cpu", op))

    y, narrow = function.forward(x, **keywords), {**keywords, "dtype": torch.bfloat16}
    dx = function.backward(dy, y, **narrow)
    assert dx.dtype is torch.bfloat16
    assert torch.equal(prepared(Direction.FORWARD)(x, *more), y)
    assert torch.equal(prepared(Direction.BACKWARD)(dy, y, *more), dx)
    for got, want in zip(prepared(Direction.BOTH)(x.requires_grad_(), dy, *more), (y, dx), strict=True):
        assert torch.equal(got, want)
    if not more:
        assert torch.equal(cuda.over_dim(Direction.FORWARD, op)(x.detach().t(), 0), y.t())


def test_the_cuda_op_backend_gives_its_reason_for_not_running(monkeypatch):
    if not torch.cuda.is_available():
        assert "no CUDA GPU" in torch_library.cuda_op.available()
    monkeypatch.setattr(torch_library.OperatorBackend, "available", lambda self: None)
    monkeypatch.setattr(torch_library.nvidia, "missing", lambda: None)
    monkeypatch.setattr(build, "nvcc", lambda: None)
    assert torch_library.cuda_op.available() == build.MISSING
    monkeypatch.setattr(build, "nvcc", lambda: "/somewhere/nvcc")
    assert torch_library.cuda_op.available() is None
