"""The mark of tests that compile CUDA code."""

import pytest
from softbench.kernels.cuda import build

needs_nvcc = pytest.mark.skipif(build.nvcc() is None, reason="no nvcc on this machine")
