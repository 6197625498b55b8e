"""`softbench.use()` on a GPU: torch's own functions with our kernels, at their limits of size and with all sizes."""

import contextlib
import importlib
import threading
import timeit

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from overridden import address, agrees_on_torchs_samples, opinfos, registered, signature
from softbench.kernels.automatic import choice, override
from softbench.kernels.automatic.override import OVERRIDES, Least, use
from softbench.kernels.common import extension

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
FUNCTIONS = (torch.softmax, torch.log_softmax)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LAUNCHERS = extension.launchers
each = pytest.mark.parametrize("function", FUNCTIONS)


@pytest.fixture(autouse=True)
def undone():
    torch._dynamo.reset()
    torch.manual_seed(0)
    before = registered()
    yield
    assert registered() == before
    assert override._depth == 0


class Ran(list):
    """The operators that ran our kernels; `in_cpp` has those that C++ launched."""

    def __init__(self):
        super().__init__()
        self.in_cpp, self.kept, self.told = [], [], {}

    def tell(self, library, device, addresses):
        """As `extension.launchers`, with launchers that record their launches."""
        self.told[library, device] = addresses
        ours = [one.operator for one in OVERRIDES if one.function == library]  # forward and backward
        found = [launcher and self.watched(operator, launcher) for operator, launcher in zip(ours, addresses, strict=False)]
        LAUNCHERS(library, device, [*found, None] if ours else addresses)

    def watched(self, operator, launcher):
        real = signature(operator)(launcher)

        def launch(*given):
            code = real(*given)
            if not code:
                self.append(operator)
                self.in_cpp.append(operator)
            return code

        self.kept.append(signature(operator)(launch))
        return address(self.kept[-1])


@pytest.fixture(autouse=True)
def ran(request, monkeypatch):
    """The operators that ran our kernels."""
    if not override._devices():
        pytest.skip("the rule was not measured on this GPU")
    found = Ran()
    if request.node.get_closest_marker("alone"):  # recording takes host time
        yield found
        return

    def recorded(name, launchers):
        def chosen(kernels):
            launch = launchers(kernels)

            def recording(*tensors):
                found.append(name)
                launch(*tensors)

            return recording

        return chosen

    for one in OVERRIDES:
        monkeypatch.setattr(one, "launchers", recorded(one.operator, one.launchers))
    monkeypatch.setattr(choice, "_choices", {})
    extension.forget_choices()
    monkeypatch.setattr(extension, "launchers", found.tell)
    for (library, device), launch in launch_addresses().items():
        found.tell(library, device, launch)
    yield found
    for (library, device), launch in found.told.items():
        LAUNCHERS(library, device, launch)


def launch_addresses():
    """What C++ was told: for the libraries of rows and each device, the addresses of forward, backward and None."""
    told = {given[:3]: given[3] for (name, *_), given in extension._told.items() if name == "softbench_launcher"}
    devices = {device for library, _, device in told if library < 2}
    return {(extension.FUNCTIONS[i], device): [told.get((i, which, device)) for which in range(3)] for i in (0, 1) for device in devices}


@pytest.fixture
def any_size(monkeypatch):
    for one in OVERRIDES:
        monkeypatch.setattr(one, "least", dict.fromkeys(override.DTYPES, Least(1)))


def large(dtype=torch.bfloat16, columns=4096, **options):
    return torch.randn(-(-(2**24) // columns), columns, device="cuda", dtype=dtype, **options)


@each
@pytest.mark.parametrize("variant", ["", "with_dtype"])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_torchs_samples_have_torchs_results(any_size, ran, function, variant, dtype):
    agrees_on_torchs_samples(function, variant, "cuda", dtype)
    in_float64 = variant or dtype is torch.float64  # the variant has a result in float64
    assert bool(ran) == (not in_float64)


@each
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_in_float32_agree_with_torch(any_size, ran, function, dtype):
    def inside(x, dim, dtype):
        with use():
            return function(x, dim, dtype=dtype)

    opinfos.widened_as_torch(inside, "cuda", dtype, function.__name__)
    assert ran


@each
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_large_tensors_are_close_to_float64(ran, function, dtype):
    x, dy = large(dtype, 1000, requires_grad=True), large(dtype, 1000)
    with use():
        y = function(x, -1)
        (dx,) = torch.autograd.grad(y, x, dy)
    assert ran == [f"_{function.__name__}", f"_{function.__name__}_backward_data"]
    wide = function(x.detach().double(), -1)
    opinfos.near(y, wide, 2)
    given = wide if function is torch.softmax else y.detach()
    opinfos.near(dx, opinfos.gradient(dy, given, -1, function.__name__), 8)


@each
def test_float16_with_a_float32_result_runs_one_kernel(ran, function):
    """torch calls its operator so for float16 only; bfloat16 it casts."""
    x = large(torch.float16, requires_grad=True)
    with use():
        y = function(x, -1, dtype=torch.float32)
        (dx,) = torch.autograd.grad(y, x, torch.randn_like(y))
    assert (y.dtype, dx.dtype) == (torch.float32, torch.float16)
    assert ran == [f"_{function.__name__}", f"_{function.__name__}_backward_data"]
    opinfos.near(y.half(), function(x.detach().double(), -1), 2)


@each
def test_second_gradients_agree_with_float64(any_size, ran, function):
    def gradients(x, dy):
        (dx,) = torch.autograd.grad(function(x, -1), x, dy, create_graph=True)
        return dx, *torch.autograd.grad(dx.square().sum(), (x, dy))

    x, dy = (torch.randn(64, 333, device="cuda", requires_grad=True) for _ in range(2))
    with use():
        found = gradients(x, dy)
    for got, wide in zip(found, gradients(*(tensor.detach().double().requires_grad_() for tensor in (x, dy))), strict=True):
        torch.testing.assert_close(got.double(), wide, rtol=1e-4, atol=1e-5)
    assert f"_{function.__name__}_backward_data" in ran


@each
def test_autocast_casts_as_it_does_outside(ran, function):
    x = large(requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16):
        expected = function(x, -1)
        with use():
            y = function(x, -1)
            y.sum().backward()
    assert (y.dtype, x.grad.dtype) == (expected.dtype, x.dtype)
    torch.testing.assert_close(y, expected)
    assert len(ran) == 2


def test_cross_entropy_and_attention_get_it(ran):
    x = large(torch.float32, 50257, requires_grad=True)
    target = torch.randint(50257, (len(x),), device="cuda")
    with use():
        loss = F.cross_entropy(x, target)
        loss.backward()
    assert ran == ["_log_softmax", "_log_softmax_backward_data"]
    torch.testing.assert_close(loss, F.cross_entropy(x, target))
    q = torch.randn(16, 16, 512, 64, device="cuda", dtype=torch.bfloat16)
    with use(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        F.scaled_dot_product_attention(q, q, q)
    assert ran[2:] == ["_softmax"]


def test_small_tensors_and_other_cases_keep_torchs_kernels(ran):
    with use():
        torch.softmax(torch.randn(4096, 1024, device="cuda"), -1)
        torch.softmax(large(), 0)
        torch.softmax(large(torch.float64), -1)
        torch.softmax(torch.randn(1, 124_999, device="cuda"), -1)
        assert ran == []
        torch.softmax(torch.randn(1, 125_000, device="cuda"), -1)
    assert ran == ["_softmax"]


def test_strides_of_rows_and_of_gradients(ran):
    wide = torch.randn(4096, 8192, device="cuda", dtype=torch.bfloat16)
    x = wide[:, :5000].requires_grad_()
    with use():
        y = torch.softmax(x, -1)
        (dx,) = torch.autograd.grad(y.sum(), x)  # the gradient of a sum has strides of 0
        transposed = torch.softmax(wide.t(), -1)
    assert y.is_contiguous() and transposed.is_contiguous()
    assert len(ran) == 3
    torch.testing.assert_close(y, torch.softmax(x, -1))
    torch.testing.assert_close(transposed, torch.softmax(wide.t(), -1))
    torch.testing.assert_close(dx, torch.zeros_like(dx), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("backend", "ours"), [("inductor", False), ("aot_eager", True)])
def test_compiled_functions_are_compiled_once(ran, backend, ours):
    counted = importlib.import_module("torch._dynamo.testing").CompileCounterWithBackend(backend)
    compiled = torch.compile(lambda x: torch.softmax(x, -1) * 2, backend=counted, fullgraph=True)
    x = large()
    outside = compiled(x)
    with use():
        inside = compiled(x)
    torch.testing.assert_close(inside, outside)
    assert counted.frame_count == 1
    assert bool(ran) == ours


def test_a_cuda_graph_keeps_the_kernels_of_its_capture(ran):
    x = large()
    with use():
        torch.softmax(x, -1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = torch.softmax(x, -1)
    assert len(ran) == 2
    x.copy_(large())
    graph.replay()
    torch.testing.assert_close(y, torch.softmax(x, -1))
    assert len(ran) == 2


def test_other_streams_and_threads_get_right_results(ran):
    tensors = [large() for _ in range(4)]
    expected = [torch.softmax(x, -1) for x in tensors]
    found = [None] * len(tensors)

    def compute(index):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                with use():
                    found[index] = torch.softmax(tensors[index], -1)
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=compute, args=(index,)) for index in range(len(tensors))]
    torch.cuda.synchronize()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for got, right in zip(found, expected, strict=True):
        torch.testing.assert_close(got, right)
    assert len(ran) == 80


@each
def test_later_calls_are_launched_in_cpp(ran, function):
    x, dy = large(torch.float16, 1000, requires_grad=True), large(torch.float16, 1000)
    with use():
        found = [(y := function(x, -1), torch.autograd.grad(y, x, dy)[0]) for _ in range(2)]
    assert ran == [f"_{function.__name__}", f"_{function.__name__}_backward_data"] * 2
    assert ran.in_cpp == ran[1:]
    for by_python, by_cpp in zip(*found, strict=True):
        assert torch.equal(by_python, by_cpp)


def test_launches_in_cpp_take_the_current_stream_and_device(any_size, ran):
    x = torch.randn(1000, 1000, device="cuda")
    expected = torch.softmax(x, -1)
    with use(), torch.cuda.stream(torch.cuda.Stream()):
        torch.softmax(x, -1)
        torch.cuda._sleep(10**8)
        late = torch.randn(1000, 1000, device="cuda").copy_(x)  # after the sleep, on this stream only
        y = torch.softmax(late, -1)
        torch.cuda.current_stream().synchronize()
    assert ran.in_cpp == ["_softmax"]
    torch.testing.assert_close(y, expected)


def host_times(*calls):
    """Least host time of each call outside and inside the block, in seconds. Outside and inside take turns; the GPU follows behind.

    The least of many: other programs of the host only add time.
    """
    least = [[1.0, 1.0] for _ in calls]
    for turn in range(40):
        with use() if turn % 2 else contextlib.nullcontext():
            for found, call in zip(least, calls, strict=True):
                call()  # decides what runs
                found[turn % 2] = min(found[turn % 2], *timeit.repeat(call, number=100, repeat=10, setup=torch.cuda.synchronize))
    return [(outside / 100, inside / 100) for outside, inside in least]


@pytest.mark.alone
def test_a_call_that_keeps_torchs_kernel_takes_no_longer():
    x = torch.randn(1, 64, device="cuda")
    [(outside, inside)] = host_times(lambda: torch.softmax(x, -1))
    assert inside - outside < 0.5e-6, (inside, outside)


@pytest.mark.alone
@each
def test_our_launch_takes_as_little_host_time(any_size, function):
    x = torch.randn(64, 1024, device="cuda")
    y = function(x, -1)
    gradient = getattr(torch.ops.aten, f"_{function.__name__}_backward_data")  # autograd's thread would add its noise
    found = host_times(lambda: function(x, -1), lambda: gradient(x, y, -1, torch.float32))
    print(f"{function.__name__}: us outside and inside: {[(round(1e6 * outside, 1), round(1e6 * inside, 1)) for outside, inside in found]}")
    for outside, inside in found:
        assert inside - outside < 2e-6, found
