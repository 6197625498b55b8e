"""Random launches of the Triton kernels on a card that is not here, with the plans that the rules choose there.

A kind of launches is a set of kernels:

- rows: softmax and log_softmax, with a scale, and with float32 results of 16-bit rows.
- traced: what compilers see of them (`softbench.kernels.triton.traceable`).
- losses: cross entropy and logprob, each pass. scores: masked softmax and its gradient. Both contain PTX, so AMD's GPUs have none.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from card_limits import RESERVED, SM_REGISTERS, Card, Operand

LARGE = 32 << 20  # bytes that a launch reads, from which the kernels keep them in L2
MOST_SPILLED = {"forward_rows": 8, "backward_cluster": 24, "backward_split": 16, "fused_rows": 16, "fused_rows of a cluster": 176}
MOST_SPILLED |= {"forward_scores": 96, "backward_scores": 32}
"""Kernels that are known to spill with some plans, and how many bytes of a thread."""


@dataclass(frozen=True)
class Launch:
    """A kernel, and what it is launched with."""

    told: str
    kernel: Any
    operands: list[Any]
    arguments: tuple[Any, ...]
    options: dict[str, int]
    plan: Any = None
    together: int = 1
    """How many programs an SM must hold at the same time, as they wait for each other."""

    @property
    def most_spilled(self) -> int:
        """Bytes of a thread that the kernel may spill. `forward_rows` does so with log_softmax only."""
        name = self.kernel.__name__
        if name == "fused_rows" and "num_ctas" in self.options:
            name += " of a cluster"
        return 0 if name == "forward_rows" and not self.told.startswith("log_") else MOST_SPILLED.get(name, 0)

    @property
    def group(self) -> tuple[Any, ...]:
        """Kernel and tier, of which each is compiled at least once."""
        return self.kernel.__name__, getattr(self.plan, "tier", None)

    @property
    def key(self) -> tuple[Any, ...]:
        """What the machine code depends on, but for the numbers among the arguments that are no constants."""
        given = zip(self.kernel.arg_names, [*self.operands, *self.arguments], strict=True)
        known = [
            (one.dtype, one.address) if isinstance(one, Operand) else one if name.isupper() or one is None else 0 for name, one in given
        ]
        return self.kernel.__name__, *known, *self.options.items()


@dataclass(eq=False)
class Asked:
    """Takes a kernel's place, and keeps its launches."""

    kernel: Any
    launches: list[tuple[Any, tuple[Any, ...], dict[str, int]]]

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *arguments, **options: self.launches.append((self.kernel, arguments, options))


def clusters(card: Card) -> bool:
    """Whether a card has clusters of 16 CTAs, as `softbench.kernels.triton.devices` finds it."""
    from softbench.kernels.triton import devices

    return not card.amd and card.capability >= 10 * devices.HOPPER and card.cta_shared >= devices.LARGE_SHARED


@contextmanager
def on(card: Card) -> Iterator[None]:
    """While the rules are asked, the device is the card. No table has its name."""
    from softbench.kernels.triton import dispatch, masked_softmax as scores, traceable

    hopper = card.capability == 90 and not card.amd
    traits = ("", card.capability), card.sms, clusters(card), 0.0 if card.amd else 2.0, hopper

    def policy(*inputs: torch.Tensor) -> str:
        return "evict_last" if hopper and sum(one.nbytes for one in inputs) >= LARGE else ""

    with ExitStack() as stack:
        for module, name, value in (
            (dispatch, "device_traits", lambda device: traits),
            (traceable, "device_traits", lambda device: traits),
            (scores, "_hopper", lambda device: hopper),
            (scores, "_policy", policy),
            (torch.version, "hip", "6.4" if card.amd else None),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield


def launches(card: Card, kind: str, number: int) -> list[Launch]:
    """The launches of a kind with this number; some numbers have none."""
    with on(card):
        return KINDS[kind](card, random.Random(f"{kind} {number}"))


def misfit(card: Card, launch: Launch) -> str | None:
    """What of a launch's plan the card does not have, or None."""
    if card.amd and getattr(launch.plan, "tier", None) not in ("tile", "loop"):
        return "way to run PTX"
    threads = launch.options["num_warps"] * (64 if card.amd and not card.architecture.startswith("gfx1") else 32)
    ctas, registers = launch.options.get("num_ctas", 1), launch.options.get("maxnreg", 0)
    inputs = 2 if launch.kernel.__name__ == "backward_split" else 1
    smem = getattr(launch.plan, "smem_tiles", 0) * inputs * threads * 16 + RESERVED
    if threads > min(1024, card.sm_threads):
        return f"{threads} threads"
    if -(-registers // 8) * 8 * threads * launch.together > SM_REGISTERS:
        return f"{registers} registers of {threads} threads, for {launch.together} programs of an SM"
    if ctas > (16 if clusters(card) else 1):
        return f"a cluster of {ctas} CTAs"
    if smem > card.cta_shared or smem * launch.together > card.sm_shared:
        return f"{smem} bytes of shared memory, for {launch.together} programs of an SM"
    most = min(card.sm_threads // threads, card.sm_ctas)
    return f"{launch.together} programs of an SM" if launch.together > most else None


def _rows(M: int, N: int, dtype: torch.dtype, pad: int, first: int) -> torch.Tensor:
    """Rows without data, `pad` elements apart, from element `first` of a vector on."""
    return torch.empty(first + M * (N + pad), dtype=dtype, device="meta")[first:].as_strided((M, N), (N + pad, 1))


def _shape(dice: random.Random, most_log2: float = 22) -> tuple[int, int]:
    """Rows and columns of all lengths; half of the lengths are aligned. One launch of seven has millions of elements in short rows."""
    if dice.random() < 1 / 7:
        N = dice.randint(1, 256)
        return round(2 ** dice.uniform(20, 25)) // N, N
    N = round(2 ** dice.uniform(0, most_log2))
    if dice.random() < 0.5:
        N = max(1, N // 64) * 64
    return dice.choice((1, dice.randint(2, 200), round(2 ** dice.uniform(8, 17)))), N


def _layout(dice: random.Random, N: int) -> tuple[int, int]:
    """Elements between rows, and before the first one. Most rows lie back to back from a vector's boundary on."""
    return dice.choice(((0, 0), (0, 0), (0, 0), (8, 0), (0, dice.randint(1, 7)), (dice.randint(1, 7), 0)))


def _operands(tensors: Any) -> list[Any]:
    return [Operand(one.dtype, one.data_ptr() % 16 or 16) if isinstance(one, torch.Tensor) else one for one in tensors]


def _together(card: Card, split_ctas: int) -> int:
    return -(-split_ctas // card.sms)


def planned(card: Card, problem: Any, plan: Any, log: bool = False, scale: float | None = None) -> Launch:
    """The launch of a plan on a card, of float32 or bfloat16 rows."""
    from softbench.kernels.triton import dispatch

    dtype = torch.float32 if problem.element_size == 4 else torch.bfloat16
    rows: Any = SimpleNamespace(stride=lambda _: problem.N)
    ready = dispatch.prepare_launch(problem, plan, (rows,) * (problem.reads + 1), log)
    operands = [Operand(dtype, problem.alignment)] * (problem.reads + 1) + [Operand(torch.int64, 16)] * (2 if ready.slots else 0)
    told = f"{'log_' * log}softmax, {problem}, {plan}"
    return Launch(told, ready.kernel, operands, (*ready.arguments, scale), ready.options, plan, _together(card, plan.split_ctas))


def of_rows(card: Card, dice: random.Random) -> list[Launch]:
    from softbench.kernels.triton import dispatch

    dtype, backward = dice.choice((torch.float32, torch.float16, torch.bfloat16)), dice.random() < 0.5
    (M, N), log = _shape(dice), dice.random() < 0.5
    pad, first = _layout(dice, N)
    out = torch.float32 if not backward and dice.random() < 0.2 else dtype
    tensors = (*[_rows(M, N, dtype, pad, first)] * (2 if backward else 1), _rows(M, N, out, pad, first))
    scale = dice.choice((None, 0.7))
    problem, plan = dispatch.choose_plan(tensors)
    ready = dispatch.prepare_launch(problem, plan, tensors, log)
    operands = _operands(tensors) + ([Operand(torch.int64, 16)] * 2 if ready.slots else [])
    told = f"{'log_' * log}softmax{' gradient' * backward} {M}x{N} {dtype} to {out}, {plan}"
    return [Launch(told, ready.kernel, operands, (*ready.arguments, scale), ready.options, plan, _together(card, plan.split_ctas))]


def of_traced(card: Card, dice: random.Random) -> list[Launch]:
    from softbench.kernels.triton import traceable, traceable_rows

    dtype, backward = dice.choice((torch.float32, torch.float16, torch.bfloat16)), dice.random() < 0.5
    (M, N), log = _shape(dice), dice.random() < 0.5
    pad, first = _layout(dice, N)
    alike = dice.random() < 0.8  # in all tensors, a row has the same offset from a vector's boundary
    tensors = (*[_rows(M, N, dtype, pad, first)] * (2 if backward else 1), _rows(M, N, dtype, pad + (not alike), first))
    if traceable.are_long(tensors[:-1], 1):
        return []
    how = traceable.launch_of(tensors, log)
    told = f"traced {'log_' * log}softmax{' gradient' * backward} {M}x{N} {dtype}, {how}"
    names = {"rows": "forward_traceable", "tile": "tile_traceable"}
    if backward:
        names = {"rows": "backward_traceable", "tile": "gradient_tile_traceable"}
    kernel = getattr(traceable_rows, names[how.tier])
    plan = SimpleNamespace(tier=how.tier)
    return [Launch(told, kernel, _operands(tensors), how.arguments, {"num_warps": how.num_warps}, plan, _together(card, 1))]


def of_losses(card: Card, dice: random.Random) -> list[Launch]:
    from softbench.kernels.triton import losses

    if card.amd:
        return []
    dtype, name = dice.choice((torch.float32, torch.float16, torch.bfloat16)), dice.choice(("reduction", "gradient", "fused"))
    M, N = _shape(dice, 19)
    pad, first = _layout(dice, N)
    options = dice.choice(
        (
            losses.Options(),
            losses.Options(label_smoothing=0.1),
            losses.Options(z_loss=1e-4),
            losses.Options(softcap=30.0),
            losses.Options(label_smoothing=0.1, z_loss=1e-4, softcap=30.0),
            losses.Options(logprob=True),
        )
    )
    if name == "fused":
        options = options._replace(logprob=False)
    x, target, row = _rows(M, N, dtype, pad, first), torch.empty(M, dtype=torch.int64, device="meta"), torch.empty(M, device="meta")
    third = row if options.logprob else None
    given = {
        "reduction": (x, target, row, row, third),
        "gradient": (x, target, row, third, row, third, x),
        "fused": (x, target, x, row, dice.choice((None, row[:1]))),
    }[name]
    ready = losses.prepare(name, given, options)
    if ready is None:
        return []
    scratch = [Operand(torch.float32, 16) if ready.floats else None, Operand(torch.int64, 16) if ready.counters else None][: ready.places]
    told = f"{name} {M}x{N} {dtype} {options}, {ready.options} {ready.arguments}"
    return [Launch(told, ready.kernel, [*_operands(given), *scratch], ready.arguments, ready.options)]


def of_scores(card: Card, dice: random.Random) -> list[Launch]:
    from softbench.kernels.triton import masked_softmax as scores

    if card.amd:
        return []
    dtype = dice.choice((torch.float32, torch.float16, torch.bfloat16))
    N = round(2 ** dice.uniform(0, 14))
    N = max(1, N // 64) * 64 if dice.random() < 0.5 else N
    B, H, S = dice.randint(1, 4), dice.randint(1, 8), dice.choice((1, dice.randint(1, N), N))
    causal = dice.random() < 0.5 and S <= N
    x, share = torch.empty(B, H, S, N, dtype=dtype, device="meta"), torch.empty(B, H, S, device="meta")
    mask = dice.choice(
        (None, torch.empty(B, 1, S, N, dtype=dtype, device="meta"), torch.empty(1, 1, S, N, dtype=torch.bool, device="meta"))
    )
    sink = dice.choice((None, torch.empty(H, device="meta")))
    found: list[tuple[Any, tuple[Any, ...], dict[str, int]]] = []
    with ExitStack() as stack:
        for name in ("forward_scores", "backward_scores", "forward_causal", "backward_causal"):
            stack.enter_context(patch.object(scores, name, Asked(getattr(scores, name), found)))
        given = None if mask is None else mask.expand(x.shape)
        scores.launch_forward(x, given, sink, x, None if sink is None else share, 0.125, causal, rows=lambda *_: None)
        scores.launch_backward(
            x, x, None if sink is None else share, x, None if sink is None else share, 0.125, causal, rows=lambda *_: None
        )
    told = f"{(B, H, S, N)} {dtype}{' causal' * causal}, mask {mask is not None and mask.dtype}, sink {sink is not None}"
    return [Launch(f"{kernel.__name__} {told}", kernel, _operands(arguments), (), options) for kernel, arguments, options in found]


KINDS: dict[str, Callable[[Card, random.Random], list[Launch]]] = {
    "rows": of_rows,
    "traced": of_traced,
    "losses": of_losses,
    "scores": of_scores,
}
"""Kinds of launches by their names."""
