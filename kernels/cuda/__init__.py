"""softbench's CUDA C++ softmax kernels. They import nothing of the benchmark.

- operator.py: `softmax`: a PyTorch operator, differentiable and compilable
- launch.py: launches of the kernels, and a softmax without an operator
- launch_plan.py: the launch plan that a launch takes
- build.py: compiles the kernels by nvcc on first use
- disassemble.py: machine code, PTX and resources of the built library
- softmax.cu: the kernels, and which header has which tier

`from softbench.kernels.cuda import softmax` is the operator. The import builds nothing and needs no GPU. The first call on a GPU builds.
"""

from .operator import softmax as softmax
