"""Ways to compute masked softmax: right ones, and wrong ones that a check must reject. Each maker takes a case and returns its call."""

from __future__ import annotations

import math
from functools import partial

import torch

from softbench.backends import naive, torch_eager
from softbench.core.case import Case, Direction
from softbench.ops.registry import operation

F, B = Direction.FORWARD, Direction.BACKWARD
NAME = "masked_softmax"
OPERATION = f"{NAME}(scale,mask,mask_axes,causal,sink)"
"""What a backend declares that has all parameters."""


def op_of(text: str) -> str:
    """The operation with these parameters, such as `causal=true`."""
    return operation(f"{NAME}({text})" if text else NAME).text


def case_of(text: str, dtype: str, direction: Direction, shape=(2, 3, 40, 65)) -> Case:
    batch, heads, queries, keys = shape
    return Case(batch * heads * queries, keys, dtype, direction, "cpu", op_of(text), "x".join(map(str, shape)))


def plain(x, scale=1.0, mask=None, causal=False, sink=None):
    """The formula in torch's functions, in the dtype of x."""
    z = scale * x
    if mask is not None:
        z = z.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else z + mask
    if causal:
        S, N = x.shape[2:]
        z = z.masked_fill(torch.ones(S, N, dtype=torch.bool, device=x.device).triu(1 + max(0, N - S)), -math.inf)
    if sink is None:
        return torch.softmax(z, dim=-1)
    return torch.softmax(torch.cat([z, sink.to(x.dtype)[:, None, None].expand(*z.shape[:3], 1)], dim=-1), dim=-1)[..., :-1]


def logits(case, x, mask, *, later=0, wrap=lambda z: z):
    """z in float32 by the parameters of a case; `later` keys more are seen."""
    given = operation(case.op).parameter_values
    S, N = x.shape[-2:]
    z = wrap(x.float() * given["scale"])
    if mask is not None:
        z = z + mask.float() if given["mask"] == "additive" else z.masked_fill(~mask, -math.inf)
    if given["causal"]:
        z = z.masked_fill(torch.ones(S, N, dtype=torch.bool, device=x.device).triu(1 + later + max(0, N - S)), -math.inf)
    return z


def of(case, *, change_x=None, change_mask=None, change_sink=None, later=0, finish=None, softmax=None):
    """The right way in float32, with changes of its steps."""
    given = operation(case.op).parameter_values

    def forward(x, *others):
        mask = others[0] if given["mask"] != "none" else None
        sink = others[-1] if given["sink"] else None
        x = change_x(x) if change_x else x
        mask = change_mask(mask) if change_mask and mask is not None else mask
        sink = change_sink(sink) if change_sink and sink is not None else sink
        z = logits(case, x, mask, later=later)
        if sink is not None:
            z = torch.cat([z, sink[:, None, None].expand(*z.shape[:-1], 1)], dim=-1)
        y = (softmax or partial(torch.softmax, dim=-1))(z)[..., : x.shape[-1]]
        return (finish(y, z) if finish else y).to(x.dtype).contiguous()

    def backward(dy, y, *share):
        dy32, y32 = dy.float(), y.float()
        dot = (dy32 * y32).sum(dim=-1, keepdim=True)
        dx = given["scale"] * y32 * (dy32 - dot)
        if given["causal"]:
            dx = dx.tril(max(0, dy.shape[-1] - dy.shape[-2]))
        dx = dx.to(dy.dtype)
        return (dx, -share[0] * dot[..., 0]) if share else dx

    return forward if case.direction is F else backward


def lower_half(case):
    """Reads and writes as a causal kernel does: a query reads only the keys that it sees, and writes zeros beyond."""
    given = operation(case.op).parameter_values
    N = case.N

    def forward(x, *others):
        S, y = x.shape[-2], torch.zeros_like(x)
        for s in range(S):
            end = min(N, s + 1 + max(0, N - S)) if given["causal"] else N
            mask = others[0][..., min(s, others[0].shape[-2] - 1), :end] if given["mask"] != "none" else None
            z = x[..., s, :end].float() * given["scale"]
            if mask is not None:
                z = z + mask.float() if given["mask"] == "additive" else torch.where(mask, z, -math.inf)
            high = z.amax(dim=-1, keepdim=True)
            rest = 0.0
            if given["sink"]:
                sink = others[-1][:, None]
                high = torch.maximum(high, sink)
                rest = torch.exp(sink - high)
            e = torch.exp2((z - high) * math.log2(math.e))  # the product first would overflow where a mask is float32's lowest value
            y[..., s, :end] = (e / (e.sum(dim=-1, keepdim=True) + rest)).to(x.dtype)
        return y

    return forward if case.direction is F else of(case)


def two_tiles(case):
    """Two tiles of a row one after the other, with a running maximum and sum. Rows without a key are NaN at the end only."""
    given = operation(case.op).parameter_values

    def forward(x, *others):
        z = logits(case, x, others[0] if given["mask"] != "none" else None)
        high = others[-1][:, None, None].expand(*z.shape[:-1], 1) if given["sink"] else torch.full_like(z[..., :1], -math.inf)
        total = torch.ones_like(high) if given["sink"] else torch.zeros_like(high)
        for tile in z.split(-(-z.shape[-1] // 2), dim=-1):
            higher = torch.maximum(high, tile.amax(dim=-1, keepdim=True))
            base = higher.masked_fill(higher.isneginf(), 0.0)
            total = total * torch.exp(high - base) + torch.exp(tile - base).sum(dim=-1, keepdim=True)
            high = higher
        return (torch.exp(z - high.masked_fill(high.isneginf(), 0.0)) / total).to(x.dtype)

    return forward if case.direction is F else of(case)


RIGHT = {
    "float32": of,
    "two tiles": two_tiles,
    "lower half": lower_half,
    "torch": torch_eager.masked_softmax,
    "naive": naive.masked_softmax,
}
"""`torch` and `naive` round to 16 bits."""
LIMITED = ("torch", "naive")


def _last_tile(mask):
    """The last quarter of a row is not masked."""
    changed = mask.clone()
    changed[..., -(mask.shape[-1] // 4) :] = True if mask.dtype is torch.bool else 0
    return changed


def _no_mask(mask):
    return torch.ones_like(mask) if mask.dtype is torch.bool else torch.zeros_like(mask)


def _in_8_bits(bias):
    return bias.to(torch.float8_e4m3fn).to(bias.dtype).masked_fill(bias.isneginf(), -math.inf)


def _zeros_if_masked(y, z):
    return torch.where(z.isneginf().all(dim=-1, keepdim=True), 0.0, y)


def _no_shift(z):
    """The maximum of the row without the sink is subtracted from the row only."""
    x, sink = z[..., :-1], z[..., -1:]
    e = torch.exp(x - x.amax(dim=-1, keepdim=True))
    return e / (e.sum(dim=-1, keepdim=True) + torch.exp(sink))


def _fill(value):
    return lambda z: torch.softmax(z.masked_fill(z.isneginf(), value), dim=-1)


def _renormalized(y, z):
    return y / y.sum(dim=-1, keepdim=True)


def _mask_by_product(case):
    """scale x m - (1 - m) inf: NaN where x is not finite under the mask."""
    scale = operation(case.op).parameter_values["scale"]

    def forward(x, mask):
        keep = mask.to(torch.float32)
        return torch.softmax(scale * x.float() * keep + torch.where(mask, 0.0, -math.inf), dim=-1).to(x.dtype)

    return forward


def _scale_after_mask(case):
    scale = operation(case.op).parameter_values["scale"]
    return lambda x, bias: torch.softmax((x.float() + bias.float()) * scale, dim=-1).to(x.dtype)


def _top_left(case):
    """A query sees as many keys as its number, though there are more keys than queries."""
    S, N = case.sizes[-2:]
    return of(case, later=-max(0, N - S))


def _sink_in_the_output(y, z):
    """The share of the sink is added to that of the last key."""
    y = y.clone()
    y[..., -1] += torch.softmax(z, dim=-1)[..., -1]
    return y


def _last_column_of_zeros(y, z):
    y = y.clone()
    y[..., -1] = 0
    return y


def constant(value):
    def made(case):
        def call(first, *others):
            out = torch.full_like(first, value)
            return (
                (out, torch.full(first.shape[:-1], value, device=first.device))
                if case.direction is B and operation(case.op).parameter_values["sink"]
                else out
            )

        return call

    return made


WRONG = {
    "mask ignored in the last tile": (("mask=boolean", "mask=additive,mask_axes=HSN"), partial(of, change_mask=_last_tile)),
    "mask inverted": (("mask=boolean",), partial(of, change_mask=lambda mask: ~mask)),
    "mask ignored": (("mask=boolean,mask_axes=BN", "mask=additive"), partial(of, change_mask=_no_mask)),
    "mask of another batch": (("mask=boolean", "mask=additive"), partial(of, change_mask=lambda mask: mask.flip(0))),
    "mask of another head": (("mask=boolean,mask_axes=HSN",), partial(of, change_mask=lambda mask: mask.flip(1))),
    "mask by a product": (("mask=boolean",), _mask_by_product),
    "masked with -10000": (("mask=boolean",), partial(of, softmax=_fill(-1e4))),
    "bias rounded to 8 bits": (("mask=additive",), partial(of, change_mask=_in_8_bits)),
    "fully masked rows are zeros": (("mask=boolean", "mask=additive"), partial(of, finish=_zeros_if_masked)),
    "scale after the mask": (("scale=0.125,mask=additive",), _scale_after_mask),
    "scale ignored": (("scale=0.125",), partial(of, change_x=lambda x: x / 0.125)),
    "one later key": (("causal=true", "causal=true,sink=true"), partial(of, later=1)),
    "one key fewer": (("causal=true", "causal=true,sink=true"), partial(of, later=-1)),
    "causal from the first key": (("causal=true",), _top_left),
    "sink ignored": (("sink=true",), partial(of, change_sink=lambda sink: sink - math.inf)),
    "sink of 0": (("sink=true",), partial(of, change_sink=torch.zeros_like)),
    "sink of another head": (("sink=true",), partial(of, change_sink=lambda sink: sink.flip(0))),
    "sink scaled": (("sink=true,scale=0.125",), partial(of, change_sink=lambda sink: sink * 0.125)),
    "sink without the shift": (("sink=true",), partial(of, softmax=_no_shift)),
    "renormalized without the sink": (("sink=true",), partial(of, finish=_renormalized)),
    "sink in the output": (("sink=true",), partial(of, finish=_sink_in_the_output)),
    "last column of zeros": (("", "mask=additive"), partial(of, finish=_last_column_of_zeros)),
    "softmax over queries": (("", "sink=true"), partial(of, finish=lambda y, z: torch.softmax(z[..., : y.shape[-1]], dim=-2))),
    "zeros": (("", "causal=true", "sink=true", "mask=boolean"), constant(0.0)),
    "1 / N": (("", "mask=additive"), constant(1 / 65)),
}  # fmt: skip
"""Wrong forwards: the parameters with which each must be found, and its maker."""


def gradient(of_dx=None, of_dsink=None):
    """A wrong backward from `of_dx(dy, y, scale)` or `of_dsink(share, dot)`."""

    def made(case):
        given, right = operation(case.op).parameter_values, of(case)

        def call(dy, y, *share):
            found = right(dy, y, *share)
            dx, *rest = found if share else (found,)
            dy32, y32 = dy.float(), y.float()
            if of_dx:
                dx = of_dx(dy32, y32, given["scale"]).to(dy.dtype)
            if of_dsink:
                rest = [of_dsink(share[0], (dy32 * y32).sum(dim=-1))]
            return (dx, *rest) if share else dx

        return call

    return made


def _dot(dy, y):
    return (dy * y).sum(dim=-1, keepdim=True)


def _of_masked(dy, y, scale):
    return scale * torch.where(y == 0, 1e-3, y) * (dy - _dot(dy, y))


def _of_head(share, dot):
    return (-share * dot).sum(dim=(0, 2))[None, :, None].expand_as(share).contiguous()


WRONG_BACKWARD = {
    "without scale": (("scale=0.125",), gradient(lambda dy, y, scale: y * (dy - _dot(dy, y)))),
    "scale twice": (("scale=0.125",), gradient(lambda dy, y, scale: scale**2 * y * (dy - _dot(dy, y)))),
    "without the dot": (("", "sink=true"), gradient(lambda dy, y, scale: scale * y * dy)),
    "dot of another row": (("", "causal=true"), gradient(lambda dy, y, scale: scale * y * (dy - _dot(dy, y).roll(1, 2)))),
    "dot of the first half": (("",), gradient(lambda dy, y, scale: scale * y * (dy - _dot(dy[..., :32], y[..., :32])))),
    "gradient where nothing takes part": (("mask=boolean", "causal=true"), gradient(_of_masked)),
    "zeros": (("", "causal=true", "sink=true"), constant(0.0)),
    "dsink of the other sign": (("sink=true",), gradient(of_dsink=lambda share, dot: share * dot)),
    "dsink without the share": (("sink=true",), gradient(of_dsink=lambda share, dot: -dot)),
    "dsink of softmax": (("sink=true",), gradient(of_dsink=lambda share, dot: share * (1 - dot))),
    "dsink of zeros": (("sink=true",), gradient(of_dsink=lambda share, dot: torch.zeros_like(share))),
    "dsink in 8 bits": (("sink=true",), gradient(of_dsink=lambda share, dot: (-share * dot).to(torch.float8_e5m2).float())),
    "dsink of the whole head": (("sink=true",), gradient(of_dsink=_of_head)),
}  # fmt: skip

TOGETHER = {
    "boolean masks": "scale=0.125,mask=boolean",
    "biases": "scale=0.125,mask=additive",
    "causal order and sinks": "scale=0.125,causal=true,sink=true",
}
"""Parameters with which, together, a run shows every wrong way but those of other axes of a mask."""
