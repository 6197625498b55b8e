"""The rule that chooses the kernels of `softbench.kernels`, its cost, and that no call builds."""

import subprocess

import pytest
import torch
from softbench.kernels.automatic import choice, masked_softmax as scores, override, softmax
from softbench.kernels.automatic.choice import Calls, Choice, choose
from softbench.kernels.cuda import build
from softbench.kernels.triton import masked_softmax as of_triton
from timed import least_seconds
from torch._subclasses.fake_tensor import FakeTensorMode

from softbench import kernels
from softbench.kernels import which

GPU = torch.device("cuda", 0)
BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64
SHAPE = (2, 3, 4, 6)
OTHERS = ("cross_entropy", "logprob")
FUNCTIONS = {"softmax": torch.softmax, "log_softmax": torch.log_softmax}


@pytest.fixture(autouse=True)
def undecided(monkeypatch):
    """Decisions of other tests do not count here, nor the other way round."""
    monkeypatch.setattr(choice, "_choices", {})
    for function in (softmax._SOFTMAX, softmax._LOG_SOFTMAX):
        monkeypatch.setattr(function, "calls", {})


@pytest.fixture
def machine(monkeypatch):
    """`machine(cuda, triton)`: a GPU where these kernels cannot run for these reasons; empty if they can. `cuda` may be by library."""

    def has(cuda, triton):
        monkeypatch.setattr(choice, "without_cuda", lambda device, library: cuda.get(library, "") if isinstance(cuda, dict) else cuda)
        monkeypatch.setattr(choice, "without_triton", lambda: triton)

    return has


@pytest.mark.parametrize(
    ("cuda", "triton", "key", "chosen"),
    [
        ("", "", (GPU, BF16, None, True), "cuda"),
        ("", "", (GPU, BF16, FP32, True), "cuda"),
        ("not built", "", (GPU, FP32, None, True), "triton"),
        ("not built", "", (GPU, FP32, FP32, True), "triton"),
        ("not built", "", (GPU, BF16, FP32, True), "torch"),
        ("not built", "no compiler", (GPU, BF16, None, True), "torch"),
        ("", "", (GPU, BF16, FP32, False), "cuda"),
        ({"columns": "not built"}, "", (GPU, BF16, None, False), "triton"),
        ("", "", (GPU, BF16, None, False, True), "triton"),
        ("", "no compiler", (GPU, BF16, None, False, True), "cuda"),
        ("", "", (GPU, FP64, None, True), "torch"),
        ("", "", (GPU, FP32, BF16, True), "torch"),
        ("", "", (torch.device("cpu"), FP32, None, True), "torch"),
    ],
)
def test_the_rule_takes_the_fastest_that_works(machine, cuda, triton, key, chosen):
    machine(cuda, triton)
    found = choose(Calls("softmax", *key))
    assert found.kernels == chosen
    assert found.why
    if chosen != "cuda" and key[0] is GPU and cuda:
        assert "not built" in found.why


def test_a_missing_library_is_named_with_the_way_to_build(monkeypatch, tmp_path):
    monkeypatch.setenv("SOFTBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(choice, "nvcc", lambda: None)
    assert choice.without_cuda(GPU, "softmax") == "the CUDA kernels need nvcc"
    compiler = tmp_path / "nvcc"
    compiler.write_text("#!/bin/sh\necho release 13.0\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(choice, "nvcc", lambda: str(compiler))
    monkeypatch.setattr(build, "nvcc", lambda: str(compiler))
    assert choice.without_cuda(GPU, "softmax") == "the CUDA kernels are not built for sm_90a: softbench.kernels.build()"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nvcc"]  # the question builds nothing
    library = tmp_path / build._key(str(compiler), "sm_90a", "softmax") / build.LIBRARY
    library.parent.mkdir()
    library.touch()
    assert (choice.without_cuda(GPU, "softmax"), build.built("sm_90a", "log_softmax")) == ("", None)


def test_triton_needs_compiler_and_headers_and_no_interpreter(monkeypatch, tmp_path):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(choice.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(choice.sysconfig, "get_path", lambda name: str(tmp_path))
    assert choice.without_triton() == "Triton needs the headers of Python"
    (tmp_path / "Python.h").touch()
    assert choice.without_triton() == ""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert choice.without_triton() == "TRITON_INTERPRET=1 is set"
    monkeypatch.setattr(choice.shutil, "which", lambda name: None)
    assert choice.without_triton() == "Triton needs a C compiler"


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("chosen", ["cuda", "triton", "torch"])
def test_each_choice_computes_the_function_and_its_gradient(monkeypatch, function, chosen):
    """On the CPU the operators of all kernels are torch's functions, so that the ways to them can be called."""
    monkeypatch.setattr(choice, "choose", lambda calls: Choice(chosen, "a test"))
    x = torch.randn(3, 5, requires_grad=True)
    ours, theirs = (call(x, -1) for call in (getattr(kernels, function), FUNCTIONS[function]))
    assert torch.equal(ours, theirs)
    assert torch.equal(*(torch.autograd.grad(y.square().sum(), x)[0] for y in (ours, theirs)))
    assert kernels.which(x, function=function) == Choice(chosen, "a test")


@pytest.mark.parametrize("dim", [0, 1, -2])
def test_torch_is_called_with_dim_and_dtype(dim):
    x = torch.randn(3, 4, 5).half()
    assert torch.equal(kernels.softmax(x.transpose(0, 1), dim), torch.softmax(x.transpose(0, 1), dim))
    assert torch.equal(kernels.softmax(x, dim, torch.float32), torch.softmax(x, dim, torch.float32))
    with pytest.raises(IndexError, match="out of range"):
        kernels.softmax(x, 3)


def test_autocast_changes_nothing():
    x = torch.randn(3, 5).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert kernels.softmax(x).dtype is torch.bfloat16


@pytest.mark.parametrize("chosen", ["cuda", "torch"])
def test_torch_compile_traces_the_first_call(monkeypatch, chosen):
    """The decision starts processes, which a compiler cannot trace."""

    def decide(calls):
        subprocess.run(["true"], check=True)
        return Choice(chosen, "a test")

    monkeypatch.setattr(choice, "choose", decide)
    torch.compiler.reset()
    x = torch.randn(3, 5)
    assert torch.equal(torch.compile(kernels.softmax, fullgraph=True, backend="eager")(x), torch.softmax(x, -1))


def test_a_class_of_calls_is_decided_once(monkeypatch):
    asked = []
    monkeypatch.setattr(choice, "choose", lambda calls: asked.append((calls.function, *calls[2:5])) or Choice("torch", "a test"))
    for x in (torch.randn(3, 5), torch.randn(4, 6), torch.randn(2, 3, 4)):
        kernels.softmax(x)
        kernels.softmax(x, x.dim() - 1)
        kernels.which(x)
    kernels.softmax(torch.randn(3, 5), 0)
    kernels.log_softmax(torch.randn(3, 5))
    assert asked == [("softmax", FP32, None, True), ("softmax", FP32, None, False), ("log_softmax", FP32, None, True)]


def test_the_choice_takes_less_than_a_microsecond():
    x, call = torch.randn(3, 5), softmax._SOFTMAX.call
    assert least_seconds(lambda: call(x, -1, None)) < 1e-6


def test_a_build_is_explicit_and_ends_earlier_decisions(monkeypatch):
    built = []
    monkeypatch.setattr(build, "build", lambda architecture, function: built.append((architecture, function)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    kernels.softmax(torch.randn(3, 5))
    monkeypatch.setitem(override.OVERRIDES[0].launches, "calls", None)
    kernels.build()
    names = ("softmax", "log_softmax", "cross_entropy", "logprob", "columns")
    assert sorted(built) == sorted(("sm_90a", name) for name in names)
    assert not softmax._SOFTMAX.calls and not override.OVERRIDES[0].launches
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="no CUDA GPU here, so there is nothing to build"):
        kernels.build()


def test_an_unknown_function_is_refused():
    with pytest.raises(ValueError, match="must be one of softmax, log_softmax, cross_entropy, logprob, masked_softmax"):
        kernels.which(torch.zeros(1), function="sigmoid")


@pytest.mark.parametrize("function", OTHERS)
@pytest.mark.parametrize(
    ("cuda", "triton", "expected"),
    [
        ("", "", "cuda: the CUDA kernels are built"),
        ("not built", "", "triton: not built"),
        ("not built", "no compiler", "torch: not built; no compiler"),
    ],
)
def test_which_says_what_runs_a_function(machine, function, cuda, triton, expected):
    machine({function: cuda}, triton)
    with FakeTensorMode():
        x = torch.empty(SHAPE, device="cuda:0", dtype=BF16)
        assert str(which(x, function=function)) == expected
        assert which(x.double(), function=function).kernels == "torch" and "float64" in which(x.double(), function=function).why


def test_other_devices_are_named():
    assert str(which(torch.zeros(2, 5), function="logprob")) == "torch: the logits are on cpu, and our kernels run on CUDA GPUs"
    assert str(which(torch.zeros(SHAPE), function="masked_softmax")) == "torch: the scores are on cpu, and our kernels run on CUDA GPUs"
    assert which(torch.zeros(2, 5)).kernels == "torch"  # softmax


def test_scores_take_triton_alone(machine):
    with FakeTensorMode():
        x = torch.empty(SHAPE, device="cuda:0")
        machine({}, "")
        assert str(which(x, function="masked_softmax")) == "triton: masked_softmax has Triton kernels only"
        choice._choices.clear()
        machine({}, "no compiler")
        assert str(which(x, function="masked_softmax")) == "torch: masked_softmax has Triton kernels only; no compiler"


def test_which_says_of_long_scores_what_a_mask_changes(machine):
    machine({}, "")
    with FakeTensorMode():
        short, long, number = (torch.empty(shape, device="cuda:0") for shape in ((2, 4, 8, 16384), (8, 16385), ()))
        assert "torch" not in which(short, function="masked_softmax").why
        assert which(number, function="masked_softmax").kernels == "triton"
        found = which(long, function="masked_softmax")
    with_mask = "with a mask, causal order or sink, torch computes rows of more than 16384 keys"
    assert found == ("triton", f"masked_softmax has Triton kernels only; {with_mask}")


def test_scores_are_chosen_by_the_dtype_they_are_converted_to(machine):
    machine({}, "")
    with FakeTensorMode():
        x = torch.empty(SHAPE, device="cuda:0", dtype=BF16)
        assert which(x, dtype=FP64, function="masked_softmax").kernels == "torch"
        assert which(x.double(), dtype=FP32, function="masked_softmax").kernels == "triton"
        assert which(x.double(), dtype=FP32, function="logprob").kernels == "torch"  # it has no such argument


@pytest.mark.parametrize("function", OTHERS)
def test_amds_gpus_are_for_torch(machine, monkeypatch, function):
    machine({function: "of NVIDIA only"}, "")
    monkeypatch.setattr(torch.version, "hip", "7.0")
    with FakeTensorMode():
        found = which(torch.empty(SHAPE, device="cuda:0"), function=function)
    assert found == ("torch", "of NVIDIA only; the Triton kernels contain PTX")


@pytest.mark.parametrize(
    ("shape", "dtype", "scale", "special", "bias", "expected"),
    [
        (SHAPE, BF16, 1.0, True, None, "triton"),
        (SHAPE, BF16, 1.0, True, BF16, "triton"),
        (SHAPE, BF16, 1.0, True, FP32, "triton"),
        (SHAPE, FP32, 1.0, True, BF16, "triton"),
        (SHAPE, FP32, 1.0, True, FP64, "torch"),
        (SHAPE, FP64, 1.0, True, None, "torch"),
        (SHAPE, FP32, 0.0, False, None, "torch"),
        (SHAPE, FP32, -2.0, True, None, "torch"),
        ((1, 1, 1, 16384), FP32, 1.0, True, None, "triton"),
        ((1, 1, 1, 16385), FP32, 1.0, True, None, "torch"),
        ((1, 1, 1, 16385), FP32, 1.0, False, None, "triton"),
        ((1 << 16, 1, 1 << 15, 1), BF16, 1.0, True, None, "torch"),
        ((0, 3, 4, 5), BF16, 1.0, True, None, "torch"),
        ((2, 3, 4, 0), BF16, 1.0, True, None, "torch"),
    ],
)
def test_a_call_takes_the_kernels_that_can_run_it(machine, shape, dtype, scale, special, bias, expected):
    machine({}, "")
    with FakeTensorMode():
        found = scores._kernels(torch.empty(shape, dtype=dtype, device="cuda:0"), scale, special, bias)
    assert found is {"triton": of_triton.masked_softmax, "torch": None}[expected]
