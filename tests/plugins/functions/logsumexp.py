"""A softmax of your own, as softbench takes it: softbench run --plugin logsumexp.py"""

import torch


def softmax(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    wide = wide - torch.logsumexp(wide, dim=-1, keepdim=True)  # twice: far from zero the first logarithm is rounded
    return torch.exp(wide - torch.logsumexp(wide, dim=-1, keepdim=True)).to(x.dtype)


def softmax_backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    dy32, y32 = dy.float(), y.float()
    return (y32 * (dy32 - torch.linalg.vecdot(dy32, y32)[:, None])).to(y.dtype)
