"""Code that the Triton and the CUDA softmax kernels share. It needs neither Triton nor nvcc.

- `automatic.py`: `softmax` and `log_softmax` by the fastest kernels that work here; `softbench.kernels` has them.
- `override.py`: `use` and `enable`, by which torch's own functions run these kernels; `filter.py` and `filter.cpp`: its rule in C++.
- `rows.py`: tensors of any shape, strides and `dim` as (M, N) rows.
- `losses.py`: `cross_entropy` and `logprob` by the fastest kernels that work here; `loss_rows.py`: checks of what their kernels are given.
- `softmax.py`: `Softmax`, two launchers as a differentiable function without an operator.
- `registration.py`: what the operators register beside their kernels, which is gradients, vmap and flops.
- `allocation.py`: zeros that outlive the call.
- `cuda_toolkit.py`: the folder and the programs of a CUDA toolkit, and the cache of built libraries. It does not import torch.
"""
