"""The Triton operators on a GPU: eager, differentiated, on any stream and device, and in their backends."""

import csv
from functools import partial

import pytest
import torch
from operators import (
    EVERY_TEST,
    LAYOUTS,
    LOG_PAIRS,
    LONG,
    OF_FUNCTION,
    PAIRS,
    SHAPES_AND_LONG,
    TOLERANCE,
    both,
    close,
    close_gradient,
    each,
    randn,
)
from softbench.kernels.common import operator
from softbench.kernels.triton import dispatch, softmax
from torch.library import opcheck

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.usefixtures("fresh_compiler")]


@both
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_opcheck_passes_on_any_strides(pair, layout, dtype):
    forward, backward = pair
    x = LAYOUTS[layout](dtype)
    opcheck(forward, (x, 1), test_utils=EVERY_TEST)
    opcheck(backward, (x, torch.softmax(x, 1), 1), test_utils=EVERY_TEST)


@each
def test_gradients_of_both_orders_are_right_beyond_a_tile(name):
    forward, _ = OF_FUNCTION[name]["triton_op"]
    x = (randn(2, LONG, dtype=torch.float64) * 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: forward(x, -1), (x,), fast_mode=True, atol=1e-9)
    assert torch.autograd.gradgradcheck(lambda x: forward(x, -1), (x,), fast_mode=True, atol=1e-9)


@pytest.mark.parametrize("dtype", operator.DTYPES)
def test_log_softmax_is_right_in_fresh_contiguous_memory(dtype):
    for x, dim in [
        *((randn(*shape, dtype=dtype), dim) for shape, dim in SHAPES_AND_LONG),
        *((make(dtype), 0) for make in LAYOUTS.values()),
    ]:
        for forward, backward in LOG_PAIRS.values():
            y = forward(x, dim)
            expected = torch.log_softmax(x.double(), dim)
            close(y, expected, dtype)
            assert (y.dtype, y.stride()) == (dtype, torch.log_softmax(x, dim).stride())
            dy = torch.randn_like(x)
            slope = dy.double() - y.double().exp() * dy.double().sum(dim, keepdim=True)
            torch.testing.assert_close(backward(dy, y, dim).double(), slope, rtol=TOLERANCE[dtype], atol=100 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", operator.DTYPES)
def test_kernels_run_and_are_right_in_fresh_contiguous_memory(dtype, monkeypatch):
    launches = []

    def counted(launch, *given, **options):
        done = launch(*given, **options)
        if done is not False:  # the launcher of columns leaves the others to copies
            launches.append(given)
        return done

    for name in ("launch_forward", "launch_backward", "columns"):
        monkeypatch.setattr(dispatch.softmax, name, partial(counted, getattr(dispatch.softmax, name)))
    cases = [(randn(*shape, dtype=dtype), dim) for shape, dim in SHAPES_AND_LONG]
    cases += [(make(dtype), dim) for make in LAYOUTS.values() for dim in (0, 1, -1)]
    for x, dim in cases:
        for forward, backward in PAIRS.values():
            launches.clear()
            y = forward(x, dim)
            dy = torch.randn_like(x)
            dx = backward(dy, y, dim)
            assert len(launches) == (2 if x.numel() else 0)
            close(y, torch.softmax(x.double(), dim), dtype)
            close_gradient(dx, dy, y, dim)
            for out in (y, dx):
                assert (out.dtype, out.shape, out.stride()) == (dtype, x.shape, torch.softmax(x, dim).stride())
            assert not x.numel() or len({tensor.untyped_storage().data_ptr() for tensor in (x, dy, y, dx)}) == 4


def test_more_than_2_31_elements_are_right():
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GiB of device memory")
    x = torch.randn(2**15 + 1, 2**16, device="cuda", dtype=torch.bfloat16)
    for function in (softmax, torch.compile(softmax, fullgraph=True, dynamic=False)):
        y = function(x)
        close(y[-1], torch.softmax(x[-1].double(), -1), torch.bfloat16)
        del y


@pytest.mark.parametrize("backend", ["triton-compiled", "triton-op", "triton-custom-op", "triton-aoti"])
def test_backends_are_right_and_measured_in_every_direction(cli, backend):
    arguments = ("--M", "512", "--N", "781,20000", "--dtype", "bf16", "--direction", "forward,backward,both", "--timeout", "build=300")
    done = cli("run", "--backends", backend, *arguments, "--quick", timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    with (cli.folder / "results" / "latest.csv").open() as file:
        found = {(row["backend"], row["N"], row["direction"]): row for row in csv.DictReader(file)}
    for (name, N, direction), row in found.items():
        if name == "triton-aoti" and direction == "both":
            assert (row["status"], row["reason"]) == ("skipped", "a package holds no autograd")
            continue
        assert row["status"] == "ok", (name, N, direction, row["reason"])
        assert row["timer"] == "queued"
        if name != "copy" and direction != "both":
            assert row["class"] == "pass", (name, N, direction)
    built = {row["build_cache"] for (name, *_), row in found.items() if (name, row["status"]) == ("triton-aoti", "ok")}
    assert built <= {"cold"}
