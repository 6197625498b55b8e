"""The marks of tests that compile CUDA code or read machine code."""

import pytest
from softbench.kernels.common.cuda_toolkit import cuobjdump
from softbench.kernels.cuda import build

needs_nvcc = pytest.mark.skipif(build.nvcc() is None, reason="no nvcc on this machine")
needs_cuobjdump = pytest.mark.skipif(cuobjdump() is None, reason="no cuobjdump, which reads machine code")
