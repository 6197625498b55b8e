"""Compiles the CUDA kernels for GPUs that are not here, and compares what they take with the limits of these GPUs."""

from __future__ import annotations

import os
import random
import re
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from card_limits import CARDS, KIB, Resources

SPILLED = {
    "sm_103a": "9softbench(?:5block|7cluster|16sub_warp_aligned)INS_7ForwardIff",
    "sm_120a": "9softbench(?:5splitINS_8BackwardIf|16sub_warp_alignedINS_7ForwardI(?:13__nv_bfloat16|6__half)f)",
}
"""Kernels that are known to spill, by their mangled names: of float32 rows or results. None was ever timed there."""
MOST_SPILLED = 12
"""Bytes of a thread of theirs."""


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
        most = MOST_SPILLED if known and re.search(known, name) else 0
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
