"""The kernels that compilers trace, under the interpreter and as machine code: rows at any address, and short unaligned rows."""

import re

import cards
import numpy as np
import ptx
import pytest
import torch
from card_limits import CARDS, Operand
from sampled import sampled
from softbench.kernels.triton import generic, traceable, traceable_staged
from softbench.kernels.triton.c_shims import static_launch
from torch._subclasses.fake_tensor import FakeTensorMode

LAUNCHES = """
import torch
from softbench.kernels.triton import traceable, traceable_rows as kernels
from softbench.kernels.triton.interpreter import round_to_nearest
torch.manual_seed(0)
UNIT = {torch.float32: 1e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}
FORWARD = {"rows": kernels.forward_traceable, "tile": kernels.tile_traceable, "loop": kernels.loop_traceable}
BACKWARD = {"rows": kernels.backward_traceable, "tile": kernels.gradient_tile_traceable, "loop": kernels.gradient_loop_traceable}
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
check(1, 140000, torch.float64, 0, 0, 0, False)
assert ("loop", 2) in seen and ("loop", 3) in seen, seen
for x_offset, y_offset, pad in ((0, 0, 0), (1, 1, 0), (1, 0, 0), (0, 0, 16)):
    check(1, 33001, torch.bfloat16, x_offset, y_offset, pad, bool(pad))
check(1, 40000, torch.bfloat16, 1, 1, 0, True)
for N in (9000, 20000):
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


without_gpu = pytest.mark.skipif(
    generic.INTERPRETED or torch.cuda.is_available(), reason="it pretends to have a GPU: see tests/gpu/test_triton_operator_compiled_gpu.py"
)

H200 = next(card for card in CARDS if card.name == "H200")
MANY = 1 << 20  # rows that the plan is for
BFLOAT, HALF, SINGLE = torch.bfloat16, torch.float16, torch.float32
SHAPES = [
    *((N, BFLOAT, backward) for N in (5, 36, 60, 77, 100, 197, 230) for backward in (False, True)),
    *((N, HALF, backward) for N in (13, 90) for backward in (False, True)),
    *((N, SINGLE, backward) for N in (3, 33, 77, 197) for backward in (False, True)),
]
USUAL = [(77, BFLOAT), (197, SINGLE)]
"""Columns and dtypes that tests have by default."""


def launch_of(N, dtype, backward, log=False):
    with FakeTensorMode():
        x = torch.empty(MANY, N, dtype=dtype, device="cuda")
    return traceable.launch_of((x,) * (3 if backward else 2), log)


def compiled(how, dtype, backward, M=MANY, address=0):
    """The kernel for M rows, specialized on the numbers and on the tensors' address as Inductor specializes it."""
    kernel = traceable_staged.backward_staged_traceable if backward else traceable_staged.forward_staged_traceable
    arguments = (M, *how.arguments[1:])
    return cards.compiled(H200, kernel, [Operand(dtype, address)] * (3 if backward else 2), arguments, {"num_warps": how.num_warps})


def run(found, how, inputs, offsets, lost=slice(0, 0), first=0):
    """The result of a kernel, without a slice of its PTX. `offsets`: of each tensor from a 16-byte boundary. Other bytes stay.

    The rows are those of the programs from number `first` on.
    """
    (M, N), dtype, size = inputs[0].shape, inputs[0].dtype, inputs[0].nbytes
    starts = [1024 + i * (size // 16 * 16 + 512) + offset for i, offset in enumerate(offsets)]
    memory = np.full(starts[-1] + size + 1024, 0x5B, np.uint8)
    readable = np.zeros(len(memory), bool)
    for tensor, start in zip(inputs, starts, strict=False):
        memory[start : start + size] = tensor.contiguous().view(torch.uint8).numpy().reshape(-1)
        readable[start : start + size] = True
    before = memory.copy()
    rows, code = how.arguments[3] * how.arguments[4], found.asm["ptx"]
    before_first = first * rows
    numbers = {"M": before_first + M, "N": N, "distance": how.arguments[2]}
    passed = [number for name, number in numbers.items() if found.src.signature[name] != "constexpr"]
    programs = range(first, first - (-M // rows))
    arguments = [*(start - before_first * N * dtype.itemsize for start in starts), *passed, 0, 0]
    ptx.run(code[: lost.start] + code[lost.stop :], programs, how.num_warps, memory, readable, arguments, seed=M)
    written = slice(starts[-1], starts[-1] + size)
    untouched = memory != before
    untouched[written] = False
    assert not untouched.any()
    return torch.frombuffer(bytearray(memory[written].tobytes()), dtype=dtype).view(M, N)


def expected(inputs, log):
    if len(inputs) == 1:
        return (torch.log_softmax if log else torch.softmax)(inputs[0].double(), -1)
    dy, y = (tensor.double() for tensor in inputs)
    return dy - y.exp() * dy.sum(-1, keepdim=True) if log else y * (dy - (dy * y).sum(-1, keepdim=True))


@without_gpu
@pytest.mark.parametrize(
    ("N", "dtype", "backward", "log"),
    sampled(
        [(*shape, log) for shape in SHAPES for log in (False, True)],
        lambda N, dtype, backward, log: (N, dtype) in USUAL and log == (backward == (USUAL[0][0] == N)),
    ),
)
def test_traced_kernels_give_the_rows_of_torch(N, dtype, backward, log):
    torch.manual_seed(N)
    how = launch_of(N, dtype, backward, log)
    assert how.tier == "staged"
    block = how.arguments[3] * how.arguments[4]
    width = dtype.itemsize
    for M, offsets in ((block + 3, (0, 0, 0)), (block, (width, 0, 8)), (1, (0, 16 - width, width)), (2, (8, 8, 0))):
        inputs = [torch.randn(M, N).to(dtype) for _ in range(1 + backward)]
        inputs[0][0, : N // 2] = -float("inf") if not backward else 0
        got = run(compiled(how, dtype, backward, M), how, inputs, offsets[-1 - len(inputs) :])
        tolerance = {BFLOAT: 1e-2, HALF: 2e-3, SINGLE: 1e-5}[dtype]
        torch.testing.assert_close(got.double(), expected(inputs, log), rtol=tolerance, atol=tolerance)


KINDS = {
    **{"cp.async.cg": "copy", "wait_all": "wait", "bar.sync": "barrier"},
    **{"ld.shared.v4": "vector", "ld.shared.u16": "read", "ld.shared.b32": "read", "st.shared": "write"},
}


def order(code):
    """Accesses of shared memory and barriers, of the path for aligned tensors: up to each of the two barriers, and behind them."""
    found = [kind for line in code.splitlines() for name, kind in KINDS.items() if name in line]
    kept = [kind for i, kind in enumerate(found) if i == 0 or kind != found[i - 1]]
    first, second = (i for i, kind in enumerate(kept) if kind == "barrier")
    return kept[kept.index("copy") : first], kept[first + 1 : second], kept[second + 1 :]


def flow(ir):
    """Of each result of the kernel's LLVM code: its inline assembly, if any, and all results that it depends on."""
    assembly, operands = {}, {}
    body = ir[ir.index("define ") :]
    for line in body[: body.index("\n}")].splitlines():
        if not (match := re.match(r"\s*(%[\w.]+) = (.*)", line)):
            continue
        name, right = match.groups()
        if written := re.search(r'asm (?:sideeffect )?"([^"]*)"', right):
            assembly[name], right = written[1], right[written.end() :]
        operands[name] = re.findall(r"%[\w.]+", right)
    origins = {}
    for name in assembly:
        origins[name], left = set(), [*operands[name]]
        while left:
            if (one := left.pop()) not in origins[name]:
                origins[name].add(one)
                left += operands.get(one, [])
    return assembly, origins


@without_gpu
@pytest.mark.parametrize(("N", "dtype", "backward"), sampled(SHAPES, lambda N, dtype, backward: (N, dtype) in USUAL))
@pytest.mark.parametrize("address", [0, 1], ids=["aligned", "unaligned"])
def test_accesses_depend_on_what_must_come_before(N, dtype, backward, address):
    """A compiler may exchange pure assembly that does not depend on each other, even if this one keeps the order."""
    found = compiled(launch_of(N, dtype, backward), dtype, backward, address=address * dtype.itemsize)
    assembly, origins = flow(found.asm["llir"])

    def those(*words, without=()):
        return {name for name, text in assembly.items() if any(map(text.count, words)) and not any(map(text.count, without))}

    (wait,), (barrier,) = those("wait_all"), those("bar.sync", without=("wait_all",))
    copies, vectors = those("cp.async.cg") | (those("ld.global") & those("st.shared")), those("ld.shared.v4")
    reads, writes = those("ld.shared", without=("v4", "st.")), those("st.shared", without=("ld.global",))
    first = {name for name in reads if barrier not in origins[name]}
    assert copies and writes and first
    assert copies <= origins[wait]
    assert all(wait in origins[name] for name in first)
    assert all(origins[name] & first for name in writes)
    assert writes <= origins[barrier]
    assert all(barrier in origins[name] for name in vectors)


@without_gpu
@pytest.mark.parametrize(("N", "dtype", "backward"), sampled(SHAPES, lambda N, dtype, backward: N == 36 and backward))
def test_the_order_of_accesses_is_that_of_the_eager_kernel(N, dtype, backward):
    how = launch_of(N, dtype, backward)
    found = compiled(how, dtype, backward)
    copies, rows, stores = order(found.asm["ptx"])
    assert copies == ["copy", *["write", "copy"] * backward, "write", "wait"]
    assert rows == ["read", "write"] * (len(rows) // 2)
    assert set(stores) == {"vector", "read"}
    with FakeTensorMode():
        x = torch.empty(MANY, N, dtype=dtype, device="cuda")
    eager = static_launch((x,) * (1 + backward))
    assert how.arguments == eager.arguments
    kernel = cards.compiled(H200, eager.kernel, [Operand(dtype, 0)] * (2 + backward), (*eager.arguments, None), eager.options)
    assert order(kernel.asm["ptx"])[:1] == (copies,)
    taken, of_eager = (cards.resources(H200, one) for one in (found, kernel))
    assert taken.registers <= max(40, of_eager.registers + 2)
    assert taken.spilled == 0
    for address in (0, dtype.itemsize):  # tensors that Inductor does not know to be aligned
        made = compiled(how, dtype, backward, address=address)
        assert made.metadata.shared == 0  # tokens change their shape in registers
        assert "st.global.v4" in made.asm["ptx"]
        assert made.asm["ptx"].count(".shared .align") == 1  # another allocation would be other memory


@without_gpu
@pytest.mark.parametrize("backward", [False, True])
def test_rows_behind_four_gigabytes_are_found(backward):
    torch.manual_seed(0)
    how, width = launch_of(77, BFLOAT, backward), BFLOAT.itemsize
    block = how.arguments[3] * how.arguments[4]
    first = (1 << 32) // (block * 77 * width) + 5
    inputs = [torch.randn(block, 77).to(BFLOAT) for _ in range(1 + backward)]
    found = compiled(how, BFLOAT, backward, (first + 1) * block)
    got = run(found, how, inputs, (0, 0, 0)[: 2 + backward], first=first)
    torch.testing.assert_close(got.double(), expected(inputs, False), rtol=1e-2, atol=1e-2)


@without_gpu
@pytest.mark.parametrize("lost", ["bar.sync 0;", "cp.async.wait_all;"])
def test_the_machine_sees_what_lacks_a_barrier_or_a_wait(lost):
    torch.manual_seed(0)
    how = launch_of(100, BFLOAT, False)
    found = compiled(how, BFLOAT, False, 32)
    x = torch.randn(32, 100).to(BFLOAT)
    for match in re.finditer(re.escape(lost), found.asm["ptx"]):
        with np.errstate(all="ignore"):
            got = run(found, how, [x], (0, 0), slice(*match.span()))
        assert not torch.allclose(got.double(), expected([x], False), atol=1e-2)


@without_gpu
def test_only_contiguous_rows_of_a_fixed_number_are_staged():
    with FakeTensorMode():
        x, wide = torch.empty(MANY, 77, dtype=BFLOAT, device="cuda"), torch.empty(MANY, 78, dtype=BFLOAT, device="cuda").narrow(1, 0, 77)
        assert traceable.launch_of((x, x), False).tier == "staged"
        assert traceable.launch_of((wide, x), False).tier != "staged"
        assert traceable.launch_of((x, x.to(SINGLE)), False).tier != "staged"
