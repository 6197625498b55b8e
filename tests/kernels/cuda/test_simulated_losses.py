"""The loss kernels on a simulated GPU: their indices and their arithmetic, without a GPU."""

import subprocess

from nvcc import needs_nvcc
from simulated import compiled


@needs_nvcc
def test_loss_kernels_agree_with_float64_on_a_simulated_gpu(tmp_path):
    program = compiled(tmp_path, "simulated_losses.cpp", "simulated")
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.split()[0]) > 1000
