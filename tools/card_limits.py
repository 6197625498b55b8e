"""GPUs that are not here: their limits, and what a Triton kernel that is compiled for one of them takes."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
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


@dataclass(frozen=True)
class Resources:
    """What a compiled kernel takes."""

    registers: int  # of a thread
    spilled: int  # bytes of a thread in local memory, or registers on AMD's GPUs
    shared: int  # bytes of a CTA
    threads: int  # of a CTA
    illegal: int = 0  # copies that are illegal instructions, as `illegal_copies` counts them

    def misfit(self, card: Card, together: int = 1, most_spilled: int = 0) -> str | None:
        """What of these a card does not have, or None.

        together: the CTAs that an SM must hold at the same time. most_spilled: how many bytes may be spilled.
        """
        if self.illegal:
            return f"{self.illegal} copies with a policy and a uniform register in their shared address"
        if self.spilled > most_spilled:
            return f"{self.spilled} bytes a thread of spilled registers, of {self.registers}"
        if not card.amd and -(-self.registers // 8) * 8 * self.threads > SM_REGISTERS:
            return f"{self.registers} registers for each of {self.threads} threads"
        if self.shared > card.cta_shared:
            return f"{self.shared} bytes of shared memory for a CTA"
        if self.threads > min(1024, card.sm_threads):
            return f"{self.threads} threads for a CTA"
        return f"{self.ctas(card)} of {together} CTAs for an SM" if together > self.ctas(card) else None

    def ctas(self, card: Card) -> int:
        """How many CTAs an SM of a card holds. On AMD's GPUs registers are not counted."""
        registers = 0 if card.amd else -(-self.registers // 8) * 8 * self.threads
        by_registers = SM_REGISTERS // registers if registers else card.sm_ctas
        return min(by_registers, card.sm_threads // self.threads, card.sm_shared // (self.shared + RESERVED), card.sm_ctas)


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
class Operand:
    """A tensor without data, as Triton's binder looks at one."""

    dtype: Any
    address: int

    def data_ptr(self) -> int:
        return self.address


def compiled(card: Card, kernel: Any, operands: list[Any], arguments: tuple[Any, ...], options: dict[str, int]) -> Any:
    """A Triton kernel for a card, specialized as a launch with these arguments would be. Replaces this process's Triton driver."""
    import triton
    from softbench.kernels.triton.dispatch import with_stable_key
    from triton.runtime.jit import JITFunction

    triton.runtime.driver._active = _Driver(card)
    assert isinstance(kernel, JITFunction)
    kernel.device_caches.clear()
    return with_stable_key(kernel).warmup(*operands, *arguments, grid=(1,), **options)


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
