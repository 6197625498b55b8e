"""Attention scores of the CUDA kernels without a GPU: what a call passes to the library, and which arguments are refused."""

import ctypes

import pytest
import torch
from softbench.kernels.cuda import build, masked_softmax as kernels

X = torch.zeros(2, 3, 4, 8, dtype=torch.bfloat16)


@pytest.fixture
def calls(monkeypatch):
    """The launches, with arguments that are checked against the types of the library."""
    made = []

    def launch(function, which, arguments, x, plan):
        types = build._arguments(function)[which]
        values = [kind(value).value for kind, value in zip(types, (*arguments, 0, 0, None, 0, None, None), strict=True)]
        made.append((which, values))

    monkeypatch.setattr(kernels, "launch_function", launch)
    monkeypatch.setattr(kernels.masked_softmax.softmax, "device_types", ("cpu",))
    return made


def test_sizes_strides_and_kinds_come_where_the_library_expects_them(calls):
    sink, share = torch.zeros(3, dtype=torch.float16), torch.zeros(2, 3, 4)
    keep = torch.ones(2, 1, 4, 8, dtype=torch.bool)
    kernels.masked_softmax.forward(X, scale=0.5, mask=keep, causal=True, sink=sink)
    kernels.masked_softmax.forward(X, mask=torch.zeros(3, 4, 8, dtype=torch.bfloat16))
    kernels.masked_softmax.forward(X[..., :3], causal=True)
    kernels.masked_softmax.backward(X, X, share, scale=0.5, causal=True)
    kernels.masked_softmax.backward(X, X, share)
    (_, masked), (_, biased), (_, causal), (_, backward), (_, whole) = calls
    assert masked[5:16] == [0.5, 2, 32, 0, 8, 5, 2, 3, 4, 24, 8]
    assert biased[5:16] == [1.0, 1, 0, 32, 8, 8, 2, 3, 4, 24, 8]
    assert causal[1:3] == [None, None] and causal[5:16] == [1.0, 0, 0, 0, 0, 1, 2, 3, 4, 24, 3]
    assert backward[5:12] == [0.5, 5, 2, 3, 4, 24, 8] and whole[6] == 8
    assert [name for name, _ in calls] == ["forward"] * 3 + ["backward"] * 2


def test_a_view_within_a_vector_is_copied(calls):
    view = torch.zeros(193, dtype=torch.bfloat16)[1:].view(2, 3, 4, 8)
    kernels.masked_softmax.forward(view, causal=True)
    assert calls[0][1][0] % kernels.ALIGNMENT == 0


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"mask": torch.zeros(8)}, TypeError, r"the bias is torch.float32 and x is torch.bfloat16; .* mask.to\(x.dtype\)"),
        ({"mask": torch.zeros(8, dtype=torch.int32)}, TypeError, "mask is torch.int32 on cpu; give a bool"),
        ({"mask": torch.zeros(8, requires_grad=True)}, NotImplementedError, "gives the mask no gradient"),
        ({"sink": torch.zeros(4)}, ValueError, r"sink is torch.float32 of shape \(4,\) on cpu; give a number for each of 3 heads"),
        (
            {"mask": torch.ones(4, 7, dtype=torch.bool)},
            ValueError,
            r"mask is \(4, 7\); it must broadcast to the shape of x, \(2, 3, 4, 8\)",
        ),
        ({"mask": torch.ones(1, 1, 1, 1, 8, dtype=torch.bool)}, ValueError, "it must broadcast"),
        ({"scale": 0.0, "causal": True}, ValueError, "scale is 0.0; it must be positive and finite"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(calls, given, error, match):
    with pytest.raises(error, match=match):
        kernels.masked_softmax(X, **given)
    assert calls == []


@pytest.mark.parametrize(
    ("dy", "share", "match"),
    [
        (X[:1], None, r"dy is \(1, 3, 4, 8\) .* they must agree"),
        (X.double(), None, "dy is .* torch.float64"),
        (X, torch.zeros(1), r"share is \(1,\) torch.float32 on cpu; it must be \(2, 3, 4\) float32 on cpu"),
        (X, torch.zeros(2, 3, 4, dtype=torch.float64), "share is .* torch.float64"),
    ],
)
def test_a_backward_of_other_tensors_is_refused(calls, dy, share, match):
    with pytest.raises(TypeError, match=match):
        kernels.masked_softmax.backward(dy, X, share, causal=True)
    assert calls == []


def test_longer_rows_and_other_tensors_are_refused(calls):
    with pytest.raises(ValueError, match=r"at most 16384 columns; this is \(1, 1, 1, 16385\)"):
        kernels.masked_softmax(torch.zeros(1, 1, 1, 16385), causal=True)
    with pytest.raises(ValueError, match=r"takes \(B, H, S, N\) .* this is \(2, 3\)"):
        kernels.masked_softmax(torch.zeros(2, 3), causal=True)
    with pytest.raises(TypeError, match=r"this is torch\.float64 on cpu"):
        kernels.masked_softmax(X.double(), causal=True)
    assert kernels.masked_softmax(X[:0], causal=True).shape == (0, 3, 4, 8)
    assert calls == []


def test_signatures_of_the_library_are_those_of_the_source():
    kinds = {"int64_t": ctypes.c_int64, "int": ctypes.c_int, "float": ctypes.c_float}
    text = build.source("masked_softmax").read_text()
    for name, types in build._arguments("masked_softmax").items():
        parameters = text.split(f"softbench_{name}(", 1)[1].split(")", 1)[0].split(",")
        declared = [ctypes.c_void_p if "*" in word or "cudaStream_t" in word else kinds[word.split()[0]] for word in parameters]
        assert declared == types, name
