"""Backends made from functions, and the right formulas that the held-out plugins change."""

import torch


class Made:
    """One function of one operation and direction; `at` is the case of its run, as options of `softbench run`."""

    def __init__(self, function, op, direction, sets, prepared, at, traits, show):
        self.name, self.function, self.direction, self.sets, self.prepared = function.__name__, function, direction, sets, prepared
        self.show, self.over = show, isinstance(self, OverDim)
        self.op, self.at = op, {"M": "96", "N": "1000", "dtype": "fp32"} | at
        self.summary = function.__doc__.strip().splitlines()[0]
        names = ",".join(part.split("=")[0] for part in sets.split(",") if part)
        self.operations = (f"{op}({names})" if names else op,)
        vars(self).update(traits)

    def available(self):
        return None

    def supports(self, case):
        return None if case.direction == self.direction else f"it has {self.direction} only"

    def prepare(self, case):
        return self.function(case) if self.prepared else self.function


class OverRows(Made):
    """N-D tensors are brought to contiguous rows, which the function gets."""

    def over_dim(self, direction, op=None):
        function = self.function(None) if self.prepared else self.function
        return lambda *given: over_rows(function, *given)


class OverDim(Made):
    """The function takes any strides and a dimension."""

    def prepare(self, case):
        return lambda *given: self.function(*given, -1)

    def over_dim(self, direction, op=None):
        return self.function


def over_rows(function, *given):
    *tensors, dim = given
    moved = [tensor.movedim(dim, -1) for tensor in tensors]
    out = function(*(tensor.reshape(-1, tensor.shape[-1]).contiguous() for tensor in moved))
    return out.reshape(moved[0].shape).movedim(-1, dim)


def into(backends):
    """The decorator that makes a backend of a function and adds it to a list."""

    def made(op="softmax", direction="forward", sets="", over=False, prepared=False, traits=None, show=None, **at):
        kind = OverDim if over else OverRows if op in ("softmax", "log_softmax") and not sets and direction != "both" else Made

        def add(function):
            backends.append(kind(function, op, direction, sets, prepared, at, traits or {}, show))
            return function

        return add

    return made


def wide(x):
    return x if x.dtype == torch.float64 else x.float()


def softmax(x):
    return torch.softmax(wide(x), -1).to(x.dtype)


def top(x):
    """The maximum of each row in float32, 0 for rows without columns."""
    return x.float().amax(-1, keepdim=True) if x.shape[-1] else x.new_zeros((*x.shape[:-1], 1), dtype=torch.float32)


def gradient(dy, y):
    g, p = wide(dy), wide(y)
    return (p * (g - (p * g).sum(-1, keepdim=True))).to(y.dtype)


def log_softmax(x):
    return torch.log_softmax(wide(x), -1).to(x.dtype)


def log_gradient(dy, y):
    return (wide(dy) - wide(y).exp() * wide(dy).sum(-1, keepdim=True)).to(y.dtype)


def seen(x):
    """Which keys each query sees."""
    S, N = x.shape[-2:]
    return torch.arange(N, device=x.device) < torch.arange(S, device=x.device)[:, None] + 1 + max(0, N - S)


def attention(z, sink=None):
    """Softmax of float scores, with a sink of shape (H,)."""
    if sink is None:
        return torch.softmax(z, -1)
    column = sink.view(1, -1, 1, 1).expand(*z.shape[:-1], 1)
    return torch.softmax(torch.cat([z, column], -1), -1)[..., :-1]


def at(z, target):
    return z.gather(-1, target.clamp(0, z.shape[-1] - 1)[:, None])[:, 0]


def loss_of(x, target, e=0.0, z_loss=0.0, softcap=0.0, ignore=-100):
    z = wide(x)
    z = softcap * torch.tanh(z / softcap) if softcap else z
    lse = torch.logsumexp(z, -1)
    loss = -at(torch.log_softmax(z, -1), target)
    if e:
        loss = (1 - e) * loss + e * (lse - z.mean(-1))
    return torch.where(target == ignore, 0.0, loss + z_loss * lse**2 if z_loss else loss), lse


def loss_gradient(x, target, lse, dloss, e=0.0, z_loss=0.0, softcap=0.0, ignore=-100):
    z = wide(x)
    z = softcap * torch.tanh(z / softcap) if softcap else z
    p = (z - lse[:, None]).exp() * (1 + 2 * z_loss * lse[:, None])
    hot = torch.arange(z.shape[-1], device=z.device) == target[:, None]
    dx = (p - (1 - e) * hot - e / z.shape[-1]) * (1 - (z / softcap) ** 2 if softcap else 1)
    return torch.where((target == ignore)[:, None], 0.0, dloss[:, None] * dx).to(x.dtype)


def logprob_of(x, target):
    y = torch.log_softmax(wide(x), -1)
    d = wide(x).amax(-1, keepdim=True) - wide(x)
    entropy = torch.log(torch.exp(-d).sum(-1)) + torch.where(d == torch.inf, 0.0, y.exp() * d).sum(-1)
    return at(y, target), entropy


def logprob_gradient(x, target, lse, entropy, dlogprob, dentropy):
    y = wide(x) - lse[:, None]
    p = y.exp()
    hot = (torch.arange(y.shape[-1], device=y.device) == target[:, None]).to(y.dtype)
    second = dentropy[:, None] * torch.where(p == 0, 0.0, p * (y + entropy[:, None]))
    return (dlogprob[:, None] * (hot - p) - second).to(x.dtype)


def rms_norm(x, w, eps=1e-6):
    z = wide(x)
    return (z * torch.rsqrt(z.square().mean(-1, keepdim=True) + eps) * wide(w)).to(x.dtype)


def rms_gradient(dy, x, w, rstd):
    g, h = wide(dy) * wide(w), wide(x) * rstd[:, None]
    return (rstd[:, None] * (g - h * (g * h).mean(-1, keepdim=True))).to(x.dtype)
