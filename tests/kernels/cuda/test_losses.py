"""The losses of the CUDA kernels without a GPU: what a call passes to the library, and which arguments are refused."""

import ctypes

import pytest
import torch
from softbench.kernels.cuda import build, launch, losses

X, TARGET = torch.ones(3, 5), torch.zeros(3, dtype=torch.int64)


class Library:
    """Takes the place of a built library. It checks each call against the types of the real one, and answers with `code`."""

    def __init__(self, function):
        self.calls, self.code = [], 0
        for name, types in build._arguments(function).items():
            setattr(self, f"softbench_{name}", self.answering(name, types))

    def answering(self, name, types):
        def answer(*arguments):
            assert len(arguments) == len(types)
            values = [kind(value).value for kind, value in zip(types, arguments, strict=True)]
            self.calls.append((name, values))
            return self.code if name == "fused" else 0

        return answer


@pytest.fixture
def libraries(monkeypatch):
    """The libraries of both functions; the arguments of calls are not checked to be on a GPU."""
    made = {function: Library(function) for function in build.LOSSES}
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: None, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    monkeypatch.setattr(launch, "_library", lambda function, index: made[function])
    monkeypatch.setattr(losses, "logits_and_targets", lambda x, target: (x, target))
    return made


def test_shapes_strides_and_options_come_where_the_library_expects_them(libraries):
    rows = torch.ones(3)
    options = {"ignore_index": 7, "label_smoothing": 0.25, "z_loss": 0.5, "softcap": 30.0}
    wide = torch.ones(3, 9)[:, :5]
    losses.cross_entropy_forward(wide, TARGET, **options)
    losses.cross_entropy_backward(X, TARGET, rows, rows, out=wide, **options)
    losses.cross_entropy_fused(wide, TARGET, ignore_index=7, z_loss=0.5)
    (_, forward), (_, backward), (_, fused) = libraries["cross_entropy"].calls
    assert forward[5:9] == backward[6:10] == [7, 0.25, 0.5, 30.0]
    assert (forward[9:14], backward[10:16]) == ([9, 3, 5, 0, 0], [5, 9, 3, 5, 0, 0])
    assert fused[4:12] == [7, 0.5, 9, 5, 3, 5, 0, 0]
    losses.logprob_forward(wide.bfloat16(), TARGET)
    losses.logprob_backward(X, TARGET, rows, rows, rows, rows, out=wide)
    assert [numbers[5:10] for name, numbers in libraries["logprob"].calls if name == "forward"] == [[5, 3, 5, 2, 2]]
    assert [numbers[7:13] for name, numbers in libraries["logprob"].calls if name == "backward"] == [[5, 9, 3, 5, 0, 0]]


@pytest.mark.parametrize("options", [{"label_smoothing": 0.1}, {"softcap": 30.0}])
def test_smoothing_and_softcap_take_two_launches(libraries, options):
    losses.cross_entropy_fused(X, TARGET, **options)
    (first, forward), (second, backward) = libraries["cross_entropy"].calls
    assert (first, second) == ("forward", "backward")
    assert forward[3] is None and forward[4] == backward[3] and backward[2] is None and backward[4] is None


def test_rows_that_fused_refuses_take_two_launches(libraries):
    libraries["cross_entropy"].code = losses.NOT_SUPPORTED
    losses.cross_entropy_fused(X, TARGET, out=X)
    assert [name for name, _ in libraries["cross_entropy"].calls] == ["fused", "forward", "backward"]


def test_another_error_of_the_library_is_raised(libraries):
    libraries["cross_entropy"].code = 1
    libraries["cross_entropy"].softbench_error = lambda code: b"invalid"
    with pytest.raises(RuntimeError, match=r"on \(3, 5\): invalid"):
        losses.cross_entropy_fused(X, TARGET)


def test_no_rows_are_no_launch(libraries):
    loss, dx = losses.cross_entropy_fused(X[:0], TARGET[:0])
    assert (loss.shape, dx.shape, libraries["cross_entropy"].calls) == ((0,), (0, 5), [])


def test_arguments_that_do_not_fit_are_refused():
    with pytest.raises(TypeError, match="on cpu; the kernels take float32, float16 and bfloat16 on cuda"):
        losses.logprob_forward(X, TARGET)
    with pytest.raises(ValueError, match=r"x is \(3, 0\); it must be \(M, N\)"):
        losses.logprob_forward(X[:, :0], TARGET)
    with pytest.raises(TypeError, match=r"out is \(5, 3\) torch.float32 on cpu with strides \(1, 5\); it must be \(3, 5\)"):
        losses._gradient(X, X.T)


def test_signatures_of_the_library_are_those_of_the_source():
    kinds = {"int64_t": ctypes.c_int64, "int": ctypes.c_int, "float": ctypes.c_float}
    for function in build.LOSSES:
        text = build.source(function).read_text()
        for name, types in build._arguments(function).items():
            parameters = text.split(f"softbench_{name}(", 1)[1].split(")", 1)[0].split(",")
            declared = [ctypes.c_void_p if "*" in word or "cudaStream_t" in word else kinds[word.split()[0]] for word in parameters]
            assert declared == types, (function, name)
