"""Code that the Triton and the CUDA softmax kernels share. It needs PyTorch, but neither Triton nor nvcc.

rows.py          tensors of any shape, strides and `dim` as (M, N) rows
softmax.py       `Softmax`: two launchers as a differentiable function, without an operator
registration.py  what the operators register beside their kernels: gradients, vmap, flops
allocation.py    zeros that outlive the call
"""
