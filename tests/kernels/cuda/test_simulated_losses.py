"""The loss kernels on a simulated GPU: their indices and their arithmetic, without a GPU."""

import subprocess

import pytest
from nvcc import needs_nvcc
from simulated import compiled

LENGTHS = (1, 3, 7, 8, 9, 17, 33, 64, 127, 255, 257, 512, 1000, 2047, 5001)
"""About the limits of vectors, CTAs and loops."""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("losses"), "simulated_losses.cpp", "simulated")


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("lengths", [pytest.param(LENGTHS, id="all"), pytest.param((1000,), id="one")])
def test_loss_kernels_agree_with_float64_on_a_simulated_gpu(program, lengths):
    done = subprocess.run([str(program), *map(str, lengths)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.split()[0]) > 60 * len(lengths)
