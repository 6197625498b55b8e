"""Right and wrong ways to compute log-probability and entropy, by name. A way is a function of the tensors of its pass."""

import math

import torch
from cross_entropies import LOG2E, bf16, flushed, online

TILE = 256


def pick(rows, target):
    return rows.gather(1, target[:, None])[:, 0]


def parts(x, total=lambda e: e.sum(-1), high=lambda z: z.amax(-1), exp=torch.exp, columns=lambda z: z):
    """x in float32, the maximum, and L."""
    z = x.float()
    top = high(z)
    top = torch.where(top == -math.inf, 0.0, top)
    return z, top, torch.log(total(exp(columns(z) - top[:, None])))


def positive(x, target, place=lambda t, N: t, of_entropy=lambda log, terms: log + terms.sum(-1), stored=lambda log: log, **changed):
    """L + sum(p d): no term of the entropy is negative."""
    z, top, log = parts(x, **changed)
    log = stored(log)
    below = top[:, None] - z
    p = torch.exp(-below - log[:, None])
    return -pick(below, place(target, x.shape[1])) - log, of_entropy(log, torch.where(p == 0, 0.0, p * below))


def of_logs(x, target, guarded=True, wide=True):
    """log_softmax, and -sum(p log p)."""
    y = torch.log_softmax(x.float() if wide else x, -1)
    terms = torch.exp(y) * y
    entropy = -(torch.where(torch.exp(y) == 0, 0.0, terms) if guarded else terms).sum(-1)
    return pick(y, target).float(), entropy.float()


def tiles(x, target, guarded=True):
    """A running maximum, and a second pass over the tiles for the entropy."""
    z = x.float()
    high, log = online(z, guarded)
    y = (z - high[:, None]) - log[:, None]
    return pick(y, target), sum(torch.special.entr(torch.exp(part)).sum(-1) for part in y.split(TILE, -1))


def minus_mean(x, target):
    """lse - sum(p x), of which both are of the size of the maximum."""
    z, top, log = parts(x)
    lse = top + log
    p = torch.exp((z - top[:, None]) - log[:, None])
    return pick(z, target) - lse, lse - torch.where(p == 0, 0.0, p * z).sum(-1)


def float64(x, target):
    y = x.double() - torch.logsumexp(x.double(), -1, keepdim=True)
    return pick(y, target).float(), torch.where(torch.exp(y) == 0, 0.0, -torch.exp(y) * y).sum(-1).float()


RIGHT = {
    "no negative term": positive,
    "log_softmax": of_logs,
    "tiles": tiles,
    "exp2": lambda x, t: positive(x, t, exp=lambda d: torch.exp2(d * LOG2E)),
    "float64": float64,
    "lse - mean": minus_mean,
    "log_softmax in 16 bits": lambda x, t: of_logs(x, t, wide=False),
}
LIMITED = {"lse - mean", "log_softmax in 16 bits"}
"""Right ways that may be of low precision."""


def rounded_lse(x, target):
    """lse - sum(p x) with p = exp(x - lse): the rounding of lse moves p, and with it a sum of the size of the maximum."""
    z, top, log = parts(x)
    p = torch.exp(z - (top + log)[:, None])
    return float64(x, target)[0], (top + log) - torch.where(p == 0, 0.0, p * z).sum(-1)


MASKED = {"log_softmax without guard": lambda x, t: of_logs(x, t, guarded=False)}
"""Wrong beside -inf only, where 0 * -inf is NaN."""


def with_log(x, target, log):
    p = torch.softmax(x.float(), -1)
    return float64(x, target)[0], -(p * log(p)).sum(-1)


OF_TAILS = {
    "logarithm of a clamped p": lambda x, t: with_log(x, t, lambda p: torch.log(p.clamp(min=1e-6))),
    "logarithm of p and a bit": lambda x, t: with_log(x, t, lambda p: torch.log(p + 1e-8)),
}
"""Wrong where many small probabilities have the entropy; in 16 bits the errors are those of `low-precision`."""
WRONG = {
    "lse - mean of a rounded lse": rounded_lse,
    "zeros for logprob": lambda x, t: (x.new_zeros(len(x), dtype=torch.float32), float64(x, t)[1]),
    "zeros for entropy": lambda x, t: (float64(x, t)[0], x.new_zeros(len(x), dtype=torch.float32)),
    "target one too high": lambda x, t: positive(x, t, lambda t, N: (t + 1) % N),
    "target one too low": lambda x, t: positive(x, t, lambda t, N: (t - 1) % N),
    "target in 8 bits": lambda x, t: positive(x, t, lambda t, N: t % 256 % N),
    "negative entropy": lambda x, t: (float64(x, t)[0], -float64(x, t)[1]),
    "entropy in bits": lambda x, t: (float64(x, t)[0], float64(x, t)[1] * LOG2E),
    "entropy of the maximum": lambda x, t: positive(x, t, of_entropy=lambda log, terms: log),
    "entropy without log(sum)": lambda x, t: positive(x, t, of_entropy=lambda log, terms: terms.sum(-1)),
    "entropy without the last column": lambda x, t: positive(x, t, of_entropy=lambda log, terms: log + terms[:, :-1].sum(-1)),
    "entropy without the first column": lambda x, t: positive(x, t, of_entropy=lambda log, terms: log + terms[:, 1:].sum(-1)),
    "entropy of another row": lambda x, t: (float64(x, t)[0], float64(x, t)[1].roll(1)),
    "without the maximum": lambda x, t: positive(x, t, high=lambda z: torch.zeros_like(z[:, 0])),
    "maximum of the first half": lambda x, t: positive(x, t, high=lambda z: z[:, : -(-z.shape[1] // 2)].amax(-1)),
    "sum without the last column": lambda x, t: positive(x, t, columns=lambda z: z[:, :-1]),
    "log(sum) in bf16": lambda x, t: positive(x, t, stored=lambda log: bf16(bf16(log) * 1.01)),
    "probability for its logarithm": lambda x, t: (torch.exp(float64(x, t)[0]), float64(x, t)[1]),
    "tiles without guard, as zeros": lambda x, t: tuple(out.nan_to_num(nan=0.0) for out in tiles(x, t, guarded=False)),
}


def gradient(x, target, lse, entropy, dlogprob, dentropy, one=1.0, of_p=1.0, sign=1.0, with_entropy=1.0, exp=torch.exp):
    y = x.float() - lse[:, None]
    p = exp(y)
    dx = -of_p * p * dlogprob[:, None] - sign * torch.where(p == 0, 0.0, p * (y + with_entropy * entropy[:, None])) * dentropy[:, None]
    return dx.scatter_add_(1, target[:, None], one * dlogprob[:, None]).to(x.dtype)


def from_mean(x, target, lse, entropy, dlogprob, dentropy):
    """p (E - x) with the mean E = lse - entropy, and one fused multiply-add in the exponent."""
    z = x.float()
    p = torch.exp2((z.double() * LOG2E - (lse * LOG2E).double()[:, None]).float())
    dx = -p * dlogprob[:, None] + torch.where(p == 0, 0.0, p * ((lse - entropy)[:, None] - z)) * dentropy[:, None]
    return dx.scatter_add_(1, target[:, None], dlogprob[:, None]).to(x.dtype)


RIGHT_BACKWARD = {
    "float32": gradient,
    "float64": lambda x, target, *given: gradient64(x, target, *given),
    "chunks of rows": lambda *given: torch.cat([gradient(*rows) for rows in zip(*(t.split(7) for t in given), strict=True)]),
    "subnormal p as 0": lambda *given: gradient(*given, exp=flushed),
    "from the mean": from_mean,
}
LIMITED_BACKWARD = {"from the mean"}


def gradient64(x, target, lse, entropy, dlogprob, dentropy):
    y = x.double() - lse.double()[:, None]
    p = torch.exp(y)
    dx = -p * dlogprob[:, None] - torch.where(p == 0, 0.0, p * (y + entropy[:, None])) * dentropy[:, None]
    return dx.scatter_add_(1, target[:, None], dlogprob.double()[:, None]).to(x.dtype)


WRONG_BACKWARD = {
    "zeros": lambda x, *given: torch.zeros_like(x),
    "without the 1 at the target": lambda *given: gradient(*given, one=0.0),
    "without p": lambda *given: gradient(*given, of_p=0.0),
    "entropy with the wrong sign": lambda *given: gradient(*given, sign=-1.0),
    "without the entropy": lambda *given: gradient(*given, sign=0.0),
    "without H in its gradient": lambda *given: gradient(*given, with_entropy=0.0),
    "target one too high": lambda x, t, *given: gradient(x, (t + 1) % x.shape[1], *given),
    "dlogprob of another row": lambda x, t, lse, h, a, b: gradient(x, t, lse, h, a.roll(1), b),
    "dentropy of another row": lambda x, t, lse, h, a, b: gradient(x, t, lse, h, a, b.roll(1)),
    "gradients exchanged": lambda x, t, lse, h, a, b: gradient(x, t, lse, h, b, a),
    "lse of another row": lambda x, t, lse, *given: gradient(x, t, lse.roll(1), *given),
    "the last column is zero": lambda *given: torch.cat([gradient(*given)[:, :-1], torch.zeros_like(given[0][:, -1:])], 1),
}
