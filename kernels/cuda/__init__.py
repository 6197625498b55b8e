"""softbench's CUDA C++ softmax kernels. Nothing here imports the benchmarking side.

    operator.py  `softmax`: ours as a PyTorch operator, differentiable and compiled
    launch.py    the kernels' launches, and a softmax of them without an operator
    build.py     nvcc, on first use

`from softbench.kernels.cuda import softmax` is the operator. Importing it builds nothing and needs no GPU; the first call on one builds.
"""

from .operator import softmax as softmax
