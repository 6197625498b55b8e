"""The judge on a CPU."""

import pytest
import torch

from softbench.judge.judgement import Judge
from softbench.judge.main import readable_folders
from softbench.processes.worker_pool import Pool


@pytest.fixture(scope="module")
def judge(forked):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with Pool(threads=1) as pool:
        yield Judge(pool, {"CUDA_VISIBLE_DEVICES": ""}, readable_folders(), {"import": 60, "build": 60, "time": 60}, challenges=1)
    torch.set_num_threads(threads)
