"""Bugs made in good faith that normal values hide, one backend each. `item` is the check case that finds it, if not a structured one.

`in_run`: the pre-check of a run finds it, too, on a case of 96 rows of 4096 columns.
"""

import functools
import math

import torch

from softbench import Direction

F, B, BOTH = Direction.FORWARD, Direction.BACKWARD, Direction.BOTH


def of(wide, high):
    e = torch.exp(wide - high)
    return e / e.sum(-1, keepdim=True)


def highest(x):
    return x.amax(-1, keepdim=True)


def maximum_of(part):
    """The maximum of some columns; all are summed."""
    return lambda x: of(x.float(), highest(x.float()[..., part] if x[..., part].shape[-1] else x.float())).to(x.dtype)


def maximum_without_column(column):
    def function(x):
        wide = x.float()
        rest = wide.clone()
        if x.shape[-1] > 1:
            rest[..., column] = -math.inf
        return of(wide, highest(rest).clamp_min(-1e5)).to(x.dtype)

    return function


def starting_at(low):
    return lambda x: of(x.float(), highest(x.float()).clamp_min(low)).to(x.dtype)


def without_maximum(x):
    e = torch.exp(x.float())
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


def replaced(**values):
    """NaN or infinities of the input are replaced."""
    values = {"nan": math.nan, "posinf": math.inf, "neginf": -math.inf} | values
    return lambda x: torch.softmax(torch.nan_to_num(x.float(), **values), -1).to(x.dtype)


def after(change):
    """The output is changed."""
    return lambda x: change(torch.softmax(x.float(), -1)).to(x.dtype)


def clamped(low, high):
    return lambda x: torch.softmax(x.float().clamp(low, high), -1).to(x.dtype)


def wide_exponent_lost(limit):
    """exp of less than -limit is taken for exp(-limit)."""
    return lambda x: of((x.float() - highest(x.float())).clamp_min(-limit), torch.zeros(1)).to(x.dtype)


def guarded_tiles(tile):
    """An online sum that skips tiles of -inf, and forgets to rescale after one."""

    def function(x):
        wide = x.float()
        high, total = wide.new_full(wide.shape[:-1], -math.inf), wide.new_zeros(wide.shape[:-1])
        for part in wide.split(tile, dim=-1):
            higher = torch.maximum(high, part.amax(-1))
            scale = torch.exp(high - higher) if tile < 0 else torch.where(part.amax(-1) == -math.inf, 0.0, torch.exp(high - higher))
            total = total * scale.nan_to_num(0.0) + torch.exp(part - higher[..., None]).nan_to_num(0.0).sum(-1)
            high = higher
        return (torch.exp(wide - high[..., None]) / total[..., None]).to(x.dtype)

    return function


def tail_of(columns):
    """The last columns are written and not summed."""

    def function(x):
        e = torch.exp(x.float() - highest(x.float()))
        summed = e[..., :-columns] if x.shape[-1] > columns and x.shape[-1] % 4 == 2 else e
        return (e / summed.sum(-1, keepdim=True)).to(x.dtype)

    return function


def gradient(dy, y):
    dy, y = dy.float(), y.float()
    return y * (dy - (dy * y).sum(-1, keepdim=True))


def changed(change_dy=lambda dy: dy, change_y=lambda y: y, change_dx=lambda dx: dx):
    return lambda dy, y: change_dx(gradient(change_dy(dy.float()), change_y(y.float()))).to(y.dtype)


def flushed(below):
    return lambda tensor: torch.where(tensor.abs() < below, 0.0, tensor)


def product_in_half(scale):
    """The product is scaled and kept in float16."""

    def function(dy, y):
        product = (dy.float() * y.float() * scale).half().float() / scale
        exact = dy.float() * y.float()
        product = torch.where(product.isfinite(), exact, product)  # its rounding is not the bug
        return (exact - y.float() * product.sum(-1, keepdim=True)).to(y.dtype)

    return function


def both_of(forward, backward=gradient):
    def both(x, dy):
        y = forward(x.detach())
        return y, backward(dy, y).to(y.dtype)

    return both


class Bug:
    """A softmax with one bug."""

    def __init__(self, name, function, *, direction=F, dtype="fp32", item="structured *", in_run=True):
        self.name, self.function, self.direction, self.dtype, self.item, self.in_run = name, function, direction, dtype, item, in_run

    def available(self):
        return None

    def supports(self, case):
        if not case.N:
            return "no rows without elements"
        return None if case.direction is self.direction else f"{self.direction} only"

    def prepare(self, case):
        return self.function


inf, clip = math.inf, functools.partial(torch.clamp)
backends = [
    *(Bug(f"maximum-of-first-{n}", maximum_of(slice(0, n))) for n in (1, 700, 1500, 3000)),
    *(Bug(f"maximum-of-last-{n}", maximum_of(slice(-n, None))) for n in (256, 1500)),
    Bug("maximum-of-every-second", maximum_of(slice(0, None, 2))),
    Bug("maximum-without-the-last", maximum_without_column(-1)),
    Bug("maximum-without-the-last-but-one", maximum_without_column(-2)),
    *(Bug(f"maximum-from-{low:g}", starting_at(low)) for low in (0.0, -50.0, -1e4)),
    Bug("nan-taken-for-low", replaced(nan=-inf)),
    Bug("nan-taken-for-zero", replaced(nan=0.0)),
    Bug("inf-taken-for-large", replaced(posinf=3e38)),
    Bug("low-inf-taken-for-a-number", replaced(neginf=-10.0)),
    Bug("masked-row-of-zeros", after(lambda y: y.nan_to_num(0.0))),
    Bug("masked-row-of-equal-values", lambda x: torch.where((x == -inf).all(-1, keepdim=True), 1 / x.shape[-1], torch.softmax(x, -1))),
    *(Bug(f"clamped-at-{n}", clamped(-n, n)) for n in (20, 50, 88)),
    *(Bug(f"exponent-from-{n}", wide_exponent_lost(n)) for n in (10, 30)),
    *(Bug(f"skipped-tiles-of-{n}", guarded_tiles(n)) for n in (128, 1024)),
    Bug("last-two-columns-unsummed", tail_of(2), item="shape 37x1002", in_run=False),
    *(Bug(f"gradient-clipped-at-{n}", changed(lambda dy, n=n: dy.clamp(-n, n)), direction=B) for n in (50, 100, 5000)),
    *(Bug(f"dx-clipped-at-{n}", changed(change_dx=lambda dx, n=n: dx.clamp(-n, n)), direction=B) for n in (1, 50)),
    *(Bug(f"gradient-flushed-under-{n:g}", changed(flushed(n)), direction=B) for n in (1e-7, 1e-6)),
    Bug("dx-flushed-under-1e-11", changed(change_dx=flushed(1e-11)), direction=B),
    Bug("nan-of-dy-dropped", changed(lambda dy: torch.where(dy.isnan(), 0.0, dy)), direction=B),
    Bug("inf-of-dy-dropped", changed(lambda dy: torch.where(dy.isinf(), 0.0, dy)), direction=B),
    Bug("nan-of-y-dropped", changed(change_y=lambda y: torch.where(y.isnan(), 0.0, y)), direction=B),
    Bug("dx-without-nan", changed(change_dx=lambda dx: dx.nan_to_num(0.0)), direction=B),
    Bug("product-overflows-at-16", product_in_half(4096), direction=B, dtype="fp16"),
    Bug("product-overflows-at-256", product_in_half(256), direction=B, dtype="fp16"),
    Bug("both-without-maximum", both_of(without_maximum), direction=BOTH),
    Bug("both-masked-row-of-zeros", both_of(after(lambda y: y.nan_to_num(0.0))), direction=BOTH),
    Bug("both-clipped-at-50", both_of(after(lambda y: y), changed(lambda dy: dy.clamp(-50, 50))), direction=BOTH),
    Bug("both-maximum-of-first-1500", both_of(maximum_of(slice(0, 1500))), direction=BOTH),
]
