"""The functions of `softbench.kernels`: each call is run by the fastest kernels that work here. It may import all other kernels.

- `choice.py`: the rule; `which` says what it decides and why, and `build` builds the CUDA kernels.
- `softmax.py`: `softmax` and `log_softmax`. `losses.py`: `cross_entropy` and `logprob`, by the operators of `loss_operators.py`.
  `masked_softmax.py`: softmax of attention scores. `modules.py`: modules of torch.nn that call them.
  `linear_cross_entropy.py`: the loss of hidden states and a weight.
  `vocabulary_parallel.py`: losses of a vocabulary that is split across processes.
- `override.py`: `use` and `enable`, by which torch's own functions run these kernels.
"""
