"""The yardstick on a GPU: each step is one launch, and leaves the right bits."""

import pytest
import torch
from passes import OPERATIONS, inputs

from softbench.backends import copy
from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops import registry, yardstick
from softbench.ops.registry import operation

pytestmark = pytest.mark.gpu

SHAPES = ((4096, 1024), (1, 4194304), (524288, 8), (333, 50257), (1, 1), (7, 1001))


@pytest.fixture(autouse=True)
def added(monkeypatch):
    monkeypatch.setattr(registry, "_added", {name: (op, "file.py") for name, op in OPERATIONS.items()})


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_yardstick_moves_the_bytes_of_unlike_tensors(name, dtype):
    for M, N in SHAPES:
        case = Case(M, N, dtype, Direction.FORWARD, "cuda", name)
        given = inputs(OPERATIONS[name], case)
        call = copy.backend.prepare(case)
        call(*given)
        for tensor in given:
            tensor.copy_(tensor.flip(0))
        results = call(*given)
        found = yardstick.check(case, given, results if isinstance(results, tuple) else (results,))
        assert found.grade is Grade.YARDSTICK, (M, N)


@pytest.mark.parametrize("op", ["softmax", "softmax(scale=row,out_dtype=fp32)", "log_softmax"])
@pytest.mark.parametrize("direction", operation("softmax").directions)
def test_the_yardstick_of_softmax_leaves_every_bit(op, direction):
    for M, N in SHAPES[:4]:
        case = Case(M, N, "bf16", direction, "cuda", op)
        given = registry.numerics(op).make(case, 0, torch.device("cuda"))
        results = copy.backend.prepare(case)(*given)
        assert yardstick.check(case, given, results if isinstance(results, tuple) else (results,)).grade is Grade.YARDSTICK


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_step_is_one_launch(name):
    case = Case(512, 1024, "bf16", Direction.FORWARD, "cuda", name)
    given, call = inputs(OPERATIONS[name], case), copy.backend.prepare(case)
    call(*given)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call(*given)
        torch.cuda.synchronize()
    on_device = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    launched = [name for name in on_device if not name.endswith("Sync") and not name.startswith("Activity")]
    assert len(launched) == len(yardstick.steps(OPERATIONS[name], case)), launched


def test_reads_of_an_odd_size_take_their_time():
    """An odd number of 16-bit elements is read as such words; a compiler must not drop them."""
    case = Case(16383, 32767, "bf16", Direction.FORWARD, "cuda", "loss")
    given, call = inputs(OPERATIONS["loss"], case), copy.backend.prepare(case)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        call(*given)
    begin.record()
    for _ in range(10):
        call(*given)
    end.record()
    end.synchronize()
    seconds = begin.elapsed_time(end) / 10 / 1e3
    assert OPERATIONS["loss"].bytes_moved(case) / seconds < 9e12  # more than the peak of any GPU's memory
