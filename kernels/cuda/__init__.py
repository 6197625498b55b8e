"""softbench's CUDA C++ kernels of softmax, log_softmax and losses over rows. They import nothing of the benchmark.

- operator.py: `softmax` and `log_softmax`: PyTorch operators, differentiable and compilable
- launch.py: launches of the kernels, the plan that a launch takes, and both functions without an operator
- losses.py: cross entropy and logprob, without autograd, as functions and as PyTorch operators
- build.py: compiles the kernels by nvcc on first use, a library for each function
- disassemble.py: machine code, PTX and resources of the built library
- softmax.cu: the kernels, and which header has which tier; cross_entropy.cu and logprob.cu: the losses

`from softbench.kernels.cuda import softmax, log_softmax` are the operators. The import builds nothing and needs no GPU. The first call on
a GPU builds.
"""

from .operator import log_softmax as log_softmax, softmax as softmax
