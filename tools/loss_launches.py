"""Small launches of every kernel of cross entropy and logprob: what tools/every_tier.py launches for these functions.

Rows begin anywhere, and each tensor ends where its memory ends. Some targets are ignored, and some are out of range: nothing may be read
there, and the row's results are NaN. Some gradients are written over the logits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from softbench.kernels.triton.launch_plan import KEEP_IN_L2_BYTES

FULL, HALF, BRAIN = torch.float32, torch.float16, torch.bfloat16
TOLERANCE = {FULL: 2e-5, HALF: 2e-3, BRAIN: 1e-2}
IGNORED = -100
OPTIONS: tuple[dict[str, float], ...] = ({}, {"z_loss": 1e-3}, {"label_smoothing": 0.1}, {"softcap": 5.0, "label_smoothing": 0.1})
LAYOUTS = ((0, 0), (3, 1), (8, 8), (5, 3))
"""Elements between rows, and before the first."""
DEVICE = "cuda"
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Launch:
    """One call of kernels on some rows. `read` and `moved` are bytes."""

    rows: int
    read: int
    moved: int
    run: Callable[[], str]
    """Makes the tensors, launches, and returns the name of the tier. A process makes only the tensors of its own part."""
    right: Callable[[], bool]
    """Whether the results are right."""


@dataclass
class Rows:
    """Logits, targets, and what the passes compute of them; `expected` and its gradient come from float64 on the CPU."""

    function: str
    M: int
    N: int
    dtype: torch.dtype
    options: dict[str, float]
    pad: int = 0
    offset: int = 0

    @property
    def bytes(self) -> int:
        return self.M * self.N * self.dtype.itemsize

    @property
    def logprob(self) -> bool:
        return self.function == "logprob"

    def make(self) -> None:
        """Makes the tensors."""
        self.target = torch.randint(self.N, (self.M,), device=DEVICE)
        self.target[1::5], self.target[3::7] = IGNORED, self.N
        self.target[4::31] = 2**31 - 1
        self.x = laid_out(self.M, self.N, self.dtype, self.pad, self.offset)
        self.upstream = torch.rand(2, self.M, device=DEVICE) + 0.5
        self.wide, self.places = self.x.cpu().double(), self.target.cpu()  # before a gradient is written over the logits
        inside = (self.places >= 0) & (self.places < self.N)
        self.valid = inside if self.logprob else inside | (self.places == IGNORED)

    def given(self) -> Tensors:
        """lse, and for logprob the entropy, of each row in float32."""
        return tuple(one.detach().float().to(DEVICE) for one in self.expected()[1:][::-1])

    def expected(self, wide: torch.Tensor | None = None) -> Tensors:
        """(loss, lse) or (logprob, entropy, lse)."""
        z, options = self.wide if wide is None else wide, {"z_loss": 0.0, "softcap": 0.0, "label_smoothing": 0.0, **self.options}
        places = torch.where(self.valid, self.places, 0)
        if self.logprob:
            y, lse = torch.log_softmax(z, -1), torch.logsumexp(z, -1)
            return y.gather(1, places[:, None])[:, 0], -(y.exp() * y).sum(-1), lse
        if options["softcap"]:
            z = options["softcap"] * torch.tanh(z / options["softcap"])
        lse, smooth = torch.logsumexp(z, -1), options["label_smoothing"]
        loss = torch.nn.functional.cross_entropy(z, places, reduction="none", label_smoothing=smooth, ignore_index=IGNORED)
        return loss + torch.where(self.places == IGNORED, 0.0, options["z_loss"] * lse.square()), lse

    def gradient(self, weights: torch.Tensor) -> torch.Tensor:
        """dx in float64, where the outputs have gradients `weights`, (outputs, rows)."""
        leaf = self.wide.clone().requires_grad_()
        outputs = self.expected(leaf)
        torch.autograd.backward([(one * weight).sum() for one, weight in zip(outputs, weights.cpu().double(), strict=False)])
        assert leaf.grad is not None
        return leaf.grad

    def agrees(self, found: torch.Tensor, expected: torch.Tensor, *, always: bool = False) -> bool:
        """Whether results are right: NaN in rows whose target is out of range, unless they do not depend on it (`always`)."""
        got, valid = found.cpu().double(), torch.ones_like(self.valid) if always else self.valid
        close = (got - expected).abs() <= TOLERANCE[found.dtype] * (1 + expected.abs().amax(-1, keepdim=expected.dim() > 1))
        return bool(close[valid].all()) and bool(got[~valid].isnan().all())


def laid_out(M: int, N: int, dtype: torch.dtype, pad: int = 0, offset: int = 0) -> torch.Tensor:
    """Random rows N + pad elements apart, whose memory ends with them."""
    memory = torch.empty((M - 1) * (N + pad) + N + offset, dtype=dtype, device=DEVICE)
    return memory.as_strided((M, N), (N + pad, 1), offset).copy_(3 * torch.randn(M, N, device=DEVICE))


def large(N: int, dtype: torch.dtype) -> int:
    """Rows that are just enough for the kernels that keep their reads in L2."""
    return math.ceil(KEEP_IN_L2_BYTES / (N * dtype.itemsize))


Out = Callable[[Rows], torch.Tensor]
"""Chooses where a gradient is written, once the rows have tensors."""
Named = Callable[[Callable[..., Any], Any], tuple[Any, str]]
"""Makes a call with a plan, or with None; returns its results and the name of what it launched."""


def reduction(losses: Any, rows: Rows, named: Named, plan: Any = None) -> Launch:
    """The pass that reads the logits."""
    results: list[Tensors] = []
    call = losses.logprob_forward if rows.logprob else losses.cross_entropy_forward

    def run() -> str:
        rows.make()
        found, tier = named(lambda **more: call(rows.x, rows.target, **rows.options, **more), plan)
        results.append(found)
        return f"forward {tier}"

    def right() -> bool:
        pairs = zip(results[0], rows.expected(), strict=True)
        return all(rows.agrees(found, one, always=place > 0) for place, (found, one) in enumerate(pairs))

    return Launch(rows.M, rows.bytes, rows.bytes, run, right)


def gradient(losses: Any, rows: Rows, named: Named, plan: Any = None, out: Out | None = None) -> Launch:
    """The pass that gets lse and the gradients of the outputs."""
    results: list[torch.Tensor] = []
    count = 2 if rows.logprob else 1
    call = losses.logprob_backward if rows.logprob else losses.cross_entropy_backward

    def run() -> str:
        rows.make()
        given, to = (*rows.given(), *rows.upstream[:count]), out and out(rows)
        found, tier = named(lambda **more: call(rows.x, rows.target, *given, **rows.options, out=to, **more), plan)
        results.append(found)
        return f"backward {tier}"

    def right() -> bool:
        return rows.agrees(results[0], rows.gradient(rows.upstream[:count]))

    return Launch(rows.M, rows.bytes, 2 * rows.bytes, run, right)


def fused(losses: Any, rows: Rows, named: Named, plan: Any = None, out: Out | None = None) -> Launch:
    """Loss and gradient in one call."""
    results: list[Tensors] = []

    def run() -> str:
        rows.make()
        to = out and out(rows)
        found, tier = named(lambda **more: losses.cross_entropy_fused(rows.x, rows.target, **rows.options, out=to, **more), plan)
        results.append(found)
        return f"{'in place' if to is rows.x else 'fused'} {tier}"

    def right() -> bool:
        loss, dx = results[0]
        return rows.agrees(loss, rows.expected()[0]) and rows.agrees(dx, rows.gradient(torch.ones(1, rows.M)))

    return Launch(rows.M, rows.bytes, 2 * rows.bytes, run, right)


def in_place(rows: Rows) -> torch.Tensor:
    return rows.x


def elsewhere(rows: Rows) -> torch.Tensor:
    """Rows with another stride and start than the logits."""
    return laid_out(rows.M, rows.N, rows.dtype, rows.pad + 1, rows.offset + 1)


def of_any_plan(function: str, losses: Any, named: Named, dtypes: Sequence[torch.dtype], lengths: Sequence[int]) -> Iterator[Launch]:
    """Launches whose plans the rules choose: few rows and many, short and long, anywhere in memory, and gradients in place."""
    kinds = OPTIONS if function == "cross_entropy" else ({},)
    for dtype, (N, options) in itertools.product(dtypes, zip(lengths, itertools.cycle(kinds))):
        for M, (pad, offset) in zip((5, 3, 5, 200 if N < 2000 else 9), LAYOUTS, strict=True):

            def rows(options: dict[str, float] = options, M: int = M, pad: int = pad, offset: int = offset) -> Rows:
                return Rows(function, M, N, dtype, options, pad, offset)  # noqa: B023

            yield reduction(losses, rows(), named)
            yield gradient(losses, rows(), named, out=elsewhere)
            yield gradient(losses, rows(), named, out=in_place)
            if function == "cross_entropy":
                yield fused(losses, rows(), named)
                yield fused(losses, rows({}), named, out=elsewhere)
                yield fused(losses, rows(), named, out=in_place)
                yield fused(losses, rows({}), named, out=in_place)
    if function == "cross_entropy":  # in place, a row that no cluster's registers hold
        yield fused(losses, Rows(function, 1, 132001, FULL, {}), named, out=in_place)
    for dtype, N in ((BRAIN, 197), (BRAIN, 8190), (FULL, 1030), (BRAIN, 200001)):
        yield gradient(losses, Rows(function, large(N, dtype), N, dtype, {}), named)
        if function == "cross_entropy":
            yield fused(losses, Rows(function, large(N, dtype), N, dtype, {}), named)


def cuda_launches(function: str) -> Iterator[Launch]:
    from softbench.kernels.cuda import losses
    from softbench.kernels.cuda.launch import TIERS, Plan

    tier = {name: number for number, name in enumerate(TIERS)}

    def named(call: Callable[..., Any], numbers: tuple[int, ...] | None) -> tuple[Any, str]:
        plan = Plan(*(numbers or (-1,)))
        found = call(plan=plan)
        return found, TIERS[plan.tier] if plan.tier >= 0 else "two kernels"

    yield from of_any_plan(function, losses, named, (FULL, HALF, BRAIN), (1, 7, 50, 333, 1000, 5003, 33000))
    for dtype in (FULL, BRAIN):
        V = 16 // dtype.itemsize
        kinds = OPTIONS[1:] if function == "cross_entropy" else ({},)
        for options in kinds:
            counts = bool(options.keys() & {"label_smoothing", "softcap"})
            for N, numbers in (
                (333, ("warp", 4, 128, 1)),
                *((5003, ("split", 4, 64, ctas)) for ctas in (1, 2, 7)),
                *((5003, ("split", 8, 128, ctas)) for ctas in (1, 3) if not counts),
                (33000, ("split", 4, 256, 100)),
            ):
                yield reduction(losses, Rows(function, 5, N, dtype, options, 3, 1), named, (tier[numbers[0]], *numbers[1:]))
            for held in (2, 4, 8):
                ctas = math.ceil((5003 / V + 8) / (held * 128))
                yield gradient(losses, Rows(function, 5, 5003, dtype, options, 3, 1), named, (tier["split"], held, 128, ctas))
        if function == "cross_entropy":
            for N, (name, *rest) in fused_plans(V):
                M = 70 if rest[-1] == 2000 else 3
                yield fused(losses, Rows(function, M, N, dtype, {"z_loss": 1e-3}), named, (tier[name], *rest))


def fused_plans(V: int) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """N and a plan of the fused pass with the name of its tier. V: elements of a vector."""
    for held in (1, 2, 4, 8):
        yield 3001, ("block", held, 32 * math.ceil((3001 / V + 8) / held / 32), 1, 0, 128, 0)
    for (held, threads), ctas in itertools.product(((2, 512), (4, 512), (8, 256), (8, 512), (12, 256)), (2, 3, 16)):
        if ctas * threads * held * V >= 16389 + 128:
            yield 16389, ("cluster", held, threads, ctas, 0, 128, 0)
    for ctas in (1, 3):
        yield 16389, ("cluster_bulk", 24, 256, ctas, 0, 128, 0)
        yield ctas * 7000 * V + 5, ("cluster_bulk", 24, 256, ctas, 0, 128, 0)  # more than registers hold: the rest is in shared memory
    for (held, threads), ctas, polls in itertools.product(((8, 256), (8, 512), (24, 256)), (1, 3, 5), (1 << 16, 0)):
        yield 16389, ("split_bulk", held, threads, ctas, 0, 128, polls)
    for held, threads, ctas, smem, polls in (
        *((4, 512, 4, 0, 1 << 16), (4, 256, 3, 2, 1 << 16), (4, 256, 4, 1, -1), (4, 512, 1, 4, 0)),
        *((held, 256, math.ceil((16389 / V + 8) / (held * 256)) + 1, 0, polls) for held in (2, 4) for polls in (1 << 16, -1)),
    ):
        yield 16389, ("split", held, threads, ctas, smem, 128, polls)
    yield 16389, ("cluster", 8, 256, 16, 0, 128, 0, 2000)  # rows that begin in turns: more of them than the card holds
    yield 16389, ("split_bulk", 8, 256, 66, 0, 128, 1 << 16, 2000)


def triton_launches(function: str) -> Iterator[Launch]:
    from softbench.kernels.triton import losses

    names: list[str] = []
    prepare = losses.prepare

    def recorded(*given: Any) -> Any:
        found = prepare(*given)
        if found is not None:  # else two others follow
            names.append(found.kernel.__name__)
        return found

    losses.prepare = recorded

    def named(call: Callable[..., Any], plan: None) -> tuple[Any, str]:
        names.clear()
        losses._cache.clear()
        return call(), " and ".join(names)

    yield from of_any_plan(function, losses, named, (FULL, BRAIN), (7, 333, 5003, 33000))  # each takes Triton about a second
