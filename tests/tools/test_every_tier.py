"""The launches that tools/every_tier.py has of masked softmax, on the CPU: all kernels are launched, and wrong results are told."""

import itertools
import math

import every_tier
import launches
import masked_launches
import pytest
import torch
from launches import BRAIN, FULL, HALF, agrees
from masked_launches import BACKWARD, FORWARD, Asked

LIMITS = ("--rows", "600", "--bytes", "4000000")
"""So that it takes seconds."""
MOST_LAUNCHES = 137


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
    few = [one for one in masked_launches.LARGE if one.rows == 512]
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
