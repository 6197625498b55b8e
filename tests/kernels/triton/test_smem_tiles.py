"""The order of copies, waits and reads of tiles in shared memory, in code compiled without a GPU."""

import re
from dataclasses import replace
from types import SimpleNamespace

import cards
import pytest
import torch
import triton
from softbench.kernels.triton import dispatch, generic
from softbench.kernels.triton.launch_plan import Plan

pytestmark = pytest.mark.skipif(generic.INTERPRETED or torch.cuda.is_available(), reason="replaces Triton's driver, which GPUs need")

TILES = 3
PLAN = Plan("split", 4, 128, 4, 8, warps=4, registers=96, split_ctas=4, smem_tiles=TILES)
EVENT = re.compile(r"cp\.async\.(?:c[ag]\.shared|commit_group|wait_group \d+|wait_all)|bar\.red|ld\.shared\.v[24]\.b32 \{.*\}, \[%r\d+\];")
NAMES = {"cp.async.cg.shared": "copy", "cp.async.ca.shared": "copy", "cp.async.commit_group": "group"}


@pytest.fixture
def ptx(monkeypatch):
    """A function that compiles a split kernel for an H100. It returns the PTX."""
    monkeypatch.setattr(triton.runtime.driver, "_active", None)
    h100 = next(one for one in cards.CARDS if one.name == "H100")

    def of(backward=False, out=torch.bfloat16, rows=16):
        given = replace(cards.problem_of(h100, backward, rows, 28672, 2, 16), wide=out == torch.float32)
        tensor = SimpleNamespace(stride=lambda _: given.N)
        launch = dispatch.prepare_launch(given, PLAN, (tensor,) * (given.reads + 1))
        dtypes = (torch.bfloat16,) * given.reads + (out, torch.int64, torch.int64)
        operands = [cards.Operand(dtype, 16) for dtype in dtypes]
        return cards.compiled(h100, launch.kernel, operands, (*launch.arguments, None), launch.options).asm["ptx"]

    return of


@pytest.fixture
def events(ptx):
    """A function that returns what the PTX of such a kernel does with tiles, in its order."""

    def of(**given):
        return [NAMES.get(name, name.partition(" {")[0].removeprefix("cp.async.")) for name in EVENT.findall(ptx(**given))]

    return of


def test_a_forward_waits_for_one_tile_at_a_time(events):
    reads = [event for h in range(TILES) for event in (f"wait_group {TILES - 1 - h}", "ld.shared.v4.b32")]
    expected = ["copy", "group"] * TILES + ["bar.red", *reads]
    assert events()[: len(expected)] == expected


def test_threads_that_read_others_copies_wait_for_the_cta(events):
    found = events(out=torch.float32)
    wait = found.index("wait_all")
    assert found[:wait].count("copy") == 2 * TILES  # of 16 and of 8 bytes
    expected = ["wait_all", "bar.red"] + ["ld.shared.v2.b32"] * 2 * TILES
    assert found[wait : wait + len(expected)] == expected


def test_a_gradient_waits_for_all_copies(events):
    expected = ["copy"] * 2 * TILES + ["group", "wait_all", "bar.red"] + ["ld.shared.v4.b32"] * 2 * TILES
    assert events(backward=True)[: len(expected)] == expected
