"""Losses by the CUDA kernels: arguments, operators, and the kernels on a simulated GPU."""

import subprocess

import pytest
import torch
from simulated import compiled, needs_nvcc
from softbench.kernels.cuda import build, launch, losses
from torch._subclasses.fake_tensor import FakeTensorMode

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
    options = {"ignore_index": 7, "label_smoothing": 0.25, "z_loss": 0.5, "softcap": 30.0, "logit_scale": 2.0}
    wide = torch.ones(3, 9)[:, :5]
    losses.cross_entropy_forward(wide, TARGET, **options)
    losses.cross_entropy_backward(X, TARGET, rows, rows, out=wide, classes=8, **options)
    losses.cross_entropy_fused(wide, TARGET, ignore_index=7, z_loss=0.5, lse=rows)
    (_, forward), (_, backward), (_, fused) = libraries["cross_entropy"].calls
    assert forward[5:10] == backward[7:12] == [7, 0.25, 0.5, 30.0, 2.0]
    assert (forward[10:15], backward[12:20]) == ([9, 3, 5, 0, 0], [5, 9, 1, 8, 3, 5, 0, 0])
    assert fused[3] == rows.data_ptr() and fused[5:13] == [7, 0.5, 9, 5, 3, 5, 0, 0]
    losses.logprob_forward(wide.bfloat16(), TARGET, ignore_index=7, logit_scale=2.0)
    losses.logprob_backward(X, TARGET, rows, rows, rows, rows, out=wide, ignore_index=7, logit_scale=2.0)
    assert [numbers[6:13] for name, numbers in libraries["logprob"].calls if name == "forward"] == [[7, 2.0, 5, 3, 5, 2, 2]]
    assert [numbers[8:18] for name, numbers in libraries["logprob"].calls if name == "backward"] == [[7, 2.0, 5, 9, 1, 1, 3, 5, 0, 0]]


@pytest.mark.parametrize("options", [{"label_smoothing": 0.1}, {"softcap": 30.0}, {"logit_scale": 2.0}])
def test_smoothing_softcap_and_scale_take_two_launches(libraries, options):
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
    tensors = losses.SCHEMAS[name].count("Tensor ")
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
    losses._kernel("cross_entropy_backward")(1, 2, 3, 4, 5, 0.5, 0.25, 30.0)
    assert given == [((1, 2, 3, 4), {"ignore_index": 5, "label_smoothing": 0.5, "z_loss": 0.25, "softcap": 30.0})]


LENGTHS = (1, 3, 7, 8, 9, 17, 33, 64, 127, 255, 257, 512, 1000, 2047, 5001)
"""About the limits of vectors, CTAs and loops."""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("losses"), "simulated_losses.cpp", "simulated")


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("lengths", [LENGTHS[:6], LENGTHS[6:12], LENGTHS[12:], (1000,)], ids=["short", "medium", "long", "one"])
def test_loss_kernels_agree_with_float64_on_a_simulated_gpu(program, lengths):
    done = subprocess.run([str(program), *map(str, lengths)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.split()[0]) > 60 * len(lengths)
