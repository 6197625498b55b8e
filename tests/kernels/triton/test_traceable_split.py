"""Launches, plans and machine code of rows that several programs of a package share. `test_traceable_rows.py` runs the kernels."""

import itertools
import math
import re
import subprocess
from pathlib import Path

import pytest
import torch
import triton
from sampled import sampled, with_dtypes
from softbench.kernels.triton import generic, traceable, traceable_split
from softbench.kernels.triton.launch_plan import Problem, chunk_of, vectors_in_row
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

pytestmark = pytest.mark.skipif(generic.INTERPRETED, reason="fake tensors and TRITON_INTERPRET=1 do not go together")
KERNELS = {1: traceable_split.forward_split_traceable, 2: traceable_split.backward_split_traceable}


def test_the_second_pass_reads_every_part_once():
    for M, N, dtype in ((1, 32_768, torch.bfloat16), (3, 50_257, torch.float32), (1, 1 << 25, torch.float32)):
        for reads in (1, 2):
            with FakeTensorMode():
                how = traceable.launch_of(tuple(torch.empty(M, N, dtype=dtype, device="cuda") for _ in range(reads + 1)), False)
            assert how.tier == "passes"
            programs, first = how.first
            parts, part = first[reads + 1 : reads + 3]
            vectors = -(-N * dtype.itemsize // 16) + (0 if N % 8 == 0 else 8)
            assert how.slots == programs == M * parts
            assert how.arguments[reads + 2] == parts <= traceable.MAX_PARTS
            assert part * parts >= vectors
            assert how.arguments[reads + 9] >= parts  # PLACES


def launch_on_hopper(M, N, reads, dtype):
    """The launch for contiguous rows, and its kernel compiled for sm_90."""
    with FakeTensorMode():
        how = traceable.launch_of(tuple(torch.empty(M, N, dtype=dtype, device="cuda") for _ in range(reads + 1)), False)
    assert how.tier == "split"
    kernel = KERNELS[reads]
    names = kernel.arg_names
    sizes = 2 * (reads + 1) + 6  # tensors, slots, strides, N, ctas, chunk, stagger
    constants = dict(zip(names[sizes:], how.arguments[reads + 6 :], strict=True))
    pointer = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}[dtype]
    kinds = {**dict.fromkeys(constants, "constexpr"), "slots_ptr": "*i64"}
    signature = {name: kinds.get(name, pointer if name.endswith("_ptr") else "i32") for name in names}
    divisible = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name.endswith("_ptr")}
    source = ASTSource(kernel, signature, constants, divisible)
    return how, triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": how.num_warps})


@pytest.mark.parametrize(("N", "reads"), sampled(itertools.product((131_073, 5 << 20), (1, 2)), lambda *case: case == (131_073, 2)))
def test_each_thread_polls_places_of_its_own(reads, N):
    """If two warps read one slot they could see different words, leave the loop apart, and wait for each other for ever."""
    how, compiled = launch_on_hopper(4096, N // reads, reads, torch.bfloat16)
    text = compiled.asm["ttgir"]
    ((places, layout),) = re.findall(r"tt\.load [^\n]*isVolatile[^\n]*tensor<(\d+)x!tt\.ptr<i64>, #(\w+)>", text)
    (each,) = re.findall(rf"#{layout} = #ttg\.blocked<{{sizePerThread = \[(\d+)\], ", text)
    assert int(each) * 32 * how.num_warps <= int(places)


LAUNCHES = [
    (4096, 131_072, 2),
    (64, 131_072, 1),
    (4096, 131_073, 1),
    (64, 128_256, 1),
    (256, 33_000, 1),
    (4096, 1 << 20, 1),
    (4096, 50_257, 2),
]
LAUNCHES += [(4096, 50_257, 2), *((4096, N, 1) for N in (38_400, 45_065, 48_001, 50_257, 65_544, 131_072))]
"""M, N and reads of launches with 7 to 24 tiles."""


@with_dtypes("M N reads", LAUNCHES, every=7)
def test_rows_wait_before_their_loads_and_the_device_holds_them(M, N, reads, dtype, tmp_path):
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    if not tool.exists():
        pytest.skip("Triton has no cuobjdump on this machine")
    how, compiled = launch_on_hopper(M, N, reads, {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype])
    (tmp_path / "kernel.cubin").write_bytes(compiled.asm["cubin"])
    told = [
        subprocess.run([tool, option, tmp_path / "kernel.cubin"], capture_output=True, text=True, check=True).stdout
        for option in ("--dump-resource-usage", "--dump-sass")
    ]
    size = 4 if dtype == "fp32" else 2
    problem = Problem(reads == 2, M, N, size, math.gcd(16, size * N), True, 132, True)
    plan = traceable.shared_plan(problem)
    assert (plan.tiles, how.num_warps) == (how.arguments[reads + 6], 4)
    counted = traceable.split_registers(problem, plan)
    assert 65_536 // (128 * int(re.search(r"REG:(\d+)", told[0])[1])) == 65_536 // (128 * counted)
    assert (re.search(r"STACK:(\d+)", told[0])[1], re.search(r"LOCAL:(\d+)", told[0])[1]) == ("0", "0")
    assert 0 < told[1].index("SR_CLOCK") < told[1].index("LDG")


EXCHANGE = """
import torch
from softbench.kernels.triton import traceable, traceable_split as split
traceable.PASS_BYTES = 0
torch.manual_seed(0)
x, dy = torch.randn(2, 1, 40000)
y = torch.softmax(x, -1)
cases = ((split.forward_split_traceable, (x,), y), (split.backward_split_traceable, (dy, y), y * (dy - (dy * y).sum())))
for kernel, inputs, expected in cases:
    found = torch.empty_like(x)
    how = traceable.launch_of((*inputs, found), False)
    assert how.tier == "split"
    def launch(words):
        slots = words.clone()
        found.fill_(7)
        kernel[(how.programs,)](*inputs, found, slots, *how.arguments)
        return slots
    whole = launch(torch.zeros(how.slots, dtype=torch.int64))
    assert (whole != 0).all() and len(whole) == how.programs
    for missing in range(how.programs):  # what other programs have published so far
        some = whole.clone()
        some[missing] = 0
        launch(some)
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-9), missing
    launch(whole)  # no program reduces the row itself
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-9)
    spoiled = whole.clone()
    spoiled[-1] = 0x7FC00000 | 1 << 32  # NaN is the sum of the last program
    launch(spoiled)
    chunk = 4 * how.arguments[len(inputs) + 3]
    assert found[0, : -chunk].isnan().all() and found[0, -1:].isfinite().all()
print("fine")
"""


@pytest.mark.slow
def test_a_part_of_a_result_is_not_taken(run_interpreted):
    run_interpreted(EXCHANGE)


COLUMNS = (9217, 20_000, 32_768, 50_257, 131_073, 262_144, 1 << 20, 1 << 22, 1 << 23)


def problems():
    for backward, size, sms, M, N in itertools.product((False, True), (2, 4), (20, 108, 132), (1, 8, 64, 132, 4096), COLUMNS):
        yield Problem(backward, M, N, size, math.gcd(16, N * size), True, sms, True)


def test_parts_cover_a_row_and_fit_registers():
    seen = set()
    for problem in problems():
        if (plan := traceable.shared_plan(problem)) is not None:
            seen.add((plan.tier, problem.backward))
            chunk = chunk_of(problem, plan)
            assert plan.split_ctas >= 2
            of_split = traceable.SPLIT_TILES[problem.backward]
            most = (of_split[1] if plan.base_alignment else max(of_split)) if plan.tier == "split" else 8 // problem.reads
            assert plan.tiles <= most
            assert plan.threads == 32 * plan.warps
            assert chunk <= plan.tiles * plan.threads
            assert chunk * plan.split_ctas >= vectors_in_row(problem, plan.vector_elements, plan.base_alignment)
    assert seen == set(itertools.product(("split", "passes"), (False, True)))


def test_programs_of_a_split_row_all_run_at_once():
    """An SM holds three programs of 128 threads, which have at most 168 registers each."""
    for problem in problems():
        if (plan := traceable.shared_plan(problem)) is not None and plan.tier == "split":
            assert plan.threads == 128
            assert plan.split_ctas <= min(problem.sms * 3, 256)


def test_no_lane_has_parts_of_two_short_rows():
    for N, backward in itertools.product((36, 60, 77, 100, 197, 230, 333), (False, True)):
        problem = Problem(backward, 262_144, N, 2, math.gcd(16, 2 * N), True, 132, True, 2500.0, True)
        plan = traceable.plan_for(problem, ("NVIDIA H200", 90))
        assert plan.tier == "rows"
        assert plan.threads > 32 or plan.rows * plan.threads <= 32 * plan.warps
        assert plan.warps <= 8
