"""Right and wrong ways to compute the operation that docs/operations.md shows, LayerNorm and its gradient, by name."""

import torch
from rms_norms import cached_by_address, mean_of, one_by_one, without_the_last_column

EPS = 1e-5


def wide(x, w, *, eps=EPS, centre=mean_of, mean=mean_of, dtype=torch.float32):
    below = x.to(dtype) - centre(x.to(dtype))
    return (below * torch.rsqrt(mean(below.square()) + eps) * w.to(dtype)).to(x.dtype)


def one_pass(x, w):
    """The variance as mean(x^2) - mean(x)^2, which has no digits where the mean is large."""
    found = x.float()
    variance = (mean_of(found.square()) - mean_of(found).square()).clamp_min(0)
    return ((found - mean_of(found)) * torch.rsqrt(variance + EPS) * w.float()).to(x.dtype)


def gradient(dy, x, w, *, less=1.0, power=1, mean=mean_of, centred=1.0, dtype=torch.float32):
    x, w, dy, made = x.to(dtype), w.to(dtype), dy.to(dtype), x.dtype
    below = x - mean_of(x)
    r = torch.rsqrt(mean_of(below.square()) + EPS)
    g, h = w * dy, below * r**power
    return (r * (g - centred * mean_of(g) - less * h * mean(g * h))).to(made)


RIGHT = {
    "F.layer_norm": lambda x, w: torch.nn.functional.layer_norm(x, w.shape, w, None, EPS),
    "float32": wide,
    "float64": lambda x, w: wide(x, w, dtype=torch.float64),
    "sums one by one": lambda x, w: wide(x, w, centre=one_by_one, mean=one_by_one),
    "a root": lambda x, w: ((x.float() - mean_of(x.float())) * w.float() / (x.float().var(-1, False, keepdim=True) + EPS).sqrt()).to(
        x.dtype
    ),
}
RIGHT_BACKWARD = {"float32": gradient, "float64": lambda dy, x, w: gradient(dy, x, w, dtype=torch.float64)}
WRONG = {
    "zeros": lambda: lambda x, w: torch.zeros_like(x),
    "no EPS": lambda: lambda x, w: wide(x, w, eps=0),
    "EPS of 1e-6": lambda: lambda x, w: wide(x, w, eps=1e-6),
    "EPS outside the root": lambda: (
        lambda x, w: ((x.float() - mean_of(x.float())) / (x.float().std(-1, False, keepdim=True) + EPS) * w.float()).to(x.dtype)
    ),
    "sum for mean": lambda: lambda x, w: wide(x, w, mean=lambda square: square.sum(-1, keepdim=True)),
    "half of the row": lambda: lambda x, w: wide(x, w, mean=lambda square: mean_of(square[:, : x.shape[1] // 2])),
    "without the last column": lambda: lambda x, w: wide(x, w, mean=without_the_last_column),
    "mean kept": lambda: lambda x, w: wide(x, w, centre=lambda row: 0.0),
    "mean without the last column": lambda: lambda x, w: wide(x, w, centre=without_the_last_column),
    "variance of N - 1": lambda: lambda x, w: wide(x, w, mean=lambda square: square.sum(-1, keepdim=True) / (x.shape[1] - 1)),
    "variance in one pass": lambda: one_pass,
    "no weight": lambda: lambda x, w: wide(x, torch.ones_like(w)),
    "weight of the next column": lambda: lambda x, w: wide(x, w.roll(1)),
    "root missing": lambda: (
        lambda x, w: ((x.float() - mean_of(x.float())) / (x.float().var(-1, False, keepdim=True) + EPS) * w.float()).to(x.dtype)
    ),
    "of the row before": lambda: lambda x, w: wide(x.roll(1, 0), w),
    "cached": lambda: cached_by_address(wide),
    "sum in 16 bits": lambda: lambda x, w: wide(x, w, mean=lambda square: square.half().cumsum(-1)[:, -1:].float() / x.shape[1]),
}
WRONG_BACKWARD = {
    "zeros": lambda dy, x, w: torch.zeros_like(x),
    "without the product's mean": lambda dy, x, w: gradient(dy, x, w, less=0.0),
    "without the mean": lambda dy, x, w: gradient(dy, x, w, centred=0.0),
    "mean added": lambda dy, x, w: gradient(dy, x, w, less=-1.0),
    "h without its quotient": lambda dy, x, w: gradient(dy, x, w, power=0),
    "sum for mean": lambda dy, x, w: gradient(dy, x, w, mean=lambda row: row.sum(-1, keepdim=True)),
    "without the last column": lambda dy, x, w: gradient(dy, x, w, mean=without_the_last_column),
    "no weight": lambda dy, x, w: gradient(dy, x, torch.ones_like(w)),
    "of the forward": lambda dy, x, w: wide(x, w),
}
