"""`run` rejects wrong plugins of other operations, and of parameters; it measures right ones. The GPU runs all of these files."""

import pytest
from masked_softmaxes import OPERATION, TOGETHER, named_with
from ways import by_cell, slug
from wrongs import PLUGINS, RIGHT_WAYS, WRONG_WAYS

LOG_SOFTMAX = {
    *("zeros", "softmax", "over-the-rows", "log-of-softmax", "no-maximum-subtracted", "log2-for-log", "sum-without-the-last-column"),
    *("sum-in-16-bits", "stale-rows", "first-buffer", "y-for-exp-y", "softmaxs-formula", "gradient-of-softmax"),
}
RIGHT = {"two-passes", "online", "float64", "minus-logsumexp", "chunks-of-rows", "torch-jit"}
NAMED = {*(f"wrong-{name}" for name in LOG_SOFTMAX), *(f"right-{name}" for name in RIGHT)}
SCALED = {way.name for way in (*WRONG_WAYS, *RIGHT_WAYS) if way.operations == ("softmax(scale,out_dtype)",)}


def some(operation):
    """Ten wrong ways to compute an operation, and the right ones but for sums of one term after the other."""
    wrong, right = ([way.name for way in ways if way.operations == (operation,)] for ways in (WRONG_WAYS, RIGHT_WAYS))
    return {*wrong[:10], *(name for name in right if "serial" not in name)}


def masked(*, by):
    """The wrong ways to compute masked softmax that these parameters show, the right ones, and the arguments of a run."""
    wrong = {f"wrong-masked-{slug(name)}" for name in named_with(by)}
    right = {way.name for way in RIGHT_WAYS if way.operations == (OPERATION,)}
    return wrong | right, ("--op", "masked_softmax", "--set", by, "--shape", "2x3x40x65")


CASES = {
    "log_softmax": (NAMED, ("--op", "log_softmax", "--M", 32, "--N", 1024)),
    "cross_entropy": (some("cross_entropy"), ("--op", "cross_entropy", "--M", 32, "--N", 257)),
    "logprob": (some("logprob"), ("--op", "logprob", "--M", 32, "--N", 1024)),
    "scaled softmax": (SCALED, ("--set", "scale=0.7", "--M", 32, "--N", 257)),
    **{what: masked(by=text) for what, text in TOGETHER.items()},
}


@pytest.mark.slow  # tests/run/test_operations.py has a run of few plugins
@pytest.mark.parametrize("what", CASES)
def test_a_run_rejects_wrong_plugins_and_measures_right_ones(cli, what):
    names, given = CASES[what]
    files = [part for folder in ("wrong", "correct") for part in ("--plugin", PLUGINS / folder / "operations.py")]
    shape = ("--device", "cpu", "--quick", "--direction", "forward,backward,both,fused")
    done = cli("run", *given, *files, "--backends", ",".join(sorted(names)), *shape)
    assert done.returncode == 1, done.stdout + done.stderr
    found = by_cell(cli.folder / "results" / "latest.csv")
    expected = [way for way in (*WRONG_WAYS, *RIGHT_WAYS) if way.name in names]
    assert len(expected) == len(names)
    assert sum(name.startswith("wrong-") for name in names) >= 10
    assert sum(name.startswith("right-") for name in names) >= 5
    for way in expected:
        for direction in way.makers:
            row = found[way.name, direction]
            assert row["status"] == ("wrong" if way.name.startswith("wrong") else "ok"), row
            assert bool(row["gbps"]) == (row["status"] == "ok"), row
