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
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import card_launches
from card_launches import KINDS, Launch
from card_limits import CARDS, KIB, Card, Operand as Operand, Resources, compiled, illegal_copies as illegal_copies, resources

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


SPILLED = {
    "sm_103a": "9softbench(?:5block|7cluster|16sub_warp_aligned)INS_7ForwardIff",
    "sm_120a": "9softbench(?:5splitINS_8BackwardIf|16sub_warp_alignedINS_7ForwardI(?:13__nv_bfloat16|6__half)f)",
}
"""Kernels that are known to spill, by their mangled names: of float32 rows or results. None was ever timed there."""
MOST_SPILLED = 12
"""Bytes of a thread of theirs."""
COLUMNS, COLUMNS_SPILLED = "9softbench7columnsI", 144
"""Kernels of columns spill on every architecture, and how many bytes of a thread at most: 16-bit rows with float32 results most. They keep
64 registers a thread, since an SM then holds two CTAs.
"""


def _unused(name: str, architecture: str) -> bool:
    """Whether the rules do not launch a kernel on the architecture.

    Before Hopper that is a kernel that needs clusters, and anywhere but on Hopper one that keeps its reads in L2.
    """
    clusters = any(card.cta_shared >= 200 * KIB for card in CARDS if card.architecture == architecture)
    needs_clusters = not clusters and re.search("9softbench(?:7cluster|4bulk)I", name)
    keeps_in_l2 = architecture != "sm_90a" and re.search(r"9softbench\d+(?!generic)\w*Lb1EEEvNS_7TensorsI", name)
    return bool(needs_clusters or keeps_in_l2)


def spilling(report: str, architecture: str) -> list[str]:
    """Kernels that spill, from ptxas's report, by their mangled names, but for those that the rules do not launch on the architecture."""
    known, found = SPILLED.get(architecture), []
    for name, line, stored in re.findall(r"Function properties for (\S+)\n\s*(.*?(\d+) bytes spill stores.*)", report):
        most = COLUMNS_SPILLED if COLUMNS in name else MOST_SPILLED if known and re.search(known, name) else 0
        if int(stored) > most and not _unused(name, architecture):
            found.append(f"{name}: {line}")
    return found


def beyond_limits(report: str, ptx: str, architecture: str) -> list[str]:
    """Kernels that do not fit a card of the architecture, by their mangled names.

    A kernel is taken with the most threads of its launch bounds. An SM must hold as many of its CTAs as the bounds ask for. ptxas ignores
    this number if the SM has too few threads for it. Shared memory that a launch adds is tested by tests/kernels/cuda/launch_plans.cu.
    """
    bounds = {name: _bounds(directives) for name, directives in re.findall(r"\.entry ([\w$]+)\([^{]*?\)([^){]*)\{", ptx)}
    found = []
    for name, registers, more in re.findall(r"Function properties for (\S+)\n.*\nptxas info\s+: Used (\d+) registers(.*)", report):
        threads, ctas = bounds[name]
        shared = re.search(r"(\d+) bytes smem", more)
        takes = Resources(int(registers), 0, int(shared[1]) if shared else 0, threads)
        for card in CARDS:
            if card.architecture == architecture and not _unused(name, architecture):
                what = takes.misfit(card, ctas if ctas * threads <= card.sm_threads else 1)
                found += [f"{name}: {card.name} has no {what}"] if what else []
    return found


def _bounds(directives: str) -> tuple[int, int]:
    """(the most threads of a CTA, the least CTAs an SM) of the launch bounds among a kernel's directives."""
    threads, ctas = (re.search(rf"\.{name} (\d+)", directives) for name in ("maxntid", "minnctapersm"))
    return int(threads[1]) if threads else 1024, int(ctas[1]) if ctas else 1


def cuda_parts(architectures: list[str], most: int | None = None, seed: int = 0) -> list[tuple[str, str, int]]:
    """The parts of all CUDA sources as (architecture, function, part), or `most` of each architecture's."""
    from softbench.kernels.cuda import build

    dice, every = random.Random(seed), [(function, part) for function in build.ALL for part in range(build.parts(function))]
    chosen = {one: dice.sample(every, most) if most is not None and most < len(every) else every for one in architectures}
    return [(one, function, part) for one in architectures for function, part in chosen[one]]


def cuda_reports(parts: list[tuple[str, str, int]]) -> Iterator[str]:
    """A line for each kernel of these parts that spills or does not fit a card, and for each part that does not compile."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for lines in pool.map(_compile_part, parts):
            yield from lines


def _compile_part(asked: tuple[str, str, int]) -> list[str]:
    from softbench.kernels.cuda import build

    architecture, function, part = asked
    dropped = ("-shared", "-Xcompiler", "-fPIC")
    with tempfile.TemporaryDirectory() as folder:
        line = build.command(str(build.nvcc()), architecture, Path(folder) / "part.cubin", function)
        words = [*(word for word in line if word not in dropped), f"-DSOFTBENCH_PART={part}", "-cubin", "-Xptxas", "-v"]
        done = subprocess.run([*words, "-keep", "-keep-dir", folder], capture_output=True, text=True, check=False)
        ptx = "".join(path.read_text() for path in Path(folder).glob("*.ptx"))
    where = f"{architecture} {function} part {part}"
    if done.returncode:
        return [f"{where}: {(done.stderr.strip().splitlines() or ['no message'])[0]}"]
    found = [*spilling(done.stderr, architecture), *beyond_limits(done.stderr, ptx, architecture)]
    return [f"{where}: {line}" for line in found]


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
