"""Code that the Triton and the CUDA kernels share. It needs neither Triton nor nvcc, and imports none of them.

- `rows.py`: tensors of any shape, strides and `dim` as (M, N) rows.
- `softmax.py`: `Softmax`, two launchers as a differentiable function without an operator.
- `losses.py`: what the losses are, and checks of what their kernels are given.
- `operator.py`: operators of softmax and log_softmax with a kernel in Python.
- `registration.py`: what the operators register beside their kernels, which is gradients, vmap and flops.
- `extension.py`: the operators in C++, where g++ has built them.
- `allocation.py`: zeros that outlive the call.
- `cuda_toolkit.py`: the folder and the programs of a CUDA toolkit, and the cache of built libraries. It does not import torch.
"""
