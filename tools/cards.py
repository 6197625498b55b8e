"""Compiles our kernels for cards that are not here, without a GPU: python tools/cards.py plans|triton|cuda [--card NAME ...]

- plans: asks the Triton rules for --shapes random launches of each kind for each card, and compares the plans with the card's limits.
- triton: compiles --most of those launches of each kind for each architecture. AMD's GPUs have the kernels without PTX.
- cuda: compiles the parts of all CUDA sources for each architecture, or --most of them. All take minutes of a core for each.

It prints a line for each thing that spills more registers than is known, or does not fit a card, and a summary. Exit code 1: there was
such a thing. `card_launches.py` has the kinds of launches, and the known spills of Triton's kernels.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import card_launches
from card_compiler import Operand as Operand, compiled, illegal_copies as illegal_copies, resources
from card_cuda import beyond_limits as beyond_limits, cuda_parts, cuda_reports, spilling as spilling
from card_launches import KINDS, Launch
from card_limits import CARDS, Card, Resources

Work = tuple[Card, str, int, int]
"""A card, a kind of launches, their number, and which of them."""


def problem_of(card: Card, backward: bool, M: int, N: int, size: int, alignment: int) -> Any:
    """The launch problem on a card. The fast tiers contain PTX, so AMD's GPUs have the generic ones."""
    from softbench.kernels.triton.launch_plan import Problem

    hopper = card.capability == 90 and not card.amd
    return Problem(backward, M, N, size, alignment, not card.amd, card.sms, card_launches.clusters(card), 2.0, hopper)


def ask_plans(cards: list[Card], shapes: int, seed: int) -> list[str]:
    """What does not fit, of the plans of random launches."""
    asked = ((card, kind, number) for card in cards for kind in KINDS for number in range(seed * shapes, (seed + 1) * shapes))
    every = ((card, launch) for card, kind, number in asked for launch in card_launches.launches(card, kind, number))
    return [
        f"{card.name} has no {what}: {launch.told}" for card, launch in every if (what := card_launches.misfit(card, launch)) is not None
    ]


def compile_plan(card: Card, problem: Any, plan: Any, log: bool = False) -> Resources:
    """Compiles the kernel of a plan for a card: of float32 or bfloat16 rows."""
    return resources(card, compiled_plan(card, problem, plan, log))


def compiled_plan(card: Card, problem: Any, plan: Any, log: bool = False, scale: float | None = None) -> Any:
    """The kernel of a plan for a card: of float32 or bfloat16 rows."""
    return compiled_launch(card, card_launches.planned(card, problem, plan, log, scale))


def compiled_launch(card: Card, launch: Launch) -> Any:
    """The kernel of a launch for a card."""
    return compiled(card, launch.kernel, launch.operands, launch.arguments, launch.options)


def compile_work(work: Work) -> str | None:
    """A line if the kernel does not compile, spills or does not fit; for a process of its own."""
    card, kind, number, which = work
    launch = card_launches.launches(card, kind, number)[which]
    try:
        what = resources(card, compiled_launch(card, launch)).misfit(card, launch.together, launch.most_spilled)
    except Exception as error:
        what = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    return what and f"{card.name} ({card.architecture}): {what}: {kind} {number}: {launch.told}"


def triton_work(cards: list[Card], most: int, seed: int) -> list[Work]:
    """`most` launches of each kind for each architecture; no kernel twice, and each kernel and tier among the first."""
    work: list[Work] = []
    for card in {card.architecture: card for card in cards}.values():
        for kind in KINDS:
            found: dict[tuple[Any, ...], Work] = {}
            first: dict[tuple[Any, ...], tuple[Any, ...]] = {}
            for number in range(seed * 10_000, seed * 10_000 + 10 * most):
                for which, launch in enumerate(card_launches.launches(card, kind, number)):
                    first.setdefault(launch.group, launch.key)
                    found.setdefault(launch.key, (card, kind, number, which))
            work += [found[key] for key in list(dict.fromkeys([*first.values(), *found]))[: max(most, len(first))]]
    return work


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("plans", "triton", "cuda"))
    parser.add_argument("--card", nargs="*", choices=[card.name for card in CARDS], help="by default all")
    parser.add_argument("--shapes", type=int, default=5000, help="of each card and kind, for plans")
    parser.add_argument("--most", type=int, help="launches of each kind (triton, 40 by default) or parts (cuda, all by default)")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    cards = [card for card in CARDS if not asked.card or card.name in asked.card]
    if asked.what == "plans":
        bad, done = ask_plans(cards, asked.shapes, asked.seed), f"{len(cards)} cards, {len(KINDS)} kinds, {asked.shapes} shapes each"
    elif asked.what == "triton":
        work = triton_work(cards, 40 if asked.most is None else asked.most, asked.seed)
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
            bad = [line for line in pool.map(compile_work, work) if line]
        done = f"{len(work)} kernels"
    else:
        architectures = list(dict.fromkeys(card.architecture for card in cards if not card.amd))
        parts = cuda_parts(architectures, asked.most, asked.seed)
        bad, done = list(cuda_reports(parts)), f"{', '.join(architectures)}: {len(parts)} parts"
    print(*bad, sep="\n")
    print(f"{done}; {len(bad)} do not fit")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
