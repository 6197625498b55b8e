"""Small launches of every kernel of cross entropy and logprob, for tools/every_tier.py.

Rows begin anywhere, and each tensor ends where its memory ends. Some targets are ignored, and some are out of range: nothing may be read
there, and the row's results are NaN. Some gradients are written over the logits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import launches
import torch
from launches import BRAIN, FULL, HALF, Launch, Pairs, spaced
from softbench.kernels.triton.launch_plan import KEEP_IN_L2_BYTES

IGNORED = -100
OPTIONS: tuple[dict[str, float], ...] = (
    {},
    {"z_loss": 1e-3},
    {"label_smoothing": 0.1},
    {"softcap": 5.0, "label_smoothing": 0.1},
    {"logit_scale": 0.7},
)
LAYOUTS = ((0, 0), (3, 1), (8, 8), (5, 3))
"""Elements between rows, and before the first."""
FORWARD, BACKWARD, FUSED = "forward", "backward", "fused"
NEW, ELSEWHERE, IN_PLACE = "new", "elsewhere", "in place"
"""Where a gradient is written: in new rows, in rows with another stride and start than the logits, or over the logits."""
Tensors = tuple[torch.Tensor, ...]
Named = Callable[[Callable[..., Any], Any], tuple[Any, str]]
"""Makes a call with a plan, or with None; returns its results and the name of what it launched."""


@dataclass
class Rows:
    """Logits, targets, and what the passes compute of them."""

    function: str
    M: int
    N: int
    dtype: torch.dtype
    options: dict[str, float]
    pad: int = 0
    offset: int = 0

    def make(self) -> None:
        """Makes the tensors."""
        self.target = torch.randint(self.N, (self.M,), device=launches.DEVICE)
        self.target[1::5], self.target[3::7] = IGNORED, self.N
        self.target[4::31] = 2**31 - 1
        self.x = spaced(self.M, self.N, self.dtype, self.pad, self.offset).copy_(3 * torch.randn(self.M, self.N, device=launches.DEVICE))
        self.weights = torch.rand(2 if self.function == "logprob" else 1, self.M, device=launches.DEVICE) + 0.5
        self.wide, self.places = self.x.cpu().double(), self.target.cpu()  # before a gradient is written over the logits

    def expected(self, z: torch.Tensor) -> Tensors:
        """(loss, lse) or (logprob, entropy, lse) of float64 logits. Without lse and entropy, rows with a bad target are NaN."""
        inside = (self.places >= 0) & (self.places < self.N)
        places = torch.where(inside, self.places, 0)
        if self.function == "logprob":
            y, lse = torch.log_softmax(z, -1), torch.logsumexp(z, -1)
            return torch.where(inside, y.gather(1, places[:, None])[:, 0], math.nan), -(y.exp() * y).sum(-1), lse
        options = {"z_loss": 0.0, "softcap": 0.0, "label_smoothing": 0.0, "logit_scale": 1.0, **self.options}
        z = options["logit_scale"] * z
        if options["softcap"]:
            z = options["softcap"] * torch.tanh(z / options["softcap"])
        ignored, lse = self.places == IGNORED, torch.logsumexp(z, -1)
        loss = torch.nn.functional.cross_entropy(z, places, reduction="none", label_smoothing=options["label_smoothing"])
        loss = torch.where(ignored, 0.0, loss + options["z_loss"] * lse.square())
        return torch.where(inside | ignored, loss, math.nan), lse

    def gradient(self, weights: torch.Tensor) -> torch.Tensor:
        """dx, where the outputs have gradients `weights`, (outputs, rows)."""
        leaf = self.wide.clone().requires_grad_()
        outputs = self.expected(leaf)
        bad = outputs[0].isnan()
        total = sum((torch.where(bad, 0.0, one) * weight).sum() for one, weight in zip(outputs, weights.cpu().double(), strict=False))
        (dx,) = torch.autograd.grad(total, leaf)
        return torch.where(bad[:, None], math.nan, dx)


def launch_of(losses: Any, direction: str, rows: Rows, named: Named, plan: Any = None, to: str = NEW) -> Launch:
    """A pass of the rows."""
    size = rows.M * rows.N * rows.dtype.itemsize
    call = getattr(losses, f"{rows.function}_{direction}")

    def run() -> tuple[str, Callable[[], Pairs]]:
        rows.make()
        given, more = [rows.x, rows.target], {}
        if direction == BACKWARD:  # lse, and for logprob the entropy, and the gradients of the outputs
            given += [*(one.float().to(launches.DEVICE) for one in rows.expected(rows.wide)[1:][::-1]), *rows.weights]
        if to == IN_PLACE:
            more["out"] = rows.x
        elif to == ELSEWHERE:
            more["out"] = spaced(rows.M, rows.N, rows.dtype, rows.pad + 1, rows.offset + 1)
        found, tier = named(lambda **plans: call(*given, **rows.options, **more, **plans), plan)

        def pairs() -> Pairs:
            if direction == FORWARD:
                return list(zip(found, rows.expected(rows.wide), strict=True))
            if direction == BACKWARD:
                return [(found, rows.gradient(rows.weights))]
            return [(found[0], rows.expected(rows.wide)[0]), (found[1], rows.gradient(torch.ones(1, rows.M)))]

        return f"{IN_PLACE if direction == FUSED and to == IN_PLACE else direction} {tier}", pairs

    return Launch(rows.M, size, size if direction == FORWARD else 2 * size, run)


def of_any_plan(function: str, losses: Any, named: Named, dtypes: Sequence[torch.dtype], lengths: Sequence[int]) -> Iterator[Launch]:
    """Launches whose plans the rules choose: few rows and many, short and long, anywhere in memory, and gradients in place."""
    loss = function == "cross_entropy"
    for dtype, (N, options) in itertools.product(dtypes, zip(lengths, itertools.cycle(OPTIONS if loss else ({},)))):
        for M, (pad, offset) in zip((5, 3, 5, 200 if N < 2000 else 9), LAYOUTS, strict=True):
            for direction, to, given in (
                *((FORWARD, NEW, options), (BACKWARD, ELSEWHERE, options), (BACKWARD, IN_PLACE, options)),
                *((FUSED, to, given) for to, given in ((NEW, options), (ELSEWHERE, {}), (IN_PLACE, options), (IN_PLACE, {})) if loss),
            ):
                yield launch_of(losses, direction, Rows(function, M, N, dtype, given, pad, offset), named, to=to)
    if loss:  # in place, a row that no cluster's registers hold
        yield launch_of(losses, FUSED, Rows(function, 1, 132001, FULL, {}), named, to=IN_PLACE)
    for dtype, N in ((BRAIN, 197), (BRAIN, 8190), (FULL, 1030), (BRAIN, 200001)):
        many = math.ceil(KEEP_IN_L2_BYTES / (N * dtype.itemsize))  # just enough for the kernels that keep their reads in L2
        for direction in (BACKWARD, FUSED) if loss else (BACKWARD,):
            yield launch_of(losses, direction, Rows(function, many, N, dtype, {}), named)


def cuda_launches(function: str) -> Iterator[Launch]:
    from softbench.kernels.cuda import losses
    from softbench.kernels.cuda.launch import TIERS, Plan

    def named(call: Callable[..., Any], numbers: tuple[Any, ...] | None) -> tuple[Any, str]:
        plan = Plan(*((TIERS.index(numbers[0]), *numbers[1:]) if numbers else (-1,)))
        found = call(plan=plan)
        return found, TIERS[plan.tier] if plan.tier >= 0 else "two kernels"

    yield from of_any_plan(function, losses, named, (FULL, HALF, BRAIN), (1, 7, 50, 333, 1000, 5003, 33000))
    for dtype in (FULL, BRAIN):
        V = 16 // dtype.itemsize
        for options in OPTIONS[1:] if function == "cross_entropy" else ({},):
            counts = bool(options.keys() & {"label_smoothing", "softcap"})
            for N, plan in (
                (333, ("warp", 4, 128, 1)),
                *((5003, ("split", 4, 64, ctas)) for ctas in (1, 2, 7)),
                *((5003, ("split", 8, 128, ctas)) for ctas in (1, 3) if not counts),
                (33000, ("split", 4, 256, 100)),
            ):
                yield launch_of(losses, FORWARD, Rows(function, 5, N, dtype, options, 3, 1), named, plan)
            plan = "split", 4, 128, math.ceil((5003 / V + 8) / 512)
            yield launch_of(losses, BACKWARD, Rows(function, 5, 5003, dtype, options, 3, 1), named, plan)
        if function == "cross_entropy":
            for N, plan in fused_plans(V):
                M = 70 if plan[-1] == 2000 else 3
                yield launch_of(losses, FUSED, Rows(function, M, N, dtype, {"z_loss": 1e-3}), named, plan)


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
            names.append(found.kernel.__name__.replace("rows", "cluster") if "num_ctas" in found.options else found.kernel.__name__)
        return found

    losses.prepare = recorded

    def named(call: Callable[..., Any], plan: None) -> tuple[Any, str]:
        names.clear()
        losses._cache.clear()
        return call(), " and ".join(names)

    yield from of_any_plan(function, losses, named, (FULL, BRAIN), (7, 333, 5003, 33000))  # each takes Triton about a second
