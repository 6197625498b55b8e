"""The cases of `softbench check` on our kernels. One case needs most of the card's memory."""

import json

import pytest

from softbench.ops.rowwise import OVER_INT32

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

LARGE = f"shape {OVER_INT32}"


def findings(cli, backends, direction, pattern):
    done = cli("check", "--backends", backends, "--direction", direction, "--case", pattern, "--json", "-", timeout=580)
    found = json.loads(done.stdout)["findings"]
    assert done.returncode == 0, done.stderr
    assert all(finding["worst"] <= 1 for finding in found if finding["verdict"] == "pass")
    return found


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("backend", ["cuda", "triton", "triton-row", "triton-tile"])
def test_our_kernels_pass_every_check_case(cli, backend, direction):
    found = findings(cli, backend, direction, f"!{LARGE}")
    assert {finding["verdict"] for finding in found} <= {"pass", "skipped"}
    skipped = {finding["item"] for finding in found if finding["verdict"] == "skipped"}
    assert skipped == ({"shape 3x262145", "shape 1x524294"} if backend == "triton-row" else set())  # a row must fit one program


@pytest.mark.alone  # needs 52 GB at once
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_our_kernels_pass_over_2_to_the_31_elements(cli, direction):
    found = findings(cli, "cuda,triton,triton-row,triton-tile", direction, LARGE)
    assert {finding["backend"] for finding in found} == {"cuda", "triton", "triton-row", "triton-tile"}
    assert {finding["verdict"] for finding in found} == {"pass"}
