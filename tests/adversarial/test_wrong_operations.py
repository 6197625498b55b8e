"""`run` rejects wrong plugins of other operations than softmax, and gives figures to right ones. The GPU runs all of these files."""

import pytest
from ways import by_cell
from wrongs import PLUGINS, RIGHT_WAYS, WRONG_WAYS

from softbench.ops.registry import operation

WRONG = {
    *("zeros", "softmax", "over-the-rows", "log-of-softmax", "no-maximum-subtracted", "log2-for-log", "sum-without-the-last-column"),
    *("sum-in-16-bits", "stale-rows", "first-buffer", "y-for-exp-y", "softmaxs-formula", "gradient-of-softmax"),
}
RIGHT = {"two-passes", "online", "float64", "minus-logsumexp", "chunks-of-rows", "torch-jit"}


CE = {
    *("wrong-ce-target-one-too-high", "wrong-ce-ignore-index-ignored", "wrong-ce-lse-in-bf16", "wrong-ce-without-the-1-at-the-target"),
    *("wrong-ce-without-dloss", "wrong-ce-zeros-second", "right-ce-two-passes", "right-ce-tiles", "right-ce-torch", "right-ce-lse-first"),
}
LOGPROB = {
    *("wrong-logprob-negative-entropy", "wrong-logprob-target-one-too-low", "wrong-logprob-without-p", "wrong-logprob-zeros-for-entropy"),
    *("right-logprob-no-negative-term", "right-logprob-tiles", "right-logprob-float32"),
}
NAMES = {
    "log_softmax": {*(f"wrong-{name}" for name in WRONG), *(f"right-{name}" for name in RIGHT)},
    "cross_entropy": CE,
    "logprob": LOGPROB,
}


@pytest.mark.parametrize("op", NAMES)
def test_a_run_rejects_wrong_ways_and_measures_right_ones(cli, op):
    names = NAMES[op]
    files = [part for folder in ("wrong", "correct") for part in ("--plugin", PLUGINS / folder / "operations.py")]
    shape = ("--device", "cpu", "--quick", "--M", 32, "--N", 1024, "--direction", ",".join(operation(op).directions))
    done = cli("run", "--op", op, *files, "--backends", ",".join(sorted(names)), *shape)
    assert done.returncode == 1, done.stdout + done.stderr
    found = by_cell(cli.folder / "results" / "latest.csv")
    expected = [way for way in (*WRONG_WAYS, *RIGHT_WAYS) if way.name in names]
    assert len(expected) == len(names)
    for way in expected:
        for direction in way.makers:
            row = found[way.name, direction]
            assert row["status"] == ("wrong" if way.name.startswith("wrong") else "ok"), row
            assert bool(row["gbps"]) == (row["status"] == "ok"), row
