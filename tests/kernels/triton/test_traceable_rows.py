"""The kernels that compilers trace, under the interpreter: rows at any address."""

import pytest

LAUNCHES = """
import torch
from softbench.kernels.triton import traceable, traceable_rows as kernels
from softbench.kernels.triton.interpreter import round_to_nearest
torch.manual_seed(0)
UNIT = {torch.float32: 1e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}
FORWARD = {"rows": kernels.forward_traceable, "tile": kernels.tile_traceable}
BACKWARD = {"rows": kernels.backward_traceable, "tile": kernels.gradient_tile_traceable}
seen = set()

def at(M, N, offset, pad, dtype):
    memory = torch.full((offset + M * (N + pad) + 64,), float("nan"), dtype=dtype)
    return memory, memory[offset : offset + M * (N + pad)].view(M, N + pad)[:, :N]

def run(tensors, log):
    how = traceable.launch_of(tensors, log)
    seen.add((how.tier, len(tensors)))
    kernel = (BACKWARD if len(tensors) == 3 else FORWARD)[how.tier]
    def launch(*operands):
        kernel[(how.programs,)](*operands, *how.arguments)
    launch(*tensors) if how.tier == "rows" else round_to_nearest(launch, *tensors)

def close(got, expected, terms, unit):
    got = got.double()
    if unit == UNIT[torch.bfloat16]:
        unit *= 2  # where rows are taken by steps, the interpreter truncates
    return bool(((got == expected) | ((got - expected).abs() <= unit * 1.01 * expected.abs() + 3e-6 * terms + 1e-7)).all())

def check(M, N, dtype, x_offset, y_offset, pad, log):
    _, x = at(M, N, x_offset, pad, dtype)
    x.copy_(torch.randn(M, N))
    x[0, : N // 2] = -float("inf")
    memory, y = at(M, N, y_offset, 0, dtype)
    expected = (torch.log_softmax if log else torch.softmax)(x.double(), -1)
    run((x, y), log)
    assert close(y, expected, 1 + expected.abs() if log else expected, UNIT[dtype]), ("forward", M, N, dtype, x_offset, y_offset, pad, log)
    assert int(torch.isnan(memory).sum()) == memory.numel() - M * N
    _, dy = at(M, N, x_offset, pad, dtype)
    dy.copy_(torch.randn(M, N))
    y.copy_(expected)
    memory, dx = at(M, N, y_offset, 0, dtype)
    a, b = y.double(), dy.double()
    size = a.exp() if log else a
    expected = b - size * b.sum(-1, keepdim=True) if log else a * (b - (a * b).sum(-1, keepdim=True))
    terms = b.abs() + size * b.abs().sum(-1, keepdim=True)
    run((dy, y, dx), log)
    assert close(dx, expected, terms, UNIT[dtype]), ("backward", M, N, dtype, x_offset, y_offset, pad, log)
    assert int(torch.isnan(memory).sum()) == memory.numel() - M * N

PLACES = (0, 0, 0), (1, 1, 0), (1, 0, 0), (0, 0, 3), (8, 0, 8)
for dtype in UNIT:
    for number, (M, N) in enumerate(((5, 7), (3, 100), (5, 64), (3, 333), (2, 1000), (2, 1024), (2, 5003))):
        for x_offset, y_offset, pad in PLACES if THOROUGH else PLACES[number % 2 :: 2]:
            check(M, N, dtype, x_offset, y_offset, pad, N == 1024)
assert {tier for tier, _ in seen} == {"rows", "tile"}, seen
UNIT[torch.float64] = UNIT[torch.float32]
check(1, 2300, torch.float64, 0, 0, 0, False)
for x_offset, y_offset, pad in ((0, 0, 0), (1, 1, 0), (1, 0, 0), (0, 0, 16), (0, 0, 3)):  # the longest that are traced
    check(2, traceable.LONG_ROW // 4 - pad // 16, torch.bfloat16, x_offset, y_offset, pad, bool(pad))
for N in (4500, 9000):
    for value in (float("nan"), float("inf"), -float("inf"), "all", "half"):  # half: -inf, and low values in the others
        x, y = torch.full((1, N), -200.0), torch.empty(1, N)
        x[0, -N // 2 if value == "half" else -1 if value != "all" else 0 :] = value if isinstance(value, float) else -float("inf")
        run((x, y), False)
        assert torch.allclose(y, torch.softmax(x, -1), rtol=1e-5, equal_nan=True), (N, value)
print("fine")
"""


@pytest.mark.slow
@pytest.mark.parametrize("thorough", [False, True])
def test_traced_launches_are_right_at_any_address(thorough, run_interpreted):
    run_interpreted(f"THOROUGH = {thorough}\n{LAUNCHES}", timeout=270)
