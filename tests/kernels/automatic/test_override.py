"""`softbench.use`: its rule, and that nothing but the kernels changes. On the CPU, with launchers that record their calls."""

import importlib
import threading

import overridden
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from overridden import WAYS, agrees_on_torchs_samples, on_the_cpu, registered
from sampled import sampled
from softbench.kernels.automatic import override
from softbench.kernels.automatic.choice import Choice
from softbench.kernels.automatic.override import OVERRIDES, Least, use

ANY = Least(1, others=1)


@pytest.fixture(params=WAYS)
def calls(request, monkeypatch):
    """The operators that ran our kernels. All sizes do."""
    return on_the_cpu(monkeypatch, request.param, ANY)


@pytest.fixture(autouse=True)
def undone():
    with overridden.undone():
        yield


@pytest.mark.parametrize("name", ("softmax", "log_softmax"))
@pytest.mark.parametrize("variant", ["", "with_dtype"])
@pytest.mark.parametrize(
    "dtype", sampled([torch.float32, torch.float16, torch.bfloat16, torch.float64], lambda dtype: dtype is not torch.float16)
)
@pytest.mark.slow
def test_torchs_samples_have_torchs_results(calls, name, variant, dtype):
    agrees_on_torchs_samples(getattr(torch, name), variant, "cpu", dtype)
    in_float64 = variant or dtype is torch.float64  # the variant has a result in float64
    assert {*calls} == (set() if in_float64 else {f"_{name}", f"_{name}_backward_data"})


@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax])
def test_gradients_of_both_orders_agree_with_float64(calls, function):
    def gradients(x, dy):
        (dx,) = torch.autograd.grad(function(x, -1), x, dy, create_graph=True)
        return dx, *torch.autograd.grad(dx.square().sum(), (x, dy))

    x, dy = (torch.randn(5, 7, requires_grad=True) for _ in range(2))
    with use():
        found = gradients(x, dy)
    expected = gradients(*(tensor.detach().double().requires_grad_() for tensor in (x, dy)))
    for got, wide in zip(found, expected, strict=True):
        torch.testing.assert_close(got.double(), wide, rtol=1e-5, atol=1e-6)
    assert f"_{function.__name__}_backward_data" in calls


def test_autocast_casts_as_it_does_outside(calls):
    x = torch.randn(3, 5).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        expected = torch.softmax(x, -1)
        with use():
            y = torch.softmax(x, -1)
    assert y.dtype is expected.dtype
    torch.testing.assert_close(y, expected)
    assert calls == ["_softmax"]


def test_callers_in_cpp_get_it(calls):
    x, target = torch.randn(4, 6, requires_grad=True), torch.tensor([0, 1, 2, 3])
    with use():
        F.cross_entropy(x, target).backward()
        assert calls == ["_log_softmax", "_log_softmax_backward_data"]
        q = torch.randn(1, 2, 4, 8)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            F.scaled_dot_product_attention(q, q, q, attn_mask=torch.zeros(4, 4))
    assert calls[2:] == ["_softmax"]


def test_strides_and_expanded_gradients(calls):
    x = torch.randn(6, 5, 4).transpose(0, 2).requires_grad_()
    with use():
        y = torch.softmax(x, -1)
        (dx,) = torch.autograd.grad(y.sum(), x)  # the gradient of a sum has strides of 0
        rows = torch.softmax(torch.randn(4, 10)[:, :6], -1)
    assert y.is_contiguous() and rows.is_contiguous()
    torch.testing.assert_close(y, torch.softmax(x, -1))
    torch.testing.assert_close(dx, torch.zeros_like(dx), atol=1e-6, rtol=0)
    assert calls == ["_softmax", "_softmax_backward_data", "_softmax"]


def test_what_torch_refuses_is_refused(calls):
    with use():
        with pytest.raises(RuntimeError, match="not implemented for 'Int'"):
            torch.softmax(torch.ones(3, 4, dtype=torch.int32), -1)
        with pytest.raises(IndexError):
            torch.softmax(torch.ones(3, 4), 2)
        with pytest.raises(RuntimeError):
            torch.ops.aten._softmax_backward_data(torch.ones(3, 4), torch.ones(3, 5), -1, torch.float32)
        assert torch.softmax(torch.tensor(2.0), -1) == 1
        assert torch.softmax(torch.ones(0, 4), -1).shape == (0, 4)
    assert calls == []


def test_other_dims(calls):
    x = torch.randn(4, 5, 6, requires_grad=True)
    with use():
        for dim in (0, -2):
            y = torch.softmax(x, dim)
            torch.testing.assert_close(y, torch.softmax(x.detach().double(), dim).float())
            y.sum().backward()
        with pytest.raises(IndexError):
            torch.softmax(x, 3)
    assert calls == ["_softmax", "_softmax_backward_data"] * 2


@pytest.mark.parametrize("way", WAYS)
def test_the_rule_in_cpp_is_that_in_python(monkeypatch, way):
    least = Least(600, 100, 500)
    calls = on_the_cpu(monkeypatch, way, least)
    shapes = [(599,), (600,), (1, 99), (1, 100), (6, 99), (7, 99), (100, 6), (3, 2, 100), (0, 100), (100, 0), (), (1,), (5, 120, 1)]
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        for shape in shapes:
            for dim in {-1, 0, max(0, len(shape) - 1)}:
                x = torch.randn(shape).to(dtype)
                last = len(shape) > 0 and dim in (-1, len(shape) - 1)
                enough = x.numel() > 0 and (x.numel() >= 600 or shape[-1] >= 100) if last else shape != () and x.numel() >= 500
                expected = dtype in override.DTYPES and enough
                calls.clear()
                with use():
                    torch.softmax(x, dim)
                assert bool(calls) == expected, (dtype, shape, dim)


def test_without_our_kernels_torchs_run(monkeypatch):
    calls = on_the_cpu(monkeypatch, "filter", ANY)
    monkeypatch.setattr(override, "which", lambda x, dim=-1, function="": Choice("torch", "a test"))
    x = torch.randn(3, 4)
    with use():
        assert torch.equal(torch.softmax(x, -1), torch.softmax(x.clone(), -1))
    assert calls == []


def test_blocks_are_nested_and_end_with_an_exception(calls):
    x, before = torch.randn(3, 4), registered()

    @use()
    def decorated():
        return torch.softmax(x, -1)

    with pytest.raises(ValueError, match="inside"), use():
        with use():
            torch.softmax(x, -1)
        torch.softmax(x, -1)
        assert registered() != before
        raise ValueError("inside")
    assert registered() == before
    torch.softmax(x, -1)
    assert len(calls) == 2
    decorated()
    assert len(calls) == 3
    override.enable()
    torch.softmax(x, -1)
    override._leave()
    assert len(calls) == 4


def test_a_failed_registration_leaves_nothing_behind(monkeypatch):
    on_the_cpu(monkeypatch, "python", ANY)
    asked = []

    def failing(name, key):
        asked.append(name)
        if name == "aten::_softmax_backward_data":
            raise RuntimeError("no kernel")
        return original(name, key)

    original = torch.library.get_kernel
    monkeypatch.setattr(torch.library, "get_kernel", failing)
    with pytest.raises(RuntimeError, match="no kernel"), use():
        pass
    assert "aten::_softmax" in asked


def test_threads_enter_and_leave_while_others_compute(calls):
    x = torch.randn(8, 32, requires_grad=True)
    expected = torch.softmax(x.detach().double(), -1).float()
    errors, end = [], threading.Event()

    def compute():
        while not end.is_set():
            y = torch.softmax(x, -1)
            torch.autograd.grad(y, x, torch.ones_like(y))
            if not torch.allclose(y, expected, atol=1e-6):
                errors.append(y)

    def enter():
        for _ in range(100):
            with use():
                torch.softmax(x, -1)

    workers = [threading.Thread(target=compute) for _ in range(2)]
    blocks = [threading.Thread(target=enter) for _ in range(3)]
    for thread in (*workers, *blocks):
        thread.start()
    for thread in blocks:
        thread.join()
    end.set()
    for thread in workers:
        thread.join()
    assert errors == []
    assert len(calls) >= 300


def test_another_override_is_called_and_stays(calls):
    theirs = []

    def kernel(x, dim, half_to_float):
        theirs.append(x.shape)
        return x.clone()

    for one in OVERRIDES:
        one.least = dict.fromkeys(override.DTYPES, Least(100))
    with overridden.other_override("_softmax", kernel):
        with use():
            torch.softmax(torch.randn(3, 4), -1)
            torch.softmax(torch.randn(30, 4), -1)
        torch.softmax(torch.randn(30, 5), -1)
    assert (theirs, calls) == ([(3, 4), (30, 5)], ["_softmax"])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_operators_of_aten_run_what_is_active(calls, backend):
    importlib.import_module("torch._dynamo.testing")
    torch._dynamo.reset()
    counted = torch._dynamo.testing.CompileCounterWithBackend(backend)
    x = torch.randn(3, 4, requires_grad=True)
    compiled = torch.compile(lambda x: torch.softmax(x, -1) * 2, backend=counted, fullgraph=True)
    outside = compiled(x)
    assert calls == []
    with use():
        inside = compiled(x)
        inside.sum().backward()
    torch.testing.assert_close(inside, outside)
    assert (counted.frame_count, calls) == (1, ["_softmax", "_softmax_backward_data"])


def test_dtensors_run_it_on_their_parts(calls):
    from torch import distributed
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        x = DTensor.from_local(torch.randn(4, 6), init_device_mesh("cpu", (1,)), [Shard(0)])
        with use():
            y = torch.softmax(x, -1)
    finally:
        distributed.destroy_process_group()
    assert isinstance(y, DTensor)
    assert calls == ["_softmax"]
    torch.testing.assert_close(y.to_local(), torch.softmax(x.to_local(), -1))


def test_only_measured_gpus_are_taken(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: [(9, 0), (8, 9), (9, 0)][index])
    assert override._devices() == [0, 2]
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert override._devices() == []
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert override._devices() == []
    before = registered()
    with use():
        assert registered() == before


def test_a_filter_decides_by_device(monkeypatch):
    calls = on_the_cpu(monkeypatch, "filter", ANY)
    monkeypatch.setattr(override, "_devices", lambda: [1, 3])
    with use():
        torch.softmax(torch.randn(3, 4), -1)
    assert calls == []


def test_each_operator_has_a_slot_and_torchs_schema():
    assert len(OVERRIDES) <= 8  # FILTERS of filter.cpp
    for one in OVERRIDES:
        arguments = getattr(torch.ops.aten, one.operator).default._schema.arguments
        assert [argument.name for argument in arguments].index("dim") == one.tensors
