"""Softmax of attention scores with scale, mask, causal order and sink, and its gradient.

With z = scale x + bias where an element takes part, and -inf where the mask is False or the query sees no such key, s the sink of the row,
and y and dy of a backward 0 where the query sees no such key:

    y_i          = exp(z_i) / (exp(s) + sum_j exp(z_j))      without a sink exp(s) is 0
    sink_share   = exp(s) / (exp(s) + sum_j exp(z_j))
    dx_i         = scale y_i (dy_i - D),  D = sum_j y_j dy_j
    dsink        = -sink_share D

What does not take part is not read, so it may be NaN. A row in which nothing takes part is NaN without a sink, as in torch, and 0 with one.
The backward gets y, so it needs no mask. dsink is the gradient of each row's sink. That of a head is its sum over batch and queries.

The bounds are elementwise bounds on the error against float64, derived from the arithmetic.
The other symbols are those of `softbench.ops.softmax`. A sink is one more column of the
row. With t_i = |scale x_i| + |bias_i| + |z_i|, and |s| for the sink:

    forward   that of softmax for any errors of z_i up to 2 u t_i, plus u_o y_i + u y_i (c + 6 (d_i + D)) + eta
    dx        u_o |dx_i| + u S_i (c - 4) + eta,   S_i = scale |y_i| (|dy_i| + sum_j |y_j dy_j|)
    dsink     u sink_share sum_j |y_j dy_j| (c - 4) + smallest normal number

scale x is rounded, the bias is added, and exp may be exp2 of products with log2(e): each rounds at the size of its term. Elements that do
not take part have an error of 0: they must be exactly 0, also in dx. So must those with a z of -inf.

In a row of NaN, what a causal query does not see may be NaN, as in torch, or 0, as in a kernel that reads the lower half only.

`low-precision` is a second class, for backends that round intermediates to 16 bits:

    forward   errors of z_i up to u_x (|scale x_i| + |z_i| + d_i) more, plus u_o y_i (4 + 2 (d_i + D)) + eta
    dx        u_o (2 S_i + 2 |dx_i|) + 2 eta (1 + scale) + scale |y_i| sum_j min(eta, |y_j dy_j|)
    dsink     2 u_o sink_share sum_j |y_j dy_j| + 2 eta

Eager code rounds scale x, then the sum with the bias, then the difference from the maximum: gpt-oss subtracts it before the softmax. A sum
of a whole row in 16 bits would be wrong. Without a sink the sum of such a row of y is 1, as for softmax. In float32 z may have errors of
u |max| more, because of a fused exponent. Products y dy are rounded, and below eta they are lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from softbench.core.case import Case, Direction
from softbench.ops import masks
from softbench.ops.check import Worst, row_chunks
from softbench.ops.check_case import CheckCase, Draw, Tensors
from softbench.ops.error_terms import ETA, MAX_EXPONENT, SMALLEST, SUM, U_OUT, Bounded, ScaledBound, U, summing, ties
from softbench.ops.lazy import numpy, torch
from softbench.ops.masks import ADDITIVE, BOOLEAN, CAUSAL, MASK, MASK_AXES, SCALE, SINK, Rows, names, scale_of, split
from softbench.ops.operation import SEEN, Operation, Pass, Preset, Share, TensorSpec
from softbench.ops.parameters import Setting
from softbench.ops.rowwise import NormalValues
from softbench.ops.second_opinion import FLUSHED, MAX_WIDER, WIDEST, Again, Array, exact
from softbench.ops.softmax import numpy_forward, of_dy_and_y
from softbench.ops.structured_rows import Kinds, Places, fit, make_structured, of_x, shrink

SCORES, OF_MASK = TensorSpec(("M", "N")), (MASK_AXES.name,)
OF_SINK: Setting = (SINK.name, True)
IF_CAUSAL: Setting = (CAUSAL.name, True)
MODELS = MappingProxyType(
    {
        "vit": Preset(("64x12x197x197", "256x16x257x257"), "ViT-B/16 (64 images) and ViT-L/14 (256 images), 224 pixels"),
        "bert": Preset(("32x12x128x128", "32x12x512x512", "32x16x512x512"), "BERT-base and BERT-large, 32 texts"),
        "gpt2": Preset(("8x12x1024x1024", "4x25x1024x1024"), "GPT-2 (8 texts) and GPT-2 XL (4 texts)"),
        "llama": Preset(("1x32x2048x2048", "1x32x4096x4096", "1x32x8192x8192"), "Llama 2 7B and Llama 3 8B, one text"),
        "gpt-oss": Preset(("1x64x2048x2048", "1x64x4096x4096", "1x64x8192x8192"), "gpt-oss-20b and gpt-oss-120b, one text"),
        "openfold": Preset(("128x8x256x256", "256x4x256x256", "384x4x384x384"), "AlphaFold 2: MSA rows (8 heads) and triangles (4 heads)"),
        "long": Preset(("1x8x16384x16384", "1x1x16384x16384"), "16384 keys, 8 heads of Llama 3.1 8B on one of 4 GPUs, and one head"),
    }
)
"""Heads are those of the models' published configurations."""
OPERATION = Operation(
    name="masked_softmax",
    summary="softmax(scale * x) of attention scores with mask, causal order and sink, and its gradient",
    scores=True,
    causal=IF_CAUSAL,
    tensors=MappingProxyType(
        {
            "x": SCORES,
            "bias": TensorSpec(OF_MASK, when=(MASK.name, ADDITIVE)),
            "mask": TensorSpec(OF_MASK, "bool", (MASK.name, BOOLEAN)),
            "sink": TensorSpec(("H",), "fp32", OF_SINK),
            "y": TensorSpec(("M", "N"), only_seen=True),
            "dy": SCORES,
            "sink_share": TensorSpec(("B", "H", "S"), "fp32", OF_SINK),
            "dx": SCORES,
            "dsink": TensorSpec(("B", "H", "S"), "fp32", OF_SINK),
        }
    ),
    passes=MappingProxyType(
        {
            Direction.FORWARD: Pass(
                inputs=("x", "bias", "mask", "sink"),
                outputs=("y",),
                reads=("x", "bias", "mask", "sink"),
                shares=tuple(Share(name, SEEN, IF_CAUSAL) for name in ("x", "bias", "mask")),
            ),
            Direction.BACKWARD: Pass(
                inputs=("dy", "y", "sink_share"),
                outputs=("dx", "dsink"),
                reads=("dy", "y", "sink_share"),
                shares=tuple(Share(name, SEEN, IF_CAUSAL) for name in ("dy", "y")),
            ),
        }
    ),
    parameters=(SCALE, MASK, MASK_AXES, CAUSAL, SINK),
    presets=MODELS,
)
OPERATORS = ("softmax", "cat", "arange")
"""What the tamper guard protects of torch for the reference."""
KEPT = 205
"""Of 256 elements so many take part where there is a mask. The first of each row does, so no row of the draw is NaN."""
GRID = 16
"""Sinks are multiples of 1 / GRID: 16 bits hold them, so models with sinks of 16 bits compute the same."""
LEAST_ERROR = 2.0**-22
"""Errors of z, in units of its terms, at least."""
NOT_FINITE = ("with one NaN in dy", "with infinities in dy")
"""Kinds that a causal backward lacks: 0 times such a dy is NaN, and only some kernels read it where y is 0 because of the order."""


def hidden(rows: Rows) -> torch.Tensor | None:
    """Where elements do not take part, (rows, N); None if all do."""
    unseen = None if rows.seen is None else torch.arange(rows.first.shape[1], device=rows.first.device) >= rows.seen[:, None]
    if rows.mask is None:
        return unseen
    return ~rows.mask if unseen is None else ~rows.mask | unseen


def without(tensor: torch.Tensor, where: torch.Tensor | None, value: float = 0.0) -> torch.Tensor:
    """The tensor with a value in these places."""
    return tensor if where is None else torch.where(where, value, tensor)


def logits(rows: Rows, scale: float) -> torch.Tensor:
    """z of rows of x in its dtype, with the sink as the last column if there is one."""
    z = scale * rows.first
    if rows.bias is not None:
        z = z + rows.bias
    z = without(z, hidden(rows), -math.inf)
    return z if rows.sink is None else torch.cat([z, rows.sink.to(z.dtype)[:, None]], dim=1)


def softmax(z: torch.Tensor) -> torch.Tensor:
    """softmax(z) over the last axis, in its dtype."""
    return torch.softmax(z, dim=-1)


def exact_softmax(z: torch.Tensor) -> torch.Tensor:
    """softmax(z) over the last axis in float64, of any dtype."""
    return exact(softmax, numpy_forward, z)


def exact_dot(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """D of each row, (rows, 1), in float64."""
    return exact(lambda dy, y: (dy * y).sum(dim=-1, keepdim=True), numpy_dot, dy, y)


def numpy_dot(dy: Array, y: Array) -> Array:
    """sum(dy y) over the last axis, which stays."""
    with numpy.errstate(all="ignore"):
        found: Array = (dy * y).sum(axis=-1, keepdims=True)
        return found


@dataclass(frozen=True, slots=True)
class Part(Bounded):
    """The bound of the first columns of a wider row, whose last column is the sink. Where `exact` is True it is 0."""

    whole: ScaledBound | None = None
    exact: torch.Tensor | None = None
    unseen: torch.Tensor | None = None
    """What the query does not see; in a row of NaN it may be 0."""

    def tightest(self, out: torch.Tensor) -> torch.Tensor:
        assert self.whole is not None
        return self._of(self.whole.tightest(self._widened(out)))

    def loosest(self, out: torch.Tensor) -> torch.Tensor:
        assert self.whole is not None
        return self._of(self.whole.loosest(self._widened(out)))

    def _widened(self, out: torch.Tensor) -> torch.Tensor:
        """The output with the expected share of the sink."""
        assert self.whole is not None
        return torch.cat([out.double(), self.whole.expected[:, out.shape[1] :]], dim=1)

    def _of(self, bound: torch.Tensor) -> torch.Tensor:
        assert self.exact is not None
        return bound[:, : self.expected.shape[1]].masked_fill(self.exact, 0.0)

    def counted(self, out: torch.Tensor) -> torch.Tensor:
        assert self.unseen is not None
        return out.masked_fill(self.unseen & self.expected.isnan() & (out == 0), math.nan)


@dataclass(frozen=True, slots=True)
class HalfRead(Bounded):
    """The bound of dx. In a row of NaN it may be NaN where `unseen` is True."""

    unseen: torch.Tensor | None = None

    def counted(self, out: torch.Tensor) -> torch.Tensor:
        assert self.unseen is not None
        allowed = self.unseen & self.expected.isnan().any(dim=-1, keepdim=True)
        return out.masked_fill(allowed & out.isnan(), 0.0)


class MaskedSoftmax(NormalValues):
    """Masked softmax of rows, and its gradient. Its cases are those of rows (`softbench.ops.scores`)."""

    __slots__ = ()

    def draw(self, case: Case, random: Draw) -> Tensors:
        """Standard normal x and dy; a bias that is normal or -inf; sinks of about log(N), so that they weigh as a row does.

        y is the forward of such rows in float32, rounded. Without the first tensor all follow from the generator's later values.
        """
        dy = None if case.direction is Direction.FORWARD else random.normal(case.M, case.N)
        rows = _draw(case, random)
        if dy is not None:
            rows = _results(case, dy, rows)
        return tuple(getattr(rows, name) for name in names(case))

    def reference(self, case: Case, *inputs: torch.Tensor) -> Tensors:
        rows, scale = split(case, inputs), scale_of(case)
        if case.direction is Direction.FORWARD:
            return (softmax(logits(rows, scale))[:, : case.N],)
        assert rows.y is not None
        unseen = hidden(rows)
        dy, y = without(rows.first, unseen), without(rows.y, unseen)
        dot = (dy * y).sum(dim=-1, keepdim=True)
        dx = without(scale * y * (dy - dot), unseen)
        return (dx,) if rows.sink is None else (dx, -rows.sink * torch.squeeze(dot, -1))

    def bound(self, case: Case, *inputs: torch.Tensor) -> tuple[Bounded, ...]:
        rows = split(case, inputs)
        if case.direction is Direction.FORWARD:
            return (self.bound_forward(rows.first, case, rows),)
        assert rows.y is not None
        back = self.bound_backward(rows.first, rows.y, case, rows)
        return (back,) if rows.sink is None else (back, self.bound_sink(rows.first, rows.y, case, rows))

    def bound_forward(self, x: torch.Tensor, case: Case, rows: Rows | None = None) -> Part:
        """The bound on y; `rows` has the inputs beside x."""
        rows, scale = rows or Rows(x), scale_of(case)
        double = Rows(x.double(), None, None if rows.bias is None else rows.bias.double(), rows.mask, rows.sink, rows.seen)
        z = logits(double, scale)
        y = exact_softmax(z)
        terms, product = _terms(double, z, scale)
        u_out, eta, high = U_OUT[case.dtype], ETA[case.dtype], z.amax(dim=-1, keepdim=True)
        distance = high - z
        spread = torch.where(y == 0, 0.0, y * distance)
        travelled = spread + y * spread.sum(dim=-1, keepdim=True)
        tight = u_out * y + U * (y * summing(y, ties(y)) + 6 * travelled) + eta
        loose = tight + (u_out * (4 * y + 2 * travelled) + eta if u_out else 0.0)
        far = torch.where(distance.isfinite(), distance, 0.0)
        more = u_out * (product + z.abs().nan_to_num(0, 0, 0) + far) + ETA[case.dtype]
        if not u_out:
            more = torch.where(high.abs() * math.log2(math.e) < MAX_EXPONENT, U * high.abs(), 0.0)
        sums = SUM * u_out + 2 * x.shape[-1] * eta if u_out and rows.sink is None else math.inf
        errors, N, floors = 2 * U * terms, x.shape[-1], (eta, 2 * eta if u_out else eta)
        whole = ScaledBound(y, tight, loose, high, z=z, errors=errors, loose_errors=errors + more, floors=floors, sums=sums)
        return Part(y[:, :N], tight[:, :N], loose[:, :N], high, whole=whole, exact=z[:, :N].isneginf(), unseen=_unseen(rows))

    def bound_backward(self, dy: torch.Tensor, y: torch.Tensor, case: Case, rows: Rows | None = None) -> HalfRead:
        """The bound on dx; `rows` has the inputs beside dy and y."""
        dy, y, unseen = _seen(dy, y, rows)
        u_out, eta, scale = U_OUT[case.dtype], ETA[case.dtype], scale_of(case)
        dx = without(scale * y * (dy - exact_dot(dy, y)), unseen)
        products = (y * dy).abs()
        reach = scale * (dy.abs() + products.sum(dim=-1, keepdim=True))
        size = y.abs() * reach
        tight = u_out * dx.abs() + U * size * (summing(products) - 4) + eta + SMALLEST * (reach + scale)
        flushed = y.abs() * products.clamp_max(eta).sum(dim=-1, keepdim=True)
        loose = tight + (u_out * (2 * size + 2 * dx.abs()) + 2 * eta * (1 + scale) + scale * flushed if u_out else 0.0)
        tight, loose = (without(bound, unseen) for bound in (tight, torch.as_tensor(loose)))
        return HalfRead(dx, tight, loose, unseen=torch.zeros_like(dx, dtype=torch.bool) if unseen is None else unseen)

    def bound_sink(self, dy: torch.Tensor, y: torch.Tensor, case: Case, rows: Rows) -> Bounded:
        """The bound on dsink, (rows,)."""
        dy, y, _ = _seen(dy, y, rows)
        assert rows.sink is not None
        share = rows.sink.double()
        products = (y * dy).abs()
        size = share * products.sum(dim=-1)
        tight = U * size * (summing(products)[:, 0] - 4) + SMALLEST * (1 + share * (1 + dy.abs().sum(dim=-1)))
        u_out = U_OUT[case.dtype]
        return Bounded(-share * exact_dot(dy, y)[:, 0], tight, tight + (2 * u_out * size + 2 * ETA[case.dtype] if u_out else 0.0))

    def rounding(self, case: Case, worst: Worst) -> str:
        if U_OUT[case.dtype]:
            return "rounds intermediates, such as scale * x or its sum with the bias, to 16 bits"
        if worst.high is None:
            return "rounds intermediates"
        return f"rounds max*log2(e) in its exponent, in a row whose maximum is {worst.high:.3g}"

    def masks_rows(self, case: Case) -> bool:
        return case.direction is not Direction.BACKWARD

    def again(self, case: Case, *inputs: Array) -> tuple[Again, ...]:
        given, scale = dict(zip(names(case), inputs, strict=True)), scale_of(case)
        first, sink, seen = given["first"], given.get("sink"), given.get("seen")
        unseen = numpy.arange(case.N) >= (numpy.full(len(first), case.N) if seen is None else seen)[:, None]
        if case.direction is Direction.FORWARD:
            return (_again_forward(first, scale, given.get("bias"), given.get("mask"), unseen, sink, U_OUT[case.dtype]),)
        dy, y = (numpy.where(unseen, 0.0, values) for values in (first, given["y"]))
        floor = FLUSHED * (1 + 4 * float(numpy.abs(dy).max(initial=0.0)))
        with numpy.errstate(all="ignore"):
            dot, sizes = numpy_dot(dy, y), numpy.abs(y * dy).sum(axis=-1, keepdims=True)
            dx, size = scale * y * (dy - dot), scale * numpy.abs(y) * (numpy.abs(dy) + sizes)
            back = Again(numpy.where(unseen, 0.0, dx), numpy.where(unseen, 0.0, size), floor * max(1.0, scale))
            return (back,) if sink is None else (back, Again(-sink * dot[:, 0], sink * sizes[:, 0], floor))

    def structured_rows(self, case: Case) -> Kinds:
        """Functions of the first tensor or, in a backward, of dy and y, and of Places."""
        if case.direction is Direction.FORWARD:
            return of_x(case.dtype) | {"at 100": lambda x, places: x.add_(100)}
        causal = "seen" in names(case)
        return {name: change for name, change in of_dy_and_y(case.dtype).items() if not (causal and name in NOT_FINITE)}

    def make_structured(self, given: Tensors, case: Case, seed: int, order: Sequence[str] = ()) -> list[str]:
        """As `structured_rows.make_structured`, and masks and sinks of many kinds. scale * x has the kinds of x."""
        rows, forward = split(case, [tensor.detach() for tensor in given]), case.direction is Direction.FORWARD
        places = Places(torch.Generator().manual_seed(seed), case.N, given[0].device)
        if rows.bias is not None:
            masks.vary(rows.bias, {**masks.of_mask(-math.inf), **masks.of_bias(case.dtype)}, places)
        if rows.mask is not None:
            masks.vary(rows.mask, masks.of_mask(False), places)
        if rows.sink is not None and forward:
            masks.vary(rows.sink, masks.of_sink(), places)
        scale = scale_of(case)
        if forward:
            names = make_structured((rows.first,), case, seed, self.structured_rows(case), order)
            shrink(rows.first, scale)
            return names
        assert rows.y is not None
        names = make_structured((rows.first, rows.y), case, seed, self.structured_rows(case), order)
        if case.dtype == "fp16":
            fit(rows.first, scale)
        return names

    def check_cases(self, op: str) -> list[CheckCase]:
        return masks.check_cases(op)


def _draw(case: Case, random: Draw) -> Rows:
    """x with masks, sinks, and the number of keys that each row sees."""
    x, generator = random.normal(case.M, case.N), random.generator
    kind, device = case.parameters.get(MASK.name), x.device
    needs = names(replace(case, direction=Direction.FORWARD))
    kept = None
    if kind:
        kept = torch.randint(256, x.shape, generator=generator, dtype=torch.uint8, device=device) < KEPT
        kept[:, :1] = True
    bias = None
    if kind == ADDITIVE and kept is not None:
        bias = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=device).masked_fill_(~kept, -math.inf)
    sink = seen = None
    if "sink" in needs:
        sink = ((math.log(case.N) + torch.randn(case.M, generator=generator, device=device)) * GRID).round() / GRID
    if "seen" in needs:
        seen = torch.randint(1, case.N + 1, (case.M,), generator=generator, device=device)
    return Rows(x, None, bias, kept if kind == BOOLEAN else None, sink, seen)


def _results(case: Case, dy: torch.Tensor, rows: Rows) -> Rows:
    """dy with the results of a forward of these rows: y, which takes the memory of x, and the share of the sink."""
    share = None if rows.sink is None else torch.empty_like(rows.sink)
    scale, y = scale_of(case), rows.first
    for part in row_chunks(case):
        some = Rows(*(None if tensor is None else tensor[part] for tensor in (y, None, rows.bias, rows.mask, rows.sink, rows.seen)))  # type: ignore[arg-type]
        some = replace(some, first=some.first.float(), bias=None if some.bias is None else some.bias.float())
        found = softmax(logits(some, scale))
        y[part] = found[:, : case.N].to(y.dtype)
        if share is not None:
            share[part] = found[:, case.N]
    return Rows(dy, y, sink=share, seen=rows.seen)


def _unseen(rows: Rows) -> torch.Tensor:
    """Where a row of a causal case sees no such key, (rows, N)."""
    found = hidden(Rows(rows.first, seen=rows.seen))
    return torch.zeros_like(rows.first, dtype=torch.bool) if found is None else found


def _seen(dy: torch.Tensor, y: torch.Tensor, rows: Rows | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """dy and y in float64 with zeros where the query sees no such key, and where that is."""
    unseen = None if rows is None else hidden(rows)
    return without(dy.double(), unseen), without(y.double(), unseen), unseen


def _terms(rows: Rows, z: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """t of each column, and |scale x|, both in the shape of z; 0 for elements that do not take part."""
    product = (scale * rows.first).abs()
    bias = torch.zeros_like(product) if rows.bias is None else rows.bias.abs()
    if rows.sink is not None:
        ends = torch.zeros_like(product[:, :1])
        product, bias = torch.cat([product, ends], dim=1), torch.cat([bias, ends], dim=1)
    there = z.isfinite()
    return torch.where(there, product + bias + z.abs(), 0.0), torch.where(there, product, 0.0)


def _again_forward(
    x: Array,
    scale: float,
    bias: Array | None,
    mask: Array | None,
    unseen: numpy.typing.NDArray[numpy.bool_],
    sink: Array | None,
    u_x: float,
) -> Again:
    """y of some rows; `u_x` is the rounding of x, 0 for float32."""
    with numpy.errstate(all="ignore"):
        z = scale * x if bias is None else scale * x + bias
        z = numpy.where(unseen if mask is None else unseen | (mask == 0), -numpy.inf, z)
        sizes = numpy.abs(scale * x) + (0.0 if bias is None else numpy.abs(bias)) + numpy.abs(z)
        if sink is not None:
            z = numpy.concatenate([z, sink[:, None]], axis=1)
            sizes = numpy.concatenate([sizes, numpy.abs(sink[:, None])], axis=1)
        terms = float(numpy.where(numpy.isfinite(z), sizes, 0.0).max())
        y = numpy_forward(z)[:, : x.shape[1]]
        return Again(y, y, FLUSHED, WIDEST * float(numpy.exp(min(6 * max(u_x, LEAST_ERROR) * terms, MAX_WIDER))))


NUMERICS = MaskedSoftmax()
