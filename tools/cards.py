"""Compiles our kernels for cards that are not here, without a GPU: python tools/cards.py plans|triton|cuda [--card NAME ...]

- plans: asks the Triton rules for --shapes random shapes for each card, and compares the plans with the card's limits.
- triton: compiles the kernels of --most of those plans for each architecture. AMD's GPUs have the kernels without PTX.
- cuda: compiles the parts of all CUDA sources for each architecture, or --most of them. All take minutes of a core for each.

It prints a line for each thing that spills registers or does not fit a card, and a summary. Exit code 1: there was such a thing.
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
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

KIB = 1024
SM_REGISTERS = 65536  # of each NVIDIA GPU below
RESERVED = KIB  # bytes of shared memory that the driver takes of each CTA, from sm_80 on


@dataclass(frozen=True)
class Card:
    """The limits of a GPU: CUDA C++ programming guide, "Technical Specifications per Compute Capability"; AMD: instinct.docs.amd.com."""

    name: str
    architecture: str
    sms: int
    sm_threads: int
    sm_ctas: int
    sm_shared: int  # bytes
    cta_shared: int  # bytes

    @property
    def amd(self) -> bool:
        return self.architecture.startswith("gfx")

    @property
    def capability(self) -> int:
        """90 for sm_90a."""
        return int(re.sub(r"\D", "", self.architecture))


def _data_center(name: str, architecture: str, sms: int) -> Card:
    return Card(name, architecture, sms, 2048, 32, 228 * KIB, 227 * KIB)


CARDS = (
    Card("A100", "sm_80", 108, 2048, 32, 164 * KIB, 163 * KIB),
    Card("A10", "sm_86", 72, 1536, 16, 100 * KIB, 99 * KIB),
    Card("RTX-3090", "sm_86", 82, 1536, 16, 100 * KIB, 99 * KIB),
    Card("L4", "sm_89", 58, 1536, 24, 100 * KIB, 99 * KIB),
    Card("L40S", "sm_89", 142, 1536, 24, 100 * KIB, 99 * KIB),
    Card("RTX-4090", "sm_89", 128, 1536, 24, 100 * KIB, 99 * KIB),
    _data_center("H100", "sm_90a", 132),
    _data_center("H200", "sm_90a", 132),
    _data_center("B200", "sm_100a", 148),
    _data_center("B300", "sm_103a", 148),
    Card("RTX-5090", "sm_120a", 170, 1536, 24, 100 * KIB, 99 * KIB),
    Card("RTX-PRO-6000", "sm_120a", 188, 1536, 24, 100 * KIB, 99 * KIB),
    Card("MI300X", "gfx942", 304, 2048, 32, 64 * KIB, 64 * KIB),
    Card("MI355X", "gfx950", 256, 2048, 32, 160 * KIB, 160 * KIB),
    Card("RX-9070-XT", "gfx1201", 64, 1024, 32, 64 * KIB, 64 * KIB),
)


def problem_of(card: Card, backward: bool, M: int, N: int, size: int, alignment: int) -> Any:
    """The launch problem on a card. The fast tiers contain PTX, so AMD's GPUs have the generic ones."""
    from softbench.kernels.triton import devices
    from softbench.kernels.triton.launch_plan import Problem

    clusters = not card.amd and card.capability >= 10 * devices.HOPPER and card.cta_shared >= devices.LARGE_SHARED
    return Problem(backward, M, N, size, alignment, not card.amd, card.sms, clusters, 2.0, card.capability == 90 and not card.amd)


def random_problems(card: Card, count: int, seed: int) -> Iterator[Any]:
    """Problems of all lengths, numbers of rows, alignments and directions; half of the lengths are aligned."""
    dice = random.Random(seed)
    for _ in range(count):
        size = dice.choice((2, 4))
        N = round(2 ** dice.uniform(0, 22))
        if dice.random() < 0.5:
            N = max(1, N // 64) * 64
        M = dice.choice((1, dice.randint(2, 200), round(2 ** dice.uniform(8, 20))))
        bits = N * size & -(N * size)
        alignment = min(16, bits) if dice.random() < 0.8 else max(size, min(8, bits))
        yield problem_of(card, dice.random() < 0.5, M, N, size, alignment)


def misfit(card: Card, problem: Any, plan: Any) -> str | None:
    """What of a plan the card does not have, or None."""
    from softbench.kernels.triton.tier_candidates import CLUSTER_CTAS

    if plan.tier in ("tile", "loop"):
        return None
    if card.amd:
        return f"tier {plan.tier} contains PTX"
    threads = 32 * plan.warps
    if threads > min(1024, card.sm_threads):
        return f"{threads} threads"
    if (plan.registers or 0) * threads > SM_REGISTERS:
        return f"{plan.registers} registers of {threads} threads"
    if plan.smem_tiles * plan.threads * 16 + RESERVED > card.cta_shared:
        return f"{plan.smem_tiles} tiles of {plan.threads} threads in shared memory"
    if plan.cluster_ctas > (CLUSTER_CTAS[-1] if problem.clusters else 1):
        return f"a cluster of {plan.cluster_ctas} CTAs"
    return None


def ask_plans(cards: list[Card], shapes: int, seed: int) -> list[str]:
    """What does not fit, of the plans of random shapes."""
    from softbench.kernels.triton import heuristics

    bad = []
    for card in cards:
        for problem in random_problems(card, shapes, seed):
            plan = heuristics.by_heuristics(problem)
            if (what := misfit(card, problem, plan)) is not None:
                bad.append(f"{card.name} has no {what}: {problem} {plan}")
    return bad


@dataclass(frozen=True)
class Resources:
    """What a compiled kernel takes."""

    registers: int  # of a thread
    spilled: int  # bytes of a thread in local memory, or registers on AMD's GPUs
    shared: int  # bytes of a CTA
    threads: int  # of a CTA
    illegal: int = 0  # copies that are illegal instructions, as `illegal_copies` counts them

    def misfit(self, card: Card) -> str | None:
        """What of these a card does not have, or None."""
        if self.illegal:
            return f"{self.illegal} copies with a policy and a uniform register in their shared address"
        if self.spilled:
            return f"{self.spilled} bytes a thread of spilled registers, of {self.registers}"
        if not card.amd and -(-self.registers // 8) * 8 * self.threads > SM_REGISTERS:
            return f"{self.registers} registers for each of {self.threads} threads"
        if self.shared > card.cta_shared:
            return f"{self.shared} bytes of shared memory for a CTA"
        return f"{self.threads} threads for a CTA" if self.threads > min(1024, card.sm_threads) else None


class _Driver:
    """A driver of Triton for a GPU that is not here. It can only say what to compile for."""

    def __init__(self, card: Card) -> None:
        from triton.backends.compiler import GPUTarget

        wave = 32 if card.architecture.startswith("gfx1") else 64
        self.target = GPUTarget("hip", card.architecture, wave) if card.amd else GPUTarget("cuda", card.capability, 32)

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device


@dataclass(frozen=True)
class _Operand:
    """A tensor without data, as Triton's binder looks at one."""

    dtype: Any
    address: int

    def data_ptr(self) -> int:
        return self.address


def compiled(card: Card, kernel: Any, operands: list[Any], arguments: tuple[Any, ...], options: dict[str, int]) -> Any:
    """A Triton kernel for a card, specialized as a launch with these arguments would be. Replaces this process's Triton driver."""
    import triton
    from triton.runtime.jit import JITFunction

    triton.runtime.driver._active = _Driver(card)
    assert isinstance(kernel, JITFunction)
    kernel.device_caches.clear()
    return kernel.warmup(*operands, *arguments, grid=(1,), **options)


def resources(card: Card, found: Any) -> Resources:
    """What a compiled kernel takes."""
    threads = found.metadata.num_warps * found.metadata.target.warp_size
    if card.amd:
        code = found.asm["amdgcn"]
        numbers = [max(map(int, re.findall(rf"\.{name}:\s*(\d+)", code)), default=0) for name in ("vgpr_count", "vgpr_spill_count")]
        return Resources(*numbers, found.metadata.shared, threads)
    return _of_cubin(card, found.asm["cubin"], found.metadata.shared, threads)


def illegal_copies(sass: str) -> int:
    """Asynchronous copies that an H200 refuses as illegal instructions: ptxas gave them a policy and a uniform register in the address.

    The policy is then in the second register of the pair, which has an odd number.
    """
    return len(re.findall(r"LDGSTS\S* \[R\d+\+UR\d+[^]]*\], desc\[UR\d*[13579]\]", sass))


def _of_cubin(card: Card, cubin: bytes, shared: int, threads: int) -> Resources:
    """What the only kernel of a cubin takes. Copies have a policy on sm_90 only, and not every disassembler knows every card."""
    from softbench.kernels.cuda import disassemble

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        ((name, found),) = disassemble.resources(Path(file.name)).items()
        sass = disassemble.sass(Path(file.name), [name]) if card.capability == 90 else ""
    return Resources(found["REG"], found["STACK"] + found["LOCAL"], shared, threads, illegal_copies(sass))


def compile_plan(card: Card, problem: Any, plan: Any, log: bool = False) -> Resources:
    """Compiles the kernel of a plan for a card: of float32 or bfloat16 rows."""
    return resources(card, compiled_plan(card, problem, plan, log))


def compiled_plan(card: Card, problem: Any, plan: Any, log: bool = False, scale: float | None = None) -> Any:
    """The kernel of a plan for a card: of float32 or bfloat16 rows."""
    import torch
    from softbench.kernels.triton import dispatch

    dtype = torch.float32 if problem.element_size == 4 else torch.bfloat16
    rows: Any = SimpleNamespace(stride=lambda _: problem.N)
    launch = dispatch.prepare_launch(problem, plan, (rows,) * (problem.reads + 1), log)
    operands = [_Operand(dtype, 16 if problem.alignment == 16 else problem.alignment)] * (problem.reads + 1)
    if launch.slots:
        operands += [_Operand(torch.int64, 0)] * 2
    return compiled(card, launch.kernel, operands, (*launch.arguments, scale), launch.options)


def _compile(work: tuple[Card, Any, Any]) -> str | None:
    """A line if the kernel does not compile, spills or does not fit; for a process of its own."""
    card, problem, plan = work
    try:
        what = compile_plan(card, problem, plan).misfit(card)
    except Exception as error:
        what = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    return what and f"{card.name} ({card.architecture}): {what}: {problem} {plan}"


def triton_work(cards: list[Card], most: int, seed: int) -> list[tuple[Card, Any, Any]]:
    """`most` kernels for each architecture, of the plans of random shapes; no kernel twice, and each tier and direction among the first."""
    from softbench.kernels.triton import heuristics

    work: dict[tuple[Any, ...], tuple[Card, Any, Any]] = {}
    for card in {card.architecture: card for card in cards}.values():
        found: dict[tuple[Any, ...], tuple[Card, Any, Any]] = {}
        for problem in random_problems(card, 40 * most, seed):
            plan = heuristics.by_heuristics(problem)
            columns = problem.N.bit_length() if plan.tier in ("tile", "loop") else 0
            key = card.architecture, problem.backward, problem.element_size, columns, replace(plan, split_ctas=min(2, plan.split_ctas))
            found.setdefault(key, (card, problem, plan))
        by_tier = sorted(found, key=lambda key: [*found].index(key))
        first = {(key[1], key[4].tier): key for key in reversed(by_tier)}
        order = dict.fromkeys([*first.values(), *by_tier])
        work |= {key: found[key] for key in list(order)[:most]}
    return list(work.values())


SPILLED = {
    "sm_103a": "9softbench(?:5block|7cluster|16sub_warp_aligned)INS_7ForwardIff",
    "sm_120a": "9softbench(?:5splitINS_8BackwardIf|16sub_warp_alignedINS_7ForwardI(?:13__nv_bfloat16|6__half)f)",
}
"""Kernels that are known to spill, by their mangled names: of float32 rows or results. None was ever timed there."""
MOST_SPILLED = 12
"""Bytes of a thread of theirs."""


def spilling(report: str, architecture: str) -> list[str]:
    """Kernels that spill, from ptxas's report, by their mangled names, but for those that the rules do not launch on the architecture.

    Before Hopper that is a kernel that needs clusters, and anywhere but on Hopper one that keeps its reads in L2.
    """
    clusters = any(card.cta_shared >= 200 * KIB for card in CARDS if card.architecture == architecture)
    unused = [
        *([] if clusters else ["9softbench(?:7cluster|4bulk)I"]),
        *([] if architecture == "sm_90a" else [r"9softbench\d+(?!generic)\w*Lb1EEEvNS_7TensorsI"]),
    ]
    known, found = SPILLED.get(architecture), []
    for name, line, stored in re.findall(r"Function properties for (\S+)\n\s*(.*?(\d+) bytes spill stores.*)", report):
        most = MOST_SPILLED if known and re.search(known, name) else 0
        if int(stored) > most and not any(re.search(pattern, name) for pattern in unused):
            found.append(f"{name}: {line}")
    return found


def cuda_parts(architectures: list[str], most: int | None = None, seed: int = 0) -> list[tuple[str, str, int]]:
    """The parts of all CUDA sources as (architecture, function, part), or `most` of each architecture's."""
    from softbench.kernels.cuda import build

    dice, every = random.Random(seed), [(function, part) for function in build.ALL for part in range(build.parts(function))]
    chosen = {one: dice.sample(every, most) if most is not None and most < len(every) else every for one in architectures}
    return [(one, function, part) for one in architectures for function, part in chosen[one]]


def cuda_reports(parts: list[tuple[str, str, int]]) -> Iterator[str]:
    """A line for each kernel of these parts that spills, and for each part that does not compile."""
    from softbench.kernels.cuda import build

    def compile_part(asked: tuple[str, str, int]) -> list[str]:
        architecture, function, part = asked
        dropped = ("-shared", "-Xcompiler", "-fPIC")
        with tempfile.TemporaryDirectory() as folder:
            line = build.command(str(build.nvcc()), architecture, Path(folder) / "part.cubin", function)
            words = [*(word for word in line if word not in dropped), f"-DSOFTBENCH_PART={part}", "-cubin", "-Xptxas", "-v"]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
        where = f"{architecture} {function} part {part}"
        if done.returncode:
            return [f"{where}: {(done.stderr.strip().splitlines() or ['no message'])[0]}"]
        return [f"{where}: {line}" for line in spilling(done.stderr, architecture)]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for lines in pool.map(compile_part, parts):
            yield from lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("plans", "triton", "cuda"))
    parser.add_argument("--card", nargs="*", choices=[card.name for card in CARDS], help="by default all")
    parser.add_argument("--shapes", type=int, default=5000, help="of each card, for plans")
    parser.add_argument("--most", type=int, help="kernels (triton, 40 by default) or parts (cuda, all by default) of each architecture")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    cards = [card for card in CARDS if not asked.card or card.name in asked.card]
    if asked.what == "plans":
        bad, done = ask_plans(cards, asked.shapes, asked.seed), f"{len(cards)} cards, {asked.shapes} plans each"
    elif asked.what == "triton":
        work = triton_work(cards, 40 if asked.most is None else asked.most, asked.seed)
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
            bad = [line for line in pool.map(_compile, work) if line]
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
