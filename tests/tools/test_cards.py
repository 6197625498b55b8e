"""Kernels for GPUs that are not here: a sample of what tools/cards.py compiles, and the rules' plans for every card."""

import dataclasses
import os

import cards
import pytest
import torch
from sampled import sampled
from simulated import needs_cuobjdump, needs_nvcc
from softbench.kernels.cuda import build
from softbench.kernels.triton import generic, planner
from softbench.kernels.triton.launch_plan import Plan

pytestmark = pytest.mark.skipif(generic.INTERPRETED or torch.cuda.is_available(), reason="replaces Triton's driver, which GPUs need")


@pytest.fixture
def driver(monkeypatch):
    """Restores Triton's driver after a test that compiles."""
    import triton

    monkeypatch.setattr(triton.runtime.driver, "_active", None)


def card(name):
    return next(one for one in cards.CARDS if one.name == name)


def test_every_plan_by_rule_fits_every_card():
    assert cards.ask_plans(list(cards.CARDS), 40, seed=1) == []


@pytest.mark.slow
def test_thousands_of_plans_fit_every_card():
    """Of each kind, for each card."""
    assert cards.ask_plans(list(cards.CARDS), 3000, seed=2) == []


KERNELS = {
    "rows": {"tile_of_rows", "gradient_tile", "forward_rows", "backward_rows", "forward_split", "backward_split"},
    "traced": {"tile_traceable", "gradient_tile_traceable", "forward_traceable", "backward_traceable"},
    "losses": {"reduction_tile", "gradient_tile", "fused_tile", "reduce_row", "gradient_of_row", "fused_rows"},
    "scores": {"forward_scores", "backward_scores"},
}
OF_HOPPER = {
    "rows": {"forward_cluster", "backward_cluster", "forward_staged", "backward_staged"},
    "scores": {"forward_causal", "backward_causal"},
}


@pytest.mark.slow
def test_random_launches_have_every_kernel():
    """But for those of AMD's GPUs, which have tiles and loops."""

    def seen(name, kind):
        every = (launch for number in range(3000) for launch in cards.card_launches.launches(card(name), kind, number))
        return {launch.kernel.__name__ for launch in every}

    for kind, names in KERNELS.items():
        assert seen("H100", kind) >= names | OF_HOPPER.get(kind, set())
        assert seen("L4", kind) >= names
    assert seen("MI300X", "rows") == {"tile_of_rows", "gradient_tile", "loop_over_row", "gradient_loop"}
    assert seen("MI300X", "traced") == {"tile_traceable", "gradient_tile_traceable"}
    assert seen("MI300X", "losses") == seen("MI300X", "scores") == set()


@pytest.mark.parametrize(
    ("name", "plan", "what"),
    [
        ("L4", Plan("cluster", 4, 256, 4, 8, warps=8, cluster_ctas=4), "a cluster of 4 CTAs"),
        ("H100", Plan("split", 8, 1024, 4, 8, warps=32, registers=80, split_ctas=2), "80 registers of 1024 threads"),
        ("A10", Plan("split", 8, 512, 4, 8, warps=16, registers=64, split_ctas=2, smem_tiles=16), "132096 bytes of shared memory"),
        ("MI300X", Plan("rows", 8, 256, 4, 8, warps=8), "way to run PTX"),
    ],
)
def test_a_plan_that_a_card_does_not_have_is_found(name, plan, what):
    one = card(name)
    launch = cards.card_launches.planned(one, cards.problem_of(one, False, 4096, 8192, 2, 16), plan)
    assert what in cards.card_launches.misfit(one, launch)


def test_resources_beyond_a_cards_limits_are_found():
    fits = cards.Resources(registers=64, spilled=0, shared=90 * 1024, threads=512)
    l4 = card("L4")
    assert fits.misfit(l4) is None
    assert "8 bytes a thread of spilled registers" in dataclasses.replace(fits, spilled=8).misfit(l4)
    assert dataclasses.replace(fits, spilled=8).misfit(l4, 1, 8) is None  # as many as are known to spill
    assert "registers for each" in dataclasses.replace(fits, registers=136).misfit(l4)
    assert "shared memory" in dataclasses.replace(fits, shared=100 * 1024).misfit(l4)
    assert "threads" in dataclasses.replace(fits, registers=32, threads=2048).misfit(l4)
    assert "a policy" in dataclasses.replace(fits, illegal=1).misfit(l4)
    assert "1 of 2 CTAs" in fits.misfit(l4, 2)
    assert dataclasses.replace(fits, shared=40 * 1024).misfit(l4, 2) is None


def test_copies_that_are_illegal_instructions_are_counted():
    """The first two copies ran on an H200; the third one ended the process."""
    right = "@!P1 LDGSTS.E.BYPASS.128 [R5+0x1000], desc[UR6][R12.64] ; LDGSTS.E.BYPASS.128 [R7], desc[UR16][R8.64], P1 ;"
    assert cards.illegal_copies(right) == 0
    assert cards.illegal_copies(right + " @!P3 LDGSTS.E.BYPASS.128 [R3+UR6], desc[UR7][R12.64] ;") == 1


def spilling(architecture, **spilled):
    """The number of bytes of each kernel, by its mangled name, that is found in a report of ptxas."""
    report = "".join(
        f"ptxas info    : Function properties for _ZN9softbench{name}\n"
        f"    8 bytes stack frame, {count} bytes spill stores, {count} bytes spill loads\n"
        for name, count in spilled.items()
    )
    found = cards.spilling(report, architecture)
    return {line.split(":")[0].removeprefix("_ZN9softbench"): int(line.split("bytes")[1].split()[-1]) for line in found}


def test_kernels_that_spill_are_found_in_ptxas_report():
    right, block, cluster, bulk = (f"{len(name)}{name}INS_7ForwardEEEvv" for name in ("right", "block", "cluster", "bulk"))
    report = {right: 0, block: 8, cluster: 4, bulk: 20}
    assert spilling("sm_90a", **report) == spilling("sm_103a", **report) == {block: 8, cluster: 4, bulk: 20}
    assert spilling("sm_86", **report) == spilling("sm_120a", **report) == {block: 8}  # they have no clusters
    assert spilling("sm_90a", **{"7columnsIffE": 144, "7columnsIfE": 148}) == {"7columnsIfE": 148}  # so many are known


CUDA = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a")


@needs_nvcc
def test_a_part_that_does_not_compile_is_found(monkeypatch):
    monkeypatch.setattr(build, "FLAGS", ("--no-such-option",))
    (line,) = cards.cuda_reports([("sm_90a", "logprob", 0)])
    assert line.startswith("sm_90a logprob part 0: nvcc fatal")


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("architecture", CUDA)
def test_cuda_parts_spill_no_more_than_is_known(architecture):
    """All parts, which takes five minutes of a core; on a machine of few cores one of them, another one for each architecture."""
    few = (os.cpu_count() or 1) < build.FEW_CORES
    parts = cards.cuda_parts([architecture], 1 if few else None, seed=CUDA.index(architecture))
    assert list(cards.cuda_reports(parts)) == []


def sample(name, most):
    """What does not fit a card, of `most` launches of each kind and of one of each kernel and tier."""
    work = cards.triton_work([card(name)], most, seed=0)
    assert len(work) >= most * (2 if card(name).amd else 4)
    return [line for line in map(cards.compile_work, work) if line]


ONE_OF_EACH = ["A100", "A10", "L4", "H100", "B200", "B300", "RTX-5090", "MI300X", "MI355X", "RX-9070-XT"]


@needs_cuobjdump
@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_triton_kernels_of_every_kind_fit(driver, name):
    """Some 60 kernels of each architecture, in 10 to 20 seconds of a core."""
    known = ["8 bytes a thread of spilled registers, of 64: rows 11: softmax 129x2501638"] if name == "B200" else []  # of tier split
    found = sample(name, 12)
    assert len(found) == len(known) and all(one in line for one, line in zip(known, found, strict=True)), found


@needs_cuobjdump
@pytest.mark.parametrize("number", [10012, 10014])
def test_scores_of_few_columns_spill_nothing(driver, number):
    """Of 1 and 7 columns, in causal order with a mask. On one warp they spilled 1168 and 816 bytes a thread."""
    h100 = card("H100")
    forward, _ = cards.card_launches.launches(h100, "scores", number)
    assert cards.resources(h100, cards.compiled_launch(h100, forward)).spilled == 0


@needs_cuobjdump
@pytest.mark.parametrize("name", ["A100", "RTX-5090", "B300"])
def test_a_sample_of_triton_kernels_fits(driver, name):
    one = card(name)
    for plan in (Plan("rows", 2, 128, 4, 8, warps=4), Plan("tile")):
        resources = cards.compile_plan(one, cards.problem_of(one, False, 4096, 2048, 2, 16), plan)
        assert resources.misfit(one) is None
        assert 16 <= resources.registers <= 64


@needs_cuobjdump
@pytest.mark.parametrize(
    ("backward", "rows", "columns", "size", "alignment"),
    sampled(
        [
            (False, 47293, 13312, 2, 16),
            (False, 43, 3655842, 4, 8),
            (True, 1, 1940544, 4, 8),
            (True, 1136, 18930, 2, 4),
            (True, 93, 414696, 4, 16),
            (True, 23, 799748, 2, 8),
            (True, 492, 75443, 2, 2),
            (True, 1415, 39523, 4, 4),
        ],
        lambda _, rows, *more: rows in (1136, 23, 492),
    ),
)
def test_rows_that_once_spilled_do_not(driver, backward, rows, columns, size, alignment):
    """Of each cause the worst."""
    h100 = card("H100")
    problem = cards.problem_of(h100, backward, rows, columns, size, alignment)
    found = cards.compile_plan(h100, problem, planner.choose(problem, ("NVIDIA H200", 90)))
    assert found.misfit(h100) is None


@pytest.mark.parametrize("name", ["MI300X", "RX-9070-XT"])
def test_amds_gpus_get_kernels_without_ptx(driver, name):
    one = card(name)
    problem = cards.problem_of(one, True, 4096, 1000, 4, 16)
    resources = cards.compile_plan(one, problem, Plan("tile"))
    assert resources.misfit(one) is None
    assert resources.registers > 8
