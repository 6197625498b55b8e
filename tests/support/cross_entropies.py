"""Right and wrong ways to compute cross entropy, by name. A way is a function of a case that returns the function of its tensors."""

import math
from dataclasses import dataclass, replace
from functools import partial

import torch

from softbench.core.case import Direction
from softbench.ops.registry import operation

F, B, FUSED = Direction.FORWARD, Direction.BACKWARD, Direction.FUSED
LOG2E = math.log2(math.e)
TILE = 256


@dataclass(frozen=True)
class Steps:
    """The steps of a kernel that computes in float32; a wrong kernel has one of them wrong."""

    ignore: int
    smoothing: float
    z_loss: float
    cap: float
    exp: object = torch.exp
    tanh: object = torch.tanh
    total: object = lambda terms: terms.sum(-1)
    high: object = lambda z: z.amax(-1)
    target: object = lambda t, N: t
    columns: object = lambda z: z
    stored: object = lambda lse: lse
    exact: bool = True
    """(max - z_t) + L; else lse - z_t."""
    one: float = 1.0
    scale: object = lambda dloss: dloss
    ignored: object = lambda target, ignore: target == ignore
    square: object = lambda lse: lse * lse
    twice: float = 2.0
    slope: object = lambda t: 1 - t * t
    even: object = lambda N: 1 / N

    def z(self, x):
        return self.cap * self.tanh(x.float() / self.cap) if self.cap else x.float()

    def logs(self, z):
        """The maximum, L and lse of each row."""
        high = self.high(z)
        high = torch.where(high == -math.inf, 0.0, high)
        log = torch.log(self.total(self.exp(self.columns(z) - high[:, None])))
        return high, log, self.stored(high + log)

    def places(self, target, N):
        ignored = self.ignored(target, self.ignore)
        return ignored, self.target(torch.where(ignored, 0, target), N).clamp(0, N - 1)[:, None]

    def loss(self, z, target, high, log, lse):
        ignored, places = self.places(target, z.shape[1])
        of_target = z.gather(1, places)[:, 0]
        loss = (1 - self.smoothing) * ((high - of_target) + log if self.exact else lse - of_target)
        if self.smoothing:
            mean = (high[:, None] - z).mean(-1) + log if self.exact else lse - z.mean(-1)
            loss = loss + self.smoothing * mean * (self.even(z.shape[1]) * z.shape[1])
        if self.z_loss:
            loss = loss + self.z_loss * self.square(lse)
        return torch.where(ignored, 0.0, loss)

    def dx(self, x, z, p, lse, target, dloss):
        N = z.shape[1]
        ignored, places = self.places(target, N)
        dz = p * (1 + self.twice * self.z_loss * lse)[:, None] - self.smoothing * self.even(N)
        dz.scatter_add_(1, places, torch.full_like(lse, -self.one * (1 - self.smoothing))[:, None])
        if self.cap:
            dz = dz * self.slope(self.tanh(x.float() / self.cap))
        return torch.where(ignored[:, None], 0.0, dz * self.scale(dloss)[:, None]).to(x.dtype)

    def forward(self, x, target):
        z = self.z(x)
        high, log, lse = self.logs(z)
        return self.loss(z, target, high, log, lse), lse

    def backward(self, x, target, lse, dloss):
        z = self.z(x)
        return self.dx(x, z, self.exp(z - self.stored(lse)[:, None]), lse, target, dloss)

    def fused(self, x, target):
        z = self.z(x)
        high, log, lse = self.logs(z)
        p = self.exp((z - high[:, None]) - log[:, None]) if self.exact else self.exp(z - lse[:, None])
        return self.loss(z, target, high, log, lse), self.dx(x, z, p, lse, target, torch.ones_like(lse))


def of(case, **changed):
    """The function of a case with these steps."""
    values = operation(case.op).parameter_values
    given = Steps(values["ignore_index"], values["label_smoothing"], values["z_loss"], values["softcap"])
    return getattr(replace(given, **changed), str(case.direction))


def flushed(y):
    """exp by a GPU's ex2.approx.ftz, which has 0 in place of a subnormal number."""
    p = torch.exp(y)
    return torch.where(p < torch.finfo(torch.float32).tiny, 0.0, p)


def one_by_one(terms, rounded=lambda total: total):
    """The sum of each row, one term after the other."""
    found = torch.zeros_like(terms[:, 0])
    for column in terms.t().contiguous():
        found = rounded(found + column)
    return found


def online(z, guarded=True):
    """The maximum and the logarithm of a row in tiles with a running maximum."""
    high, so_far = torch.full_like(z[:, 0], -math.inf), torch.zeros_like(z[:, 0])
    for part in z.split(TILE, dim=-1):
        higher = torch.maximum(high, part.amax(-1))
        safe = torch.where(higher == -math.inf, 0.0, higher) if guarded else higher
        so_far = so_far * torch.exp(high - safe) + torch.exp(part - safe[:, None]).sum(-1)
        high = higher
    return high, torch.log(so_far)


@dataclass(frozen=True)
class Online(Steps):
    guarded: bool = True

    def logs(self, z):
        high, log = online(z, self.guarded)
        high = torch.where(high == -math.inf, 0.0, high) if self.guarded else high
        return high, log, high + log


@dataclass(frozen=True)
class Binary(Steps):
    """In powers of two: one fused multiply-add for each exponent, and an lse that is scaled last, as kernels without exp have it."""

    def exponents(self, z, high):
        return (z.double() * float(torch.tensor(LOG2E)) - (high * LOG2E).double()[:, None]).float()

    def logs(self, z):
        high = torch.where(z.amax(-1) == -math.inf, 0.0, z.amax(-1))
        log = torch.log2(torch.exp2(self.exponents(z, high)).sum(-1))
        return high, log * math.log(2), (high * LOG2E + log) * math.log(2)

    def fused(self, x, target):
        z = self.z(x)
        high, log, lse = self.logs(z)
        return self.loss(z, target, high, log, lse), self.dx(x, z, torch.exp2(self.exponents(z, lse)), lse, target, torch.ones_like(lse))

    def backward(self, x, target, lse, dloss):
        z = self.z(x)
        return self.dx(x, z, torch.exp2(self.exponents(z, lse)), lse, target, dloss)


def as_class(kind, case, **changed):
    made = of(case).__self__
    return getattr(kind(made.ignore, made.smoothing, made.z_loss, made.cap, **changed), str(case.direction))


def float64(case):
    """The definition, in float64."""
    given = of(case).__self__

    def call(x, target, *rest):
        z = given.cap * torch.tanh(x.double() / given.cap) if given.cap else x.double()
        lse = torch.logsumexp(z, -1)
        if case.direction is B:
            lse = rest[0].double()
        dloss = rest[1].double() if rest else torch.ones_like(lse)
        dx = given.dx(x.double(), z, torch.exp(z - lse[:, None]), lse, target, dloss).to(x.dtype)
        if case.direction is B:
            return dx
        loss = given.loss(z, target, z.amax(-1), lse - z.amax(-1), lse).float()
        return (loss, lse.float()) if case.direction is F else (loss, dx)

    return call


def of_torch(case, wide=True):
    """F.cross_entropy and its gradient by autograd; without `wide` in the dtype of the case."""
    given = of(case).__self__

    def loss_of(z, target):
        loss = torch.nn.functional.cross_entropy(z, target, ignore_index=given.ignore, label_smoothing=given.smoothing, reduction="none")
        if given.z_loss:
            loss = loss + torch.where(target == given.ignore, 0.0, given.z_loss * torch.logsumexp(z, -1).square())
        return loss

    def logits(x):
        x = x.float() if wide else x
        return given.cap * torch.tanh(x / given.cap) if given.cap else x

    def forward(x, target):
        return loss_of(logits(x), target).float(), torch.logsumexp(logits(x.float()), -1)

    def fused(x, target):
        leaf = x.detach().requires_grad_()
        loss = loss_of(logits(leaf), target)
        (dx,) = torch.autograd.grad(loss.sum(), leaf)
        return loss.detach().float(), dx

    return forward if case.direction is F else fused


ALL = (F, B, FUSED)
RIGHT = {
    "two passes": (of, ALL),
    "serial sum": (partial(of, total=one_by_one), (F, FUSED)),
    "tiles": (partial(as_class, Online), ALL),
    "exp2": (partial(of, exp=lambda d: torch.exp2(d * LOG2E)), ALL),
    "subnormal p as 0": (partial(of, exp=flushed), ALL),
    "float64": (float64, ALL),
    "torch": (of_torch, (F, FUSED)),
    "lse first": (partial(of, exact=False), (F, FUSED)),
    "powers of two": (partial(as_class, Binary), ALL),
    "tanh by exp": (partial(of, tanh=lambda x: 1 - 2 / (torch.exp(2 * x) + 1)), ALL),
    "torch in 16 bits": (partial(of_torch, wide=False), (F, FUSED)),
}
"""The maker and the directions of each."""
LIMITED = {"lse first", "powers of two", "tanh by exp", "torch in 16 bits"}
"""Right ways that may be of low precision."""


def bf16(tensor):
    return tensor.bfloat16().float()


WRONG = {
    "target one too high": (partial(of, target=lambda t, N: (t + 1) % N), ALL),
    "target one too low": (partial(of, target=lambda t, N: (t - 1) % N), ALL),
    "target in 16 bits": (partial(of, target=lambda t, N: t % 256), ALL),
    "ignore_index ignored": (partial(of, ignored=lambda target, ignore: torch.zeros_like(target, dtype=torch.bool)), ALL),
    "every negative target counts": (partial(of, ignored=lambda target, ignore: target == 0), ALL),
    "lse in bf16": (partial(of, stored=bf16), (F, B)),
    "exp in bf16": (partial(of, exp=lambda d: bf16(torch.exp(bf16(d)))), (F,)),
    "sum in bf16": (partial(of, total=lambda e: one_by_one(e, bf16)), (F, FUSED)),
    "sum without the last column": (partial(of, columns=lambda z: z[:, :-1]), (F, FUSED)),
    "sum without the first tile": (partial(of, columns=lambda z: z[:, TILE:]), (F, FUSED)),
    "without the maximum": (partial(of, high=lambda z: torch.zeros_like(z[:, 0])), (F, FUSED)),
    "maximum of the first half": (partial(of, high=lambda z: z[:, : -(-z.shape[1] // 2)].amax(-1)), (F, FUSED)),
    "without the 1 at the target": (partial(of, one=0.0), (B, FUSED)),
    "without dloss": (partial(of, scale=torch.ones_like), (B,)),
    "dloss of another row": (partial(of, scale=lambda dloss: dloss.roll(1)), (B,)),
    "log2 for log": (partial(of, stored=lambda lse: lse * LOG2E, exact=False), (F, FUSED)),
    "lse of another row": (partial(of, stored=lambda lse: lse.roll(1), exact=False), (F, B, FUSED)),
}
UNGUARDED = partial(as_class, Online, guarded=False)
"""Wrong beside -inf only."""


def zeros_of(place):
    """Right results but for one, which is 0."""

    def make(case):
        def call(*given):
            found = float64(case)(*given)
            if isinstance(found, torch.Tensor):
                return torch.zeros_like(found)
            return tuple(torch.zeros_like(out) if i == place else out for i, out in enumerate(found))

        return call

    return make


def nan_as_zero(case):
    def call(*given):
        found = float64(case)(*given)
        return found.nan_to_num(nan=0.0) if isinstance(found, torch.Tensor) else tuple(out.nan_to_num(nan=0.0) for out in found)

    return call


WRONG |= {
    "zeros first": (zeros_of(0), ALL),
    "zeros second": (zeros_of(1), (F, FUSED)),
    "masked target of a large number": (lambda case: lambda x, t, *r: float64(case)(x.clamp_min(-1e4), t, *r), (F, FUSED)),
    "NaN as zero": (nan_as_zero, (F,)),
}
OF_PARAMETERS = {
    "no smoothing": ("label_smoothing=0.1", partial(of, even=lambda N: 0.0), ALL),
    "smoothing over N - 1": ("label_smoothing=0.1", partial(of, even=lambda N: 1 / max(1, N - 1)), ALL),
    "no z-loss": ("z_loss=0.01", partial(of, square=torch.zeros_like, twice=0.0), ALL),
    "z-loss of lse": ("z_loss=0.01", partial(of, square=torch.abs, twice=1.0), ALL),
    "half of the z-loss's gradient": ("z_loss=0.01", partial(of, twice=1.0), (B, FUSED)),
    "no slope of the softcap": ("softcap=5", partial(of, slope=torch.ones_like), (B, FUSED)),
    "clamped for capped": ("softcap=5", partial(of, tanh=lambda x: x.clamp(-1, 1)), ALL),
    "ignores -100 only": ("ignore_index=7", partial(of, ignored=lambda target, ignore: target == -100), ALL),
}
"""Wrong ways with parameters: what `--set` has, the maker and the directions."""
