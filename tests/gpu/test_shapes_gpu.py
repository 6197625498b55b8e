"""N-D cases on a GPU: torch and softbench's kernels over every dimension."""

import csv

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.alone, pytest.mark.timeout(600)]


def rows(cli):
    with (cli.folder / "results" / "latest.csv").open() as file:
        return list(csv.DictReader(file))


def test_kernels_are_right_over_every_dimension(cli):
    done = cli(
        *("run", "--backends", "torch,naive,triton,cuda", "--shape", "6x40x33x129", "--dim", "0,1,2,3"),
        *("--dtype", "fp32,bf16", "--direction", "forward,backward,both", "--quick"),
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(cli)
    assert len(found) == 5 * 4 * 2 * 3
    assert {row["status"] for row in found} == {"ok"}
    assert {row["class"] for row in found if row["backend"] in ("triton", "cuda")} == {"pass"}


def test_attention_shapes_are_measured_in_bulk(cli):
    """Some rows of so many are compared, over a dimension whose rows are no view of a matrix too."""
    done = cli(
        *("run", "--backends", "torch,triton,cuda", "--shape", "8x16x1024x1024", "--dim", "-1,1", "--dtype", "bf16"),
        *("--op", "softmax", "--direction", "forward,backward", "--quick"),
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {(row["backend"], row["direction"], row["shape"]): row for row in rows(cli)}
    assert {row["status"] for row in found.values()} == {"ok"}
    assert {row["kernels"] for (name, _, shape), row in found.items() if name in ("triton", "cuda") and "@" not in shape} == {"1"}
