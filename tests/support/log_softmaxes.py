"""Right and wrong ways to compute log-softmax and its gradient, by name. Each takes tensors of any dtype of a case."""

import math
import warnings

import torch
from rms_norms import cached_by_address

LOG2E = math.log2(math.e)
TILE = 256


def in_float32(function):
    """A function of float32 tensors; its result is rounded once."""
    return lambda *tensors: function(*(tensor.float() for tensor in tensors)).to(tensors[0].dtype)


def highest(x):
    return x.amax(-1, keepdim=True)


def total(x):
    return x.sum(-1, keepdim=True)


def one_by_one(terms):
    """The sum of each row, one term after the other, in the dtype of the terms."""
    found = torch.zeros_like(terms[..., 0])
    for column in terms.movedim(-1, 0).contiguous():
        found = found + column
    return found[..., None]


def normalized(x, total=total, high=None, log=torch.log, exp=torch.exp):
    below = x - (highest(x) if high is None else high)
    return below - log(total(exp(below)))


def online(x, guarded=True):
    """One pass over tiles with a running maximum, and a second one over the outputs."""
    high, so_far = torch.full_like(x[:, :1], -math.inf), torch.zeros_like(x[:, :1])
    for part in x.split(TILE, dim=-1):
        higher = torch.maximum(high, highest(part))
        safe = torch.where(higher == -math.inf, 0.0, higher) if guarded else higher
        so_far = so_far * torch.exp(high - safe) + total(torch.exp(part - safe))
        high = higher
    return (x - high) - torch.log(so_far)


def minus_logsumexp(x):
    return x - torch.logsumexp(x, -1, keepdim=True)


def fused_exponent(x):
    """exp2(fma(x, log2 e, -(max log2 e))) and log2, as kernels without exp do. The product in float64 is exact, so it is rounded once."""
    log2e, high = torch.tensor(LOG2E), torch.where(highest(x).isneginf(), 0.0, highest(x))
    exponent = (x.double() * log2e.double() - (high * log2e).double()).float()
    return (x - highest(x)) - torch.log2(total(torch.exp2(exponent))) * math.log(2)


def backward(dy, y, total=total):
    return dy - torch.exp(y) * total(dy)


def by_autograd(dy, y):
    """torch's gradient, which takes y from a forward."""
    return torch._log_softmax_backward_data(dy, y, -1, y.dtype)


def plain(x: torch.Tensor) -> torch.Tensor:
    below = x.float() - x.float().amax(-1, keepdim=True)
    return (below - below.exp().sum(-1, keepdim=True).log()).to(x.dtype)


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    scripted = torch.jit.script(plain)

RIGHT_FORWARD = {
    "torch": lambda x: torch.log_softmax(x, -1),
    "torch over another axis": lambda x: torch.log_softmax(x.t().contiguous(), 0).t().contiguous(),
    "two passes": in_float32(normalized),
    "serial sum": in_float32(lambda x: normalized(x, one_by_one)),
    "reversed serial sum": in_float32(lambda x: normalized(x, lambda terms: one_by_one(terms.flip(-1)))),
    "online": in_float32(online),
    "exp2 and log2": in_float32(
        lambda x: normalized(x, exp=lambda d: torch.exp2(d * LOG2E), log=lambda s: torch.log2(s) * math.log(2)),
    ),
    "minus logsumexp": in_float32(minus_logsumexp),
    "minus logsumexp, twice": in_float32(lambda x: minus_logsumexp(minus_logsumexp(x))),
    "fused exponent": in_float32(fused_exponent),
    "float64": lambda x: torch.log_softmax(x.double(), -1).to(x.dtype),
    "chunks of rows": in_float32(lambda x: torch.cat([normalized(rows) for rows in x.split(7)])),
    "torch.jit": scripted,
}
RIGHT_BACKWARD = {
    "torch": by_autograd,
    "float32": in_float32(backward),
    "serial sum": in_float32(lambda dy, y: backward(dy, y, one_by_one)),
    "exp2": in_float32(lambda dy, y: dy - torch.exp2(y * LOG2E) * total(dy)),
    "float64": lambda dy, y: backward(dy.double(), y.double()).to(y.dtype),
    "chunks of rows": in_float32(lambda dy, y: torch.cat([backward(*rows) for rows in zip(dy.split(7), y.split(7), strict=True)])),
}


def of_torch(x, dy, function=torch.log_softmax):
    y = function(x, -1)
    (dx,) = torch.autograd.grad(y, x, dy)
    return y.detach(), dx


def of_both(forward, backward):
    """y, and the gradient that takes this y."""

    def both(x, dy):
        y = forward(x.detach())
        return y, backward(dy, y)

    return both


LIMITED = {"minus logsumexp", "fused exponent", "torch"}
"""Right ways that may be of low precision: see the docstring of the bounds. torch is in 16 bits only."""
FOR_BOTH = ("two passes", "online", "exp2 and log2", "minus logsumexp", "fused exponent", "float64", "torch.jit")
"""Forwards whose gradient is tested too; y of the others is tested as a forward."""
RIGHT_BOTH = {"torch": of_torch} | {name: of_both(RIGHT_FORWARD[name], in_float32(backward)) for name in FOR_BOTH}


def short(x):
    """In 16 bits: bf16, if x is float32."""
    return x.bfloat16() if x.dtype == torch.float32 else x


def exp_in_16_bits(x):
    """The argument of exp and its result are rounded, and their sum is not."""
    e = torch.exp(short(x) - highest(short(x))).float()
    return ((x.float() - highest(x.float())) - torch.log(total(e))).to(x.dtype)


def sum_in_16_bits(x):
    below = x.float() - highest(x.float())
    return (below - torch.log(one_by_one(short(torch.exp(below).to(x.dtype))).float())).to(x.dtype)


def rounded_difference(x):
    """x - max is rounded to 16 bits before the logarithm is subtracted from it."""
    below = x.float() - highest(x.float())
    return (short(below.to(x.dtype)).float() - torch.log(total(torch.exp(below)))).to(x.dtype)


def nan_beside_masks(x):
    y = torch.log_softmax(x, -1)
    return torch.where(x.isneginf().any(-1, keepdim=True), math.nan, y)


class Stale:
    """The output of the call before, from the second call on."""

    def __init__(self):
        self.kept = None

    def __call__(self, x):
        y = torch.log_softmax(x, -1)
        if self.kept is None or self.kept.shape != y.shape:
            self.kept = y.clone()
        y, self.kept = self.kept, y
        return y.clone()


WRONG_FORWARD = {
    "zeros": lambda: torch.zeros_like,
    "softmax": lambda: lambda x: torch.softmax(x, -1),
    "over the rows": lambda: lambda x: torch.log_softmax(x, 0),
    "log of softmax": lambda: in_float32(lambda x: torch.log(torch.softmax(x, -1))),
    "no maximum subtracted": lambda: in_float32(lambda x: x - torch.log(total(torch.exp(x)))),
    "maximum of half of the row": lambda: in_float32(lambda x: normalized(x, high=highest(x[:, : -(-x.shape[1] // 2)]))),
    "sum without the last column": lambda: in_float32(lambda x: normalized(x, lambda e: total(e[:, :-1]))),
    "sum without the first column": lambda: in_float32(lambda x: normalized(x, lambda e: total(e[:, 1:]))),
    "log2 for log": lambda: in_float32(lambda x: normalized(x, log=torch.log2)),
    "log1p for log": lambda: in_float32(lambda x: normalized(x, log=torch.log1p)),
    "exp in 16 bits": lambda: exp_in_16_bits,
    "sum in 16 bits": lambda: sum_in_16_bits,
    "difference rounded to 16 bits": lambda: rounded_difference,
    "logarithm of another row": lambda: in_float32(lambda x: normalized(x, lambda e: total(e).roll(1, 0))),
    "one logarithm for all rows": lambda: in_float32(lambda x: normalized(x, lambda e: total(e)[:1])),
    "largest output is zero": lambda: in_float32(lambda x: x - highest(x)),
    "online without rescaling": lambda: in_float32(lambda x: normalized(x, lambda e: total(e) + total(e[:, :TILE]) * 0.01)),
    "masks of a finite number": lambda: lambda x: torch.log_softmax(x.clamp_min(-1e4), -1),
    "masks of zero": lambda: lambda x: torch.log_softmax(x, -1).nan_to_num(nan=math.nan, neginf=0.0),
    "a masked row of zeros": lambda: lambda x: torch.where(x.isneginf().all(-1, keepdim=True), 0.0, torch.log_softmax(x, -1)),
    "NaN swallowed": lambda: lambda x: torch.log_softmax(x.nan_to_num(nan=-math.inf, neginf=-math.inf), -1),
    "stale rows": Stale,
    "cached": lambda: cached_by_address(lambda x: torch.log_softmax(x, -1)),
}
WRONG_BACKWARD = {
    "zeros": lambda dy, y: torch.zeros_like(y),
    "without the sum": lambda dy, y: dy.clone(),
    "softmax's formula": in_float32(lambda dy, y: y * (dy - total(y * dy))),
    "softmax's formula of exp(y)": in_float32(lambda dy, y: torch.exp(y) * (dy - total(torch.exp(y) * dy))),
    "y for exp(y)": in_float32(lambda dy, y: dy - y * total(dy)),
    "mean for sum": in_float32(lambda dy, y: dy - torch.exp(y) * dy.mean(-1, keepdim=True)),
    "sum of absolute values": in_float32(lambda dy, y: backward(dy, y, lambda dy: total(dy.abs()))),
    "sum without the last column": in_float32(lambda dy, y: backward(dy, y, lambda dy: total(dy[:, :-1]))),
    "sum of another row": in_float32(lambda dy, y: backward(dy, y, lambda dy: total(dy).roll(1, 0))),
    "sum in 16 bits": lambda dy, y: (dy.float() - torch.exp(y.float()) * one_by_one(short(dy)).float()).to(y.dtype),
    "exp in 16 bits": lambda dy, y: (dy.float() - torch.exp(short(y)).float() * total(dy.float())).to(y.dtype),
    "product rounded to 16 bits": lambda dy, y: (dy.float() - short((torch.exp(y.float()) * total(dy.float())).to(y.dtype)).float()).to(
        y.dtype
    ),
    "NaN where y is -inf": in_float32(lambda dy, y: dy - torch.exp(y) * total(dy) + 0 * y),
}
WRONG_BOTH = {
    "zeros": lambda x, dy: (torch.zeros_like(dy), torch.zeros_like(dy)),
    "zeros for dx": lambda x, dy: (torch.log_softmax(x.detach(), -1), torch.zeros_like(dy)),
    "zeros for y": lambda x, dy: (torch.zeros_like(dy), of_torch(x, dy)[1]),
    "softmax": lambda x, dy: of_torch(x, dy, torch.softmax),
    "gradient without the sum": lambda x, dy: (torch.log_softmax(x.detach(), -1), dy.clone()),
    "gradient of softmax": lambda x, dy: (torch.log_softmax(x.detach(), -1), of_torch(x, dy, torch.softmax)[1]),
}
