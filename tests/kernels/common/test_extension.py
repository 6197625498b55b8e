"""The extension in C++: its build, and its operators on the CPU, with launchers that compute in float64."""

import ctypes
import logging
import math
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from overridden import seventh_stream
from softbench.kernels.automatic import choice, loss_operators as losses, masked_softmax as scores
from softbench.kernels.common import extension
from softbench.kernels.cuda import build, operator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from softbench import kernels

CPU = torch.device("cpu")
TARGET = torch.tensor([0, -100, 10, 3, 3, 7])
P = ctypes.c_void_p


class Launchers:
    """Functions of the CUDA libraries for addresses in the CPU's memory. They record their names, and refuse while `code` is not 0."""

    def __init__(self):
        self.calls, self.code, self.kept, self.needs = [], 0, [], None

    def add_library(self, library, **functions):
        """Functions with the arguments that Python passes to those of the library."""
        addresses = [self.add(library, which, functions[which]) if which in functions else None for which in extension.PASSES]
        extension.launchers(library, 0, addresses)

    def add(self, library, which, launch):
        def called(*given):
            if self.needs is not None and self.needs != given[-4]:
                return -1 - (given[-4] or 0)  # bytes that the workspace lacks
            if self.code == 0:
                self.calls.append(f"{library} {which}")
                launch(*given)
            return self.code

        self.kept.append(ctypes.CFUNCTYPE(ctypes.c_int64, *build._arguments(library)[which])(called))
        return ctypes.cast(self.kept[-1], P).value


def at(address, *shape, dtype=torch.float32, stride=None):
    if address is None:
        return None
    stride = stride or shape[-1]
    count = (stride * (shape[0] - 1) + shape[-1]) if len(shape) == 2 else math.prod(shape)
    flat = torch.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(address), dtype=dtype)
    return flat.as_strided(shape, (stride, 1)) if len(shape) == 2 else flat.view(shape)


def number_at(number):
    return extension.DTYPES[number]


def softmax_forward(x, y, sx, sy, M, N, dtype, out, *_):
    x, y = at(x, M, N, dtype=number_at(dtype), stride=sx), at(y, M, N, dtype=number_at(out), stride=sy)
    y.copy_(torch.softmax(x.double(), -1))


def softmax_backward(dy, y, dx, sdy, sy, sdx, M, N, dtype, out, *_):
    dy, y = (at(one, M, N, dtype=number_at(dtype), stride=stride).double() for one, stride in ((dy, sdy), (y, sy)))
    at(dx, M, N, dtype=number_at(out), stride=sdx).copy_(y * (dy - (dy * y).sum(-1, keepdim=True)))


def cross_entropy_forward(x, target, loss, _lse, statistics, ignored, smoothing, z_loss, cap, scale, stride, M, N, dtype, *_):
    x, target = at(x, M, N, dtype=number_at(dtype), stride=stride).float(), at(target, M, dtype=torch.int64)
    inside = (target == ignored) | ((target >= 0) & (target < N))
    made = losses._formula_of_loss(x, torch.where(inside, target, 0), ignored, smoothing, z_loss, cap, logit_scale=scale)
    at(loss, M).copy_(torch.where(inside, made[0], torch.nan))
    at(statistics, 2 * M).copy_(made[1].view(-1))


def reduce(loss, target, result, counted, ignored, mean, M, stream):
    assert stream == 7
    count = (at(target, M, dtype=torch.int64) != ignored).sum()
    at(counted, 1).fill_(count)
    at(result, 1).copy_(at(loss, M).sum() / (count if mean else 1))


def cross_entropy_backward(
    x, target, _lse, statistics, dloss, counted, dx, ignored, smoothing, z_loss, cap, scale, sx, sdx, sloss, classes, M, N, dtype, *_
):
    x, target = at(x, M, N, dtype=number_at(dtype), stride=sx), at(target, M, dtype=torch.int64)
    dloss = torch.stack([at(dloss + 4 * sloss * row, 1)[0] for row in range(M)]) / (1 if counted is None else at(counted, 1)[0])
    options = ignored, smoothing, z_loss, cap, losses.NONE, scale, classes
    made = losses._gradient_of_loss(x, target, at(statistics, 2 * M).view(M, 2), dloss, dloss[:0], *options)
    at(dx, M, N, dtype=number_at(dtype), stride=sdx).copy_(made)


def logprob_forward(x, target, found, entropy, _lse, statistics, ignored, scale, stride, M, N, dtype, *_):
    x, target = at(x, M, N, dtype=number_at(dtype), stride=stride), at(target, M, dtype=torch.int64)
    for to, value in zip((found, entropy, statistics), losses._formula_of_logprob(x, target, ignored, scale), strict=True):
        at(to, value.numel()).copy_(value.view(-1))


def logprob_backward(x, target, _lse, statistics, entropy, dlogprob, dentropy, dx, ignored, scale, sx, sdx, sl, se, M, N, dtype, *_):
    x, target = at(x, M, N, dtype=number_at(dtype), stride=sx), at(target, M, dtype=torch.int64)
    given = [
        None if one is None else torch.stack([at(one + 4 * s * row, 1)[0] for row in range(M)])
        for one, s in ((dlogprob, sl), (dentropy, se))
    ]
    made = losses._gradient_of_logprob(x, target, at(statistics, 2 * M).view(M, 2), at(entropy, M), *given, ignored, scale)
    at(dx, M, N, dtype=number_at(dtype), stride=sdx).copy_(made)


def scores_forward(x, mask, sink, y, share, scale, causal):
    made, part = scores._formula(x, mask, sink, scale, causal)
    y.copy_(made)
    if share is not None:
        share.copy_(part)


def scores_backward(dy, y, share, dx, dsink, scale, causal):
    made, of_sink = scores._formula_of_gradient(dy, y, share, scale, causal)
    dx.copy_(made)
    if dsink is not None:
        dsink.copy_(of_sink)


@pytest.fixture
def launched(monkeypatch):
    """The operators in C++ for the CPU, with `Launchers` for all libraries."""
    library = extension.load(build=True)
    if library is None:
        pytest.skip("needs g++")
    monkeypatch.setattr(extension, "BACKEND", "CPU")
    monkeypatch.setattr(extension, "CALLS", True)
    for function in extension.ENTRIES:
        monkeypatch.setattr(extension.entries, function, extension.without)
    before, extension._told = extension._told, {}
    extension._take_calls(library)
    library.softbench_streams(ctypes.cast(seventh_stream, P).value, None)
    made = Launchers()
    made.add_library("softmax", forward=softmax_forward, backward=softmax_backward)
    made.add_library("cross_entropy", forward=cross_entropy_forward, backward=cross_entropy_backward, reduce=reduce)
    made.add_library("logprob", forward=logprob_forward, backward=logprob_backward)

    def recorded(launch, name):
        def called(*given):
            with torch.no_grad():
                launch(*given)
            made.calls.append(name)

        return called

    forward, backward = recorded(scores_forward, "masked_softmax forward"), recorded(scores_backward, "masked_softmax backward")
    extension.entries.take_launches_of_scores(forward, backward)
    for function in extension.FUNCTIONS:
        extension.choose(function, 0, torch.float32)
    yield made
    extension.forget_choices()
    for name in extension.FUNCTIONS:
        extension.launchers(name, 0, [None] * 3)
    library.softbench_withdraw()
    extension._forget_kernels(extension._defined)
    monkeypatch.undo()
    extension._told = before
    extension._tell_all(library)


def both(launched, call, *inputs):
    """Results and gradients by C++ and by Python, which agree; returns what C++ launched."""
    found = []
    for code in (0, 1):
        launched.code = code
        extension.choose("masked_softmax", 0, torch.float32, code == 0)  # its launch cannot refuse
        given = [one.detach().clone().requires_grad_() for one in inputs]
        results = call(*given)
        results = results if isinstance(results, tuple) else (results,)
        torch.manual_seed(1)
        weights = [torch.randn_like(one) for one in results]
        gradients = torch.autograd.grad(results, given, weights)
        found.append([*(one.detach() for one in results), *gradients])
    launched.code = 0
    extension.choose("masked_softmax", 0, torch.float32)
    for ours, theirs in zip(*found, strict=True):
        assert ours.dtype == theirs.dtype and ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
    return launched.calls


@pytest.mark.parametrize("reduction", losses.REDUCTIONS)
def test_cross_entropy_and_its_gradient_are_launched_without_python(launched, reduction):
    reduces = ["cross_entropy reduce"] * (reduction != "none")
    for shape in ((6,), (2, 3)):
        x, target = torch.randn(*shape, 11), TARGET.view(shape)
        calls = both(
            launched,
            lambda x, t=target: kernels.cross_entropy(x, t, reduction=reduction, label_smoothing=0.1, z_loss=0.01, logit_scale=0.5, dim=-1),
            x,
        )
        assert calls == ["cross_entropy forward", *reduces, "cross_entropy backward"]
        calls.clear()


def test_a_loss_summed_later_has_a_gradient_without_a_copy(launched):
    x = torch.randn(2, 3, 11)[:, :, :8]
    both(launched, lambda x: kernels.cross_entropy(x, TARGET.view(2, 3) % 8, reduction="none", dim=-1).sum(), x)
    assert launched.calls == ["cross_entropy forward", "cross_entropy backward"]
    kernels.cross_entropy(x, TARGET.view(2, 3) % 8, reduction="none", dim=-1).detach_()  # torch refuses it of a view


def test_logprob_has_a_gradient_of_either_result(launched):
    x = torch.randn(6, 11)
    for which in (slice(None), 0, 1):
        call = lambda x, which=which: kernels.logprob(x, TARGET, temperature=2.0)[which]  # noqa: E731
        assert both(launched, call, x) == ["logprob forward", "logprob backward"]
        launched.calls.clear()


def test_masked_softmax_takes_masks_order_and_sink(launched):
    x, sink = torch.randn(2, 3, 4, 8), torch.randn(3)
    bias, seen = torch.randn(4, 8), torch.rand(2, 1, 4, 8) > 0.2
    for mask, causal in ((None, False), (None, True), (bias, False), (seen, True)):
        both(launched, lambda x, mask=mask, causal=causal: kernels.masked_softmax(x, mask=mask, causal=causal, scale=0.5), x)
        both(launched, lambda x, sink, mask=mask: kernels.masked_softmax(x, mask=mask, sink=sink), x, sink)
    count = launched.calls.count
    assert (count("masked_softmax forward"), count("masked_softmax backward")) == (8, 8)
    leaf = bias.requires_grad_()
    (of_bias,) = torch.autograd.grad(kernels.masked_softmax(x, mask=leaf, causal=True).square().sum(), leaf)
    expected = torch.softmax((x + leaf).masked_fill(torch.ones(4, 8, dtype=torch.bool).triu(5), -math.inf), -1).square().sum()
    torch.testing.assert_close(of_bias, *torch.autograd.grad(expected, leaf))


def test_masked_softmax_leaves_invariant_calls_and_keys_that_are_not_adjacent_to_python(launched):
    x = torch.randn(2, 3, 4, 8)
    assert kernels.masked_softmax(x, mask=torch.randn(4, 8)) is not None and launched.calls == ["masked_softmax forward"]
    kernels.masked_softmax(x, mask=torch.randn(8, 4).t())
    for call in (torch.ops.softbench.masked_softmax, lambda x, *given: torch.ops.softbench.masked_softmax_backward(x, x, *given[1:])):
        with pytest.raises(ValueError, match="invariant=True of masked_softmax"):
            call(x, None, None, 1.0, False, True)
    assert launched.calls == ["masked_softmax forward"]


def test_an_error_of_a_launch_in_python_is_raised(launched):
    def failing(*given):
        raise RuntimeError("no launch")

    x = torch.randn(2, 3, 4, 8, requires_grad=True)
    y = kernels.masked_softmax(x, causal=True)
    extension.entries.take_launches_of_scores(failing, failing)
    for call in (lambda: kernels.masked_softmax(x, causal=True), y.square().sum().backward):
        with pytest.raises(RuntimeError, match="no launch"):
            call()


def test_softmax_has_gradients_of_two_orders(launched):
    x = torch.randn(3, 5, 8)
    assert both(launched, lambda x: operator.softmax(x, -1), x) == ["softmax forward", "softmax backward"]
    assert both(launched, lambda x: operator.softmax(x, 1), x)[2:] == []  # rows that are not adjacent
    assert torch.autograd.gradgradcheck(lambda x: operator.softmax(x, -1), x[:1, :2].double().requires_grad_())
    y = kernels.softmax(x.half().requires_grad_(), -1)
    assert y.dtype is torch.float16  # not chosen


def test_results_may_be_float32(launched):
    extension.choose("softmax", 0, torch.bfloat16)
    x = torch.randn(3, 8)
    for given, dtype in ((x, torch.float32), (x.bfloat16(), torch.float32), (x.bfloat16(), torch.bfloat16)):
        calls = both(launched, lambda x, dtype=dtype: kernels.softmax(x, -1, dtype), given)
        assert calls == ["softmax forward", "softmax backward"]
        assert extension.entries.softmax(given, -1, dtype).dtype is dtype
        calls.clear()
    assert extension.entries.softmax(x.bfloat16(), -1, torch.float16) is None


def test_a_launch_that_asks_for_a_workspace_gets_that_of_its_stream(launched):
    captured, asked, memory = [0], [], torch.zeros(64, dtype=torch.uint8)

    @ctypes.CFUNCTYPE(ctypes.c_int, P, ctypes.POINTER(ctypes.c_int))
    def capturing(stream, status):
        asked.append(stream)
        status[0] = captured[0]
        return 0

    extension.load().softbench_streams(ctypes.cast(seventh_stream, P).value, ctypes.cast(capturing, P).value)
    x = torch.randn(3, 8)
    torch.testing.assert_close(kernels.softmax(x), torch.softmax(x, -1))
    assert launched.calls == ["softmax forward"] and not asked
    launched.needs = memory.data_ptr()
    for told, status, count in ((False, 0, 1), (True, 0, 2), (True, 1, 2)):  # a launch in a graph has one of its own
        captured[0] = status
        if told:
            extension.workspace(extension.SLOTS, 0, 7, memory)
        torch.testing.assert_close(kernels.softmax(x), torch.softmax(x, -1))
        assert len(launched.calls) == count
    assert set(asked) == {7}


def test_what_watches_a_gradient_sees_its_operator(launched):
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, given=(), options=None):
            names.append(str(operator))
            return operator(*given, **(options or {}))

    x, names = torch.randn(3, 8, requires_grad=True), []
    y, negative = kernels.softmax(x), torch.randn(3, 8, dtype=torch.complex64).conj().imag
    for dy in (torch.randn(3, 8), negative, torch.ones(()).expand(3, 8), torch.randn(8, 3).t()):
        (expected,) = torch.autograd.grad(torch.softmax(x, -1), x, dy)
        with Seen():
            (seen,) = torch.autograd.grad(y, x, dy, retain_graph=True)
        with torch.profiler.profile() as profile:
            torch.autograd.grad(y, x, dy, retain_graph=True)
        (found,) = torch.autograd.grad(y, x, dy, retain_graph=True)
        torch.testing.assert_close((seen, found), (expected, expected))
        assert "softbench.cuda_softmax_backward.default" in names
        assert "softbench::cuda_softmax_backward" in {one.key for one in profile.key_averages()}
        names.clear()
    assert launched.calls == ["softmax forward", *["softmax backward"] * 6]  # of rows whose elements are adjacent


@pytest.mark.parametrize("result", [None, torch.float32])
def test_any_first_call_tells_cpp_what_it_may_launch(monkeypatch, result):
    told = []
    monkeypatch.setattr(choice, "choose", lambda calls: choice.Choice("cuda", "built"))
    monkeypatch.setattr(extension, "load", lambda: None)
    monkeypatch.setattr(extension, "choose", lambda *given: told.append(given))
    calls = choice.Calls("softmax", torch.device("cuda", 3), torch.bfloat16, result)
    choice._choices.pop(calls, None)
    choice.choice(calls)
    choice._choices.pop(calls)
    assert told == [("softmax", 3, torch.bfloat16)]


def test_functions_are_entered_in_cpp_for_plain_tensors_only(launched):
    x = torch.randn(3, 8)
    assert torch.equal(extension.entries.softmax(x, -1, None), operator.softmax(x)) and launched.calls == ["softmax forward"] * 2
    kept = [
        (x, 0, None),
        (x, -1, torch.float64),
        (x, -1, 1),
        (x.half(), -1, None),
        (x.double(), -1, None),
        ([1.0], -1, None),
        (x, 1.0, None),
        (x,),
    ]
    assert [extension.entries.softmax(*given) for given in kept] == [None] * len(kept)

    class Mine(torch.Tensor):
        pass

    assert extension.entries.softmax(x.as_subclass(Mine), -1, None) is None
    with torch.overrides.TorchFunctionMode():
        assert extension.entries.softmax(x, -1, None) is None
    target = torch.zeros(3, dtype=torch.int64)
    assert extension.entries.cross_entropy(x, target.to("meta"), "none", -100, 0.0, 0.0, 0.0, 1.0, -1, None) is None
    assert extension.entries.cross_entropy(x, target, "none", -100, 0.0, 0.0, 0.0, 1.0, -1, torch.int64) is None
    for other in (torch.nested.as_nested_tensor([x, x[:2]]), x.to_sparse()):
        assert extension.entries.softmax(other, -1, None) is None
    parameter = torch.nn.Parameter(x)
    assert extension.entries.softmax(parameter, -1, None).requires_grad
    with torch.inference_mode():
        assert extension.entries.softmax(torch.randn(3, 8), -1, None).is_inference()
    launched.calls.clear()
    for ours in (kernels.softmax, lambda x: kernels.cross_entropy(x, target)):  # an incoming gradient with a tangent, which is not lost
        y = ours(parameter)
        with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError):
            torch.autograd.grad(y, parameter, torch.autograd.forward_ad.make_dual(torch.ones_like(y), torch.ones_like(y)))
    launched.calls.clear()
    pairs = (
        (kernels.softmax, lambda x: torch.softmax(x, -1)),
        (lambda x: kernels.cross_entropy(x, target), lambda x: torch.nn.functional.cross_entropy(x, target)),
    )
    for ours, theirs in pairs:  # in transforms Python makes the call, and torch's operators compute it
        torch.testing.assert_close(torch.func.jvp(ours, (x,), (x,)), torch.func.jvp(theirs, (x,), (x,)))
        torch.testing.assert_close(torch.func.jacrev(ours)(x), torch.func.jacrev(theirs)(x))
    assert not launched.calls
    assert kernels.cross_entropy(x, target, dtype=torch.float64).dtype is torch.float64 and launched.calls


def test_the_gradient_of_a_split_vocabulary_is_computed_without_python(launched):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        given = {"process_group": dist.group.WORLD, "shard": (0, 11)}
        for reduction in losses.REDUCTIONS:
            options = {"reduction": reduction, "label_smoothing": 0.1 if reduction == "sum" else 0.0, "z_loss": 0.01, "softcap": 5.0}
            x = torch.randn(6, 11, requires_grad=True)
            launched.calls.clear()
            mine, its = kernels.cross_entropy(x, TARGET, **given, **options), kernels.cross_entropy(x, TARGET, **options)
            assert launched.calls[0] == "cross_entropy forward" and launched.calls.count("cross_entropy forward") == 2 - bool(
                options["label_smoothing"]
            )
            assert mine.grad_fn.name() == its.grad_fn.name() == "SoftbenchCrossEntropyBackward"
            launched.calls.clear()
            gradients = [torch.autograd.grad(one.square().sum(), x)[0] for one in (mine, its)]
            torch.testing.assert_close(*gradients)
            assert launched.calls == ["cross_entropy backward"] * 2
        (dx,) = torch.autograd.grad(kernels.cross_entropy(x, TARGET, **given).square(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiable once"):
            torch.autograd.grad(dx.sum() + x.sum(), x)
        torch.testing.assert_close(kernels.cross_entropy(x.detach(), TARGET, **given), kernels.cross_entropy(x.detach(), TARGET))
        kernels.logprob(x, TARGET, **given)[0].detach_()  # torch refuses it of a view
    finally:
        dist.destroy_process_group()


def test_compilers_and_checkpoints_see_the_operators(launched):
    x = torch.randn(6, 11)

    def loss(x):
        return kernels.cross_entropy(x, TARGET)

    expected = torch.func.grad(lambda x: torch.nn.functional.cross_entropy(x, TARGET))(x)
    torch._dynamo.reset()
    given = x.clone().requires_grad_()
    torch.compile(loss, fullgraph=True, backend="aot_eager")(given).backward()
    torch.testing.assert_close(given.grad, expected)
    given = x.clone().requires_grad_()
    torch.utils.checkpoint.checkpoint(loss, given, use_reentrant=False).backward()
    torch.testing.assert_close(given.grad, expected)
    count = FlopCounterMode(display=False)
    with count, torch.profiler.profile() as profile:  # these see each operator, and a recomputation outside saves the same tensors
        made = torch.utils.checkpoint.checkpoint(loss, given, use_reentrant=False)
    assert count.get_total_flops() and "softbench::cross_entropy" in {one.key for one in profile.key_averages()}
    made.backward()
    torch.testing.assert_close(given.grad, 2 * expected)
    with pytest.raises(RuntimeError, match="second time"):
        made = loss(given)
        made.backward()
        made.backward()


def test_compiled_autograd_has_the_gradients_of_eager_forwards(launched):
    compiler = torch.compile(backend="aot_eager")
    x, target, scores, sink = torch.randn(6, 11), TARGET.clamp(min=0), torch.randn(2, 3, 4, 8), torch.randn(3)
    calls = (
        (lambda x: kernels.softmax(x).square().sum(), x),
        (lambda x: kernels.log_softmax(x.double()).square().sum(), x),  # not chosen
        (lambda x: kernels.cross_entropy(x.tanh(), target, reduction="none", label_smoothing=0.1, z_loss=0.01).square().sum(), x),
        (lambda x: sum(one.square().sum() for one in kernels.logprob(x, target)), x),
        (lambda x, sink: kernels.masked_softmax(x, sink=sink).square().sum(), scores, sink),
    )
    torch._dynamo.reset()
    for call, *inputs in calls:
        for _ in range(2):  # the second graph is cached
            given = [one.clone().requires_grad_() for one in inputs]
            expected = torch.autograd.grad(call(*given), given)
            loss = call(*given)
            with torch._dynamo.compiled_autograd._enable(compiler):
                loss.backward()
            for one, gradient in zip(given, expected, strict=True):
                torch.testing.assert_close(one.grad, gradient)
    launched.calls.clear()
    for scale in (0.5, 2.0):  # numbers are constants of a graph
        given = scores.clone().requires_grad_()
        loss = kernels.masked_softmax(given, causal=True, scale=scale).square().sum()
        (expected,) = torch.autograd.grad(loss, given, retain_graph=True)
        with torch._dynamo.compiled_autograd._enable(compiler):
            loss.backward()
        torch.testing.assert_close(given.grad, expected)
    assert launched.calls == ["masked_softmax forward", "masked_softmax backward", "masked_softmax backward"] * 2


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """An empty cache, and nothing loaded."""
    monkeypatch.setenv("SOFTBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(extension, "_loaded", None)
    return extension._load.__wrapped__


@pytest.mark.parametrize("calls", [False, True])
def test_operators_defined_later_stay_in_python_by_default(monkeypatch, calls):
    implemented = []
    monkeypatch.setattr(extension, "CALLS", calls)
    monkeypatch.setattr(extension, "_loaded", object())
    monkeypatch.setattr(extension, "_defined", [])
    monkeypatch.setattr(extension, "_implement", lambda library, functions: implemented.extend(functions))
    extension.implement("softmax")
    assert implemented == ["softmax"] * calls


def test_without_a_compiler_there_is_no_extension(monkeypatch, fresh, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(extension.shutil, "which", lambda name: None)
    assert fresh(True) is None
    assert "no g++ on PATH" in caplog.text


def test_a_compiler_that_fails_leaves_its_message(monkeypatch, fresh, caplog, tmp_path):
    caplog.set_level(logging.INFO)
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\n[ \"$1\" = --version ] || { echo 'error: no such header' >&2; exit 1; }\n")
    broken.chmod(0o755)
    monkeypatch.setattr(extension.shutil, "which", lambda name: str(broken))
    assert fresh(True) is None
    assert "no such header" in caplog.text


def test_a_library_is_built_once(monkeypatch, fresh):
    monkeypatch.setattr(extension, "_opened", lambda library: SimpleNamespace(library=library))
    runs = []

    def run(command):
        runs.append(command)
        extension.Path(command[-1]).touch()
        return ""

    monkeypatch.setattr(extension, "run_compiler", run)
    monkeypatch.setattr(extension.subprocess, "run", lambda *given, **options: SimpleNamespace(stdout="g++ 12"))
    monkeypatch.setattr(extension.shutil, "which", lambda name: "/usr/bin/g++")
    assert fresh(False) is None
    first, second, cached = fresh(True), fresh(True), fresh(False)
    assert first.library == second.library == cached.library
    assert first.library.is_file()
    assert len(runs) == 1
    monkeypatch.setattr(torch, "__version__", "0.0")
    assert fresh(True).library != first.library
