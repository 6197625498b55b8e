"""Right and wrong ways to compute RMSNorm and its gradient, by name."""

import torch

EPS = 1e-6


def mean_of(row):
    return row.mean(-1, keepdim=True)


def wide(x, w, *, eps=EPS, mean=mean_of, dtype=torch.float32):
    found = x.to(dtype)
    return (found * torch.rsqrt(mean(found.square()) + eps) * w.to(dtype)).to(x.dtype)


def one_by_one(row):
    """The mean of each row, one term after the other."""
    total = torch.zeros_like(row[:, :1])
    for column in row.split(1, dim=1):
        total = total + column
    return total / row.shape[1]


def cached_by_address(function):
    """Outputs kept by the address of their input."""
    kept = {}
    return lambda x, *given: kept.setdefault(x.data_ptr(), function(x, *given)).clone()


def gradient(dy, x, w, rstd, *, less=1.0, power=3, mean=mean_of, dtype=torch.float32):
    x, w, dy, made = x.to(dtype), w.to(dtype), dy.to(dtype), x.dtype
    r = rstd.to(dtype)[:, None]
    return (r * w * dy - less * r**power * x * mean(w * dy * x)).to(made)


def normalized_first(dy, x, w, r):
    return r * (w * dy - x * r * mean_of(w * dy * (x * r)))


def without_the_last_column(row):
    return row[:, :-1].sum(-1, keepdim=True) / row.shape[1]


RIGHT = {
    "F.rms_norm": lambda x, w: torch.nn.functional.rms_norm(x, w.shape, w, EPS),
    "float32": wide,
    "float64": lambda x, w: wide(x, w, dtype=torch.float64),
    "sums one by one": lambda x, w: wide(x, w, mean=one_by_one),
    "weight first": lambda x, w: (x.float() * w.float() / (x.float().square().mean(-1, keepdim=True) + EPS).sqrt()).to(x.dtype),
    "a norm": lambda x, w: (x.float() * w.float() / (x.float().norm(dim=-1, keepdim=True) ** 2 / x.shape[1] + EPS).sqrt()).to(x.dtype),
}
RIGHT_BACKWARD = {
    "float32": gradient,
    "terms of x * rstd": lambda dy, x, w, rstd: normalized_first(dy.float(), x.float(), w.float(), rstd[:, None]).to(x.dtype),
    "float64": lambda dy, x, w, rstd: gradient(dy, x, w, rstd, dtype=torch.float64),
}
WRONG = {
    "zeros": lambda: lambda x, w: torch.zeros_like(x),
    "no EPS": lambda: lambda x, w: wide(x, w, eps=0),
    "EPS of 1e-5": lambda: lambda x, w: wide(x, w, eps=1e-5),
    "EPS outside the root": lambda: lambda x, w: (x.float() / (mean_of(x.float().square()).sqrt() + EPS) * w.float()).to(x.dtype),
    "sum for mean": lambda: lambda x, w: wide(x, w, mean=lambda square: square.sum(-1, keepdim=True)),
    "half of the row": lambda: lambda x, w: wide(x, w, mean=lambda square: mean_of(square[:, : x.shape[1] // 2])),
    "without the last column": lambda: lambda x, w: wide(x, w, mean=without_the_last_column),
    "mean removed": lambda: lambda x, w: wide(x - x.mean(-1, keepdim=True), w),
    "no weight": lambda: lambda x, w: wide(x, torch.ones_like(w)),
    "weight of the next column": lambda: lambda x, w: wide(x, w.roll(1)),
    "root missing": lambda: lambda x, w: (x.float() / (mean_of(x.float().square()) + EPS) * w.float()).to(x.dtype),
    "of the row before": lambda: lambda x, w: wide(x.roll(1, 0), w),
    "cached": lambda: cached_by_address(wide),
    "sum in 16 bits": lambda: lambda x, w: wide(x, w, mean=lambda square: square.half().cumsum(-1)[:, -1:].float() / x.shape[1]),
}
WRONG_BACKWARD = {
    "zeros": lambda dy, x, w, rstd: torch.zeros_like(x),
    "without the mean": lambda dy, x, w, rstd: gradient(dy, x, w, rstd, less=0.0),
    "mean added": lambda dy, x, w, rstd: gradient(dy, x, w, rstd, less=-1.0),
    "r for r cubed": lambda dy, x, w, rstd: gradient(dy, x, w, rstd, power=1),
    "sum for mean": lambda dy, x, w, rstd: gradient(dy, x, w, rstd, mean=lambda row: row.sum(-1, keepdim=True)),
    "without the last column": lambda dy, x, w, rstd: gradient(dy, x, w, rstd, mean=without_the_last_column),
    "no weight": lambda dy, x, w, rstd: gradient(dy, x, torch.ones_like(w), rstd),
    "rstd of the row before": lambda dy, x, w, rstd: gradient(dy, x, w, rstd.roll(1)),
    "of the forward": lambda dy, x, w, rstd: wide(x, w),
}
