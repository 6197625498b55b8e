"""Other projects' kernels on a GPU, where their packages are installed: right within the bounds, within the limits that are stated."""

import csv

import pytest
import torch

from softbench.backends.liger import backend as liger
from softbench.backends.quack import backend as quack
from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops.registry import operation
from softbench.ops.softmax import NUMERICS
from softbench.worker.checking.output_checks import breach, forms

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

DTYPES = ("fp32", "fp16", "bf16")


def graded(peer, M, N, dtype, direction):
    """The grade against float64; the inputs are compared with copies of them."""
    if reason := peer.available():
        pytest.skip(reason)
    case = Case(M, N, dtype, direction)
    assert peer.supports(case) is None
    given = NUMERICS.make(case, 0, torch.device("cuda"))
    kept = tuple(tensor.detach().clone() for tensor in given)
    out = peer.prepare(case)(*given)
    results = out if direction is Direction.BOTH else (out,)
    assert breach(given, kept, results, forms(case)) == ""
    accuracy = NUMERICS.check(case, given, results)
    return accuracy.grade, accuracy.detail


@pytest.mark.parametrize("direction", operation("softmax").directions)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("M", "N"), [(37, 8), (512, 1000), (37, 4096), (5, 32768), (4, 131072)])
def test_quack_is_right(M, N, dtype, direction):
    grade, detail = graded(quack, M, N, dtype, direction)
    assert grade is Grade.PASS, detail


@pytest.mark.parametrize("direction", operation("softmax").directions)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("M", "N"), [(37, 1), (512, 781), (37, 4096), (5, 65536)])
def test_liger_passes_or_is_low_precision_in_16_bit_backward(M, N, dtype, direction):
    grade, detail = graded(liger, M, N, dtype, direction)
    narrow = dtype != "fp32" and direction is not Direction.FORWARD
    assert grade in ((Grade.PASS, Grade.LOW_PRECISION) if narrow else (Grade.PASS,)), detail


@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_quack_takes_the_longest_row_that_is_said_to_fit(dtype, direction):
    if reason := quack.available():
        pytest.skip(reason)
    grade, detail = graded(quack, 2, quack._most_columns(Case(2, 8, dtype, direction)), dtype, direction)
    assert grade is Grade.PASS, detail


def test_a_run_measures_supported_cases_and_skips_the_others(cli):
    able = [peer for peer in (quack, liger) if peer.available() is None]
    if not able:
        pytest.skip(f"{quack.available()}; {liger.available()}")
    cli.env["QUACK_CACHE_DIR"], cli.env["TRITON_CACHE_DIR"] = str(cli.folder / "quack"), str(cli.folder / "triton")
    names = ",".join(peer.name for peer in able)
    arguments = ("--M", "64", "--N", "781,1000,131072", "--dtype", "bf16", "--direction", "forward,backward,both", "--quick")
    for cache in ("cold", "cached"):
        done = cli("run", "--backends", names, *arguments, timeout=280)
        assert done.returncode == 0, done.stdout + done.stderr
        with (cli.folder / "results" / "latest.csv").open() as file:
            found = [row for row in csv.DictReader(file) if row["backend"] != "copy"]
        for row in found:
            beyond = row["N"] == ("781" if row["backend"] == "quack" else "131072")
            assert row["status"] == ("skipped" if beyond else "ok"), row
        first = {row["backend"]: row["build_cache"] for row in reversed(found) if row["direction"] == "forward" and row["status"] == "ok"}
        assert set(first.values()) == {cache}, first  # of a sweep's first shape: liger's kernel of one N may serve the next
