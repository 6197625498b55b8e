"""The launches that tools/every_tier.py has of masked softmax, on the CPU: all kernels are launched, and wrong results are told."""

import itertools
import json
import math
import sys

import every_tier
import launches
import masked_launches
import pytest
import torch
from launches import BRAIN, FULL, HALF, agrees
from masked_launches import BACKWARD, FORWARD, Asked
from simulated import needs_nvcc, scores_library, simulate_scores

LIMITS = ("--rows", "600", "--bytes", "4000000")
"""So that it takes seconds."""
INSTANTIATIONS = 3 * 3 * 4 + 3 * 4 + 3 * 4 + 4 + 2 * 2 * 2
"""Forward: dtype, kind of mask, aligned, short; in float32 also with eight vectors a thread. Backward: the same without a mask.
Four vectors a lane: 16-bit dtype, columns, and whether all queries share the mask. LIMITS leave out those that keep their reads in L2."""
MOST_LAUNCHES = 137


@pytest.fixture
def launch_all(monkeypatch, capsys):
    """`launch_all(kernels, *options)`: what every_tier.py prints, and its exit code."""
    monkeypatch.setattr(launches, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def run(kernels, *options):
        monkeypatch.setattr(sys, "argv", ["every_tier.py", kernels, "--function", "masked_softmax", *options])
        code = every_tier.main()
        return json.loads(capsys.readouterr().out), code

    return run


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return scores_library(tmp_path_factory.mktemp("scores"))


@pytest.mark.slow
@needs_nvcc
def test_each_cuda_instantiation_is_launched_and_right(launch_all, library, monkeypatch):
    simulate_scores(library, monkeypatch)
    monkeypatch.setattr(masked_launches, "ROWS_OF_SOFTMAX", ())  # kernels of another library
    library.simulated_launched()
    found, code = launch_all("cuda", *LIMITS)
    assert (found["wrong"], code) == ([], 0)
    assert library.simulated_launched() == INSTANTIATIONS == 72
    assert set(found["launches"]) == {f"{direction} {tier}" for direction in (FORWARD, BACKWARD) for tier in ("sub_warp", "block")}
    assert sum(found["launches"].values()) <= MOST_LAUNCHES
    halves = [launch_all("cuda", *LIMITS, "--part", f"{part}/2")[0]["launches"] for part in (1, 2)]
    assert all(sum(half[tier] for half in halves) == count for tier, count in found["launches"].items())


INTERPRETED = f"""
import io, json, sys
from contextlib import redirect_stdout
import torch
sys.path.append({every_tier.__file__.rpartition("/")[0]!r})
import every_tier, launches
launches.DEVICE, torch.cuda.synchronize = "cpu", lambda: None
sys.argv = ["every_tier.py", "triton", "--function", "masked_softmax", *{LIMITS}]
with redirect_stdout(io.StringIO()) as out:
    assert every_tier.main() == 0, out.getvalue()
found = json.loads(out.getvalue())["launches"]
kernels = "forward forward_scores", "forward forward_causal", "forward softmax", "backward backward_scores", "backward backward_causal"
assert set(found) == {{*kernels, "backward softmax"}} and sum(found.values()) <= {MOST_LAUNCHES}, found
print("fine")
"""


@pytest.mark.slow
def test_each_triton_kernel_is_launched_and_right(run_interpreted):
    run_interpreted(INTERPRETED)


def test_each_plan_of_long_causal_rows_is_launched():
    from softbench.kernels.triton.causal_rows import LEAST_COLUMNS, MOST_COLUMNS, causal_plan

    for direction in (FORWARD, BACKWARD):
        backward = direction == BACKWARD
        plans = {causal_plan(N, backward) for N in range(LEAST_COLUMNS[backward] + 8, MOST_COLUMNS + 1, 8)}
        cases = [one for one in masked_launches.of_long_causal_rows() if one.direction == direction]
        assert {(one.dtype, causal_plan(one.sizes[3], backward)) for one in cases} == set(itertools.product((HALF, BRAIN), plans))
    few = [one for one in masked_launches.LARGE_TRITON if one.rows == 512]
    assert {one.direction for one in few} == {FORWARD, BACKWARD}


def by_torch(asked, given):
    """The right results, in the dtype of the scores."""
    scores = masked_launches.Scores(asked)
    if asked.direction == BACKWARD:
        dy, y, share = (None if one is None else one.double() for one in given)
        dot = (dy * y).sum(-1, keepdim=True)
        return [(asked.scale * y * (dy - dot)).to(asked.dtype), None if share is None else (-share * dot[..., 0]).float()]
    scores.x, scores.mask, scores.sink = given
    y, share = scores.expected()
    return [y.to(asked.dtype), share.float() if asked.shares else None]


CHANGES = {
    "right": lambda y, share: None,
    "first factor": lambda y, share: y[0, 0, -1].mul_(1.03),
    "of share": lambda y, share: share[1, 0, 2].mul_(1.03),
    "above the diagonal": lambda y, share: y[0, 1, 0, -1].fill_(1e-6),
    "one NaN": lambda y, share: y[0, 0, -1, 0].fill_(math.nan),
    "no NaN": lambda y, share: y[-1, -1, -1].zero_(),
}
OF_MASKED = ("right", "first factor", "no NaN")
OF_SHARED = ("right", "first factor", "of share", "above the diagonal", "one NaN")
SHARED = {"causal": True, "sink": FULL, "shares": True}


@pytest.mark.parametrize(
    ("change", "direction", "given"),
    [
        *((change, direction, SHARED) for direction in (FORWARD, BACKWARD) for change in OF_SHARED),
        *((change, FORWARD, {"mask": mask, "axes": "BHSN"}) for change in OF_MASKED for mask in (torch.bool, BRAIN)),
    ],
)
def test_results_are_compared_with_float64(monkeypatch, change, direction, given):
    torch.manual_seed(0)
    monkeypatch.setattr(launches, "DEVICE", "cpu")

    def call(asked, tensors):
        results = by_torch(asked, tensors)
        CHANGES[change](*results)
        return tuple(results), "torch"

    launch = masked_launches.launch_of(Asked(direction, BRAIN, (2, 3, 5, 40), **given), call)
    name, pairs = launch.run()
    assert name == f"{direction} torch"
    assert all(agrees(*pair) for pair in pairs()) is (change == "right")
    assert launch.rows == 30 and launch.moved == (2 if direction == FORWARD else 3) * 30 * 40 * 2
