"""Which kernels run losses and scores of `softbench.kernels`: by device, dtype and what can run there, and by the arguments of a call."""

import pytest
import torch
from softbench.kernels.common import choices, scores
from softbench.kernels.cuda import masked_softmax as of_cuda
from softbench.kernels.triton import masked_softmax as of_triton
from torch._subclasses.fake_tensor import FakeTensorMode

from softbench.kernels import which

SHAPE = (2, 3, 4, 6)
BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64


@pytest.fixture
def machine(monkeypatch):
    """`machine(cuda, triton)`: a GPU where these kernels cannot run for these reasons; empty if they can."""

    def has(cuda, triton):
        monkeypatch.setattr(choices, "_choices", {})
        monkeypatch.setattr(choices, "without_cuda", lambda device, function: cuda.get(function, ""))
        monkeypatch.setattr(choices, "without_triton", lambda: triton)

    return has


@pytest.mark.parametrize("function", choices.NAMES)
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
    with pytest.raises(ValueError, match="must be one of softmax, log_softmax, cross_entropy, logprob, masked_softmax"):
        which(torch.zeros(2, 5), function="gelu")


def test_scores_need_the_library_of_scaled_softmax_too(machine):
    machine({"scaled_softmax": "not built either"}, "")
    with FakeTensorMode():
        x = torch.empty(SHAPE, device="cuda:0")
        assert which(x, function="masked_softmax") == ("triton", "not built either")
        assert which(x, function="logprob").kernels == "cuda"


def test_scores_are_chosen_by_the_dtype_they_are_converted_to(machine):
    machine({}, "")
    with FakeTensorMode():
        x = torch.empty(SHAPE, device="cuda:0", dtype=BF16)
        assert which(x, dtype=FP64, function="masked_softmax").kernels == "torch"
        assert which(x.double(), dtype=FP32, function="masked_softmax").kernels == "cuda"
        assert which(x.double(), dtype=FP32, function="logprob").kernels == "torch"  # it has no such argument


@pytest.mark.parametrize("function", choices.NAMES)
def test_amds_gpus_are_for_torch(machine, monkeypatch, function):
    machine({function: "of NVIDIA only"}, "")
    monkeypatch.setattr(torch.version, "hip", "7.0")
    with FakeTensorMode():
        found = which(torch.empty(SHAPE, device="cuda:0"), function=function)
    assert found == ("torch", "of NVIDIA only; the Triton kernels contain PTX")


@pytest.mark.parametrize(
    ("shape", "dtype", "scale", "special", "bias", "expected"),
    [
        (SHAPE, BF16, 1.0, True, None, "cuda"),
        (SHAPE, BF16, 1.0, True, BF16, "cuda"),
        (SHAPE, BF16, 1.0, True, FP32, "triton"),
        (SHAPE, FP32, 1.0, True, BF16, "cuda"),
        (SHAPE, FP32, 1.0, True, FP64, "torch"),
        (SHAPE, FP64, 1.0, True, None, "torch"),
        (SHAPE, FP32, 0.0, False, None, "torch"),
        (SHAPE, FP32, -2.0, True, None, "torch"),
        ((1, 1, 1, 16384), FP32, 1.0, True, None, "cuda"),
        ((1, 1, 1, 16385), FP32, 1.0, True, None, "torch"),
        ((1, 1, 1, 16385), FP32, 1.0, False, None, "cuda"),
        ((1 << 16, 1, 1 << 15, 1), BF16, 1.0, True, None, "torch"),
        ((0, 3, 4, 5), BF16, 1.0, True, None, "torch"),
        ((2, 3, 4, 0), BF16, 1.0, True, None, "torch"),
    ],
)
def test_a_call_takes_the_kernels_that_can_run_it(machine, shape, dtype, scale, special, bias, expected):
    machine({}, "")
    with FakeTensorMode():
        found = scores._kernels(torch.empty(shape, dtype=dtype, device="cuda:0"), scale, special, bias)
    assert found is {"cuda": of_cuda.masked_softmax, "triton": of_triton.masked_softmax, "torch": None}[expected]
