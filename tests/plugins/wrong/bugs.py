"""Bugs made in good faith, one backend each. `item` is the check case that finds it, and `rule` is a part of the reason then.

`seems_right` is a check case that it passes, if there is one. Without `item` the bug would not be found.
"""

import math

import torch

from softbench import Direction

NORMAL = "shape 37x256"
TILE = 256
BOUND = "should be"
F, B = Direction.FORWARD, Direction.BACKWARD


def of(wide, high):
    e = torch.exp(wide - high)
    return e / e.sum(-1, keepdim=True)


def wide_only(function):
    """`x -> y` in float32 and back."""
    return lambda x: function(x.float()).to(x.dtype)


def highest(x):
    return x.amax(-1, keepdim=True)


def padded(x, value):
    """Rows padded to a power of two; the padding is summed with the rest."""
    N = 1 << (x.shape[-1] - 1).bit_length()
    wide = torch.nn.functional.pad(x.float(), (0, N - x.shape[-1]), value=value)
    return of(wide, highest(wide))[..., : x.shape[-1]].to(x.dtype)


def without_tail(x):
    """Whole tiles only: what is left of a row is neither summed nor written."""
    whole = x.shape[-1] // TILE * TILE or x.shape[-1]
    y = torch.zeros_like(x)
    y[..., :whole] = torch.softmax(x[..., :whole].float(), -1).to(x.dtype)
    return y


def first_columns(x, k=1024):
    y = torch.zeros_like(x)
    y[..., :k] = torch.softmax(x[..., :k].float(), -1).to(x.dtype)
    return y


def unscaled_online(x):
    """An online sum that is not rescaled when the maximum rises."""
    wide = x.float()
    high, total = wide.new_full(wide.shape[:-1], -math.inf), wide.new_zeros(wide.shape[:-1])
    for tile in wide.split(TILE, dim=-1):
        high = torch.maximum(high, tile.amax(-1))
        total = total + torch.exp(tile - high[..., None]).sum(-1)
    return (torch.exp(wide - high[..., None]) / total[..., None]).to(x.dtype)


def careless_online(x):
    """A leading tile of -inf makes its scale exp(-inf - -inf), and that poisons the sum."""
    wide = x.float()
    high, total = wide.new_full(wide.shape[:-1], -math.inf), wide.new_zeros(wide.shape[:-1])
    for tile in wide.split(TILE, dim=-1):
        higher = torch.maximum(high, tile.amax(-1))
        total = total * torch.exp(high - higher) + torch.exp(tile - higher[..., None]).sum(-1)
        high = higher
    return (torch.exp(wide - high[..., None]) / total[..., None]).to(x.dtype)


def finite_start(x):
    """The maximum starts at a number that was thought to be low enough."""
    return of(x.float(), highest(x.float()).clamp_min(-1e4)).to(x.dtype)


def sum_in_16_bits(x):
    e = torch.exp(x.float() - highest(x.float()))
    short = e.to(x.dtype if x.dtype != torch.float32 else torch.bfloat16)
    total = short[..., 0]
    for column in range(1, min(x.shape[-1], 4096)):
        total = total + short[..., column]
    return (e / total.float()[..., None]).to(x.dtype)


def row_pitch_of_columns(x):
    """Reads rows as if each began where the last one ended, whatever the strides say."""
    flat = torch.as_strided(x, (x.numel(),), (1,), x.storage_offset()) if x.untyped_storage().nbytes() >= x.nbytes else x.reshape(-1)
    return torch.softmax(flat.reshape(x.shape).float(), -1).to(x.dtype)


def from_storage_start(x):
    """Forgets the storage offset."""
    return torch.softmax(torch.as_strided(x, x.shape, x.stride(), 0).float(), -1).to(x.dtype)


def narrow_offsets(limit):
    """Element offsets in too narrow an integer: rows beyond it wrap around and read the first ones."""

    def function(x):
        M, N = x.shape
        rows = max(1, limit // max(N, 1))
        y = torch.softmax(x, dim=-1)
        if rows < M:
            y[rows:] = y[: M - rows]
        return y

    return function


def grid_limit(x):
    """A grid's second dimension holds 65535 blocks: rows beyond it are not computed."""
    y = torch.softmax(x, dim=-1)
    y[65535:] = 0
    return y


turn = [0]


def race(x):
    """The last tile's share of the sum arrives in time every second call."""
    turn[0] += 1
    if turn[0] % 2 or x.shape[-1] <= TILE:
        return torch.softmax(x, dim=-1)
    wide = x.float() - highest(x.float())
    e = torch.exp(wide)
    return (e / e[..., :-TILE].sum(-1, keepdim=True)).to(x.dtype)


def swallowed(x):
    """NaN is taken for a masked element: maximum and sum of a hardware that drops NaN."""
    wide = x.float().nan_to_num(nan=-math.inf)
    return torch.softmax(wide, -1).to(x.dtype)


def fast_exp(x):
    """A polynomial for exp that was fitted between -10 and 0 and clamps what is below."""
    wide = (x.float() - highest(x.float())).clamp_min(-10.0)
    e = torch.exp(wide)
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


def dot(dy, y):
    return (dy.float() * y.float()).sum(-1, keepdim=True)


def backward(function):
    return lambda dy, y: function(dy.float(), y.float()).to(y.dtype)


def strided_gradient(dy, y):
    """Walks dy with y's strides."""
    own = dy.untyped_storage().nbytes() >= y.nbytes
    walked = torch.as_strided(dy, y.shape, y.stride()) if own else dy
    return (y.float() * (walked.float() - dot(walked, y))).to(y.dtype)


class Bug:
    """A softmax with one bug."""

    def __init__(self, name, function, item, *, direction=F, dtype="fp32", rule=BOUND, seems_right=NORMAL, gpu_only=False):
        self.name, self.function, self.item, self.direction, self.dtype = name, function, item, direction, dtype
        self.rule, self.seems_right, self.gpu_only = rule, seems_right, gpu_only

    def available(self):
        return None

    def supports(self, case):
        return None if case.direction is self.direction else f"{self.direction} only"

    def prepare(self, case):
        return self.function

    def over_dim(self, direction):
        def over(*given):
            *tensors, dim = given
            return self.function(*(tensor.movedim(dim, -1) for tensor in tensors)).movedim(-1, dim)

        return over


backends = [
    Bug("no-maximum", wide_only(lambda x: torch.exp(x) / torch.exp(x).sum(-1, keepdim=True)), "scale 100"),
    Bug("maximum-of-a-part", wide_only(lambda x: of(x, highest(x[..., :32]))), "one-hot", seems_right="shape 37x33"),
    Bug("maximum-of-the-matrix", wide_only(lambda x: of(x, x.max())), "rows far apart"),
    Bug("wrong-axis", lambda x: torch.softmax(x, dim=0), NORMAL, seems_right=None),
    Bug("tail-dropped", without_tail, "shape 37x257"),
    Bug("first-1024-columns", first_columns, "shape 37x1025"),
    Bug("padded-with-zero", lambda x: padded(x, 0.0), "shape 37x255"),
    Bug("16-bit-sum", sum_in_16_bits, "shape 5x4095", seems_right="shape 37x1"),
    Bug("16-bit-arithmetic", lambda x: torch.softmax(x.bfloat16(), -1).to(x.dtype), NORMAL, seems_right="shape 37x1"),
    Bug("online-without-rescaling", unscaled_online, "long, rising"),
    Bug("leading-tile-of-inf", careless_online, "long, -inf first", rule="gives NaN in rows that hold -inf"),
    Bug("maximum-starts-at-1e4", finite_start, "all the smallest"),
    Bug("row-pitch-is-N", row_pitch_of_columns, "layout row stride over N"),
    Bug("transposed-strides-ignored", row_pitch_of_columns, "layout transposed"),
    Bug("storage-offset-forgotten", from_storage_start, "layout offset by one element"),
    Bug("narrow-offsets", narrow_offsets(2**19), "shape 65537x9"),
    Bug("int32-offsets", narrow_offsets(2**31), "shape over-2^31-elements", dtype="fp16", gpu_only=True),
    Bug("grid-limit", grid_limit, "shape 65537x9"),
    Bug("race-on-the-last-tile", race, "twice the same"),
    Bug("nan-swallowed", swallowed, "one NaN"),
    Bug("masked-row-of-zeros", lambda x: torch.softmax(x, -1).nan_to_num(), "a row of -inf"),
    Bug("exp-clamped", fast_exp, "one-hot"),
    Bug("missing-dot", backward(lambda dy, y: y * dy), "dy with a mean", direction=B, seems_right=None),
    Bug("dot-without-y", backward(lambda dy, y: y * (dy - dy.sum(-1, keepdim=True))), NORMAL, direction=B, seems_right="shape 37x1"),
    Bug("mean-for-dot", backward(lambda dy, y: y * (dy - dy.mean(-1, keepdim=True))), NORMAL, direction=B, seems_right="dy = 1"),
    Bug(
        "gradient-of-the-input",
        backward(lambda dy, y: torch.softmax(y, -1) * (dy - dot(dy, y))),
        NORMAL,
        direction=B,
        seems_right="shape 37x1",
    ),
    Bug("gradient-strides-ignored", strided_gradient, "strides 2 of 2-D, dim -1", direction=B),
    Bug("sign", backward(lambda dy, y: y * (dot(dy, y) - dy)), NORMAL, direction=B, seems_right="shape 37x1"),
]
