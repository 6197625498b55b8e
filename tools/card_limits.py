"""The limits of the GPUs for which tools/cards.py compiles, and whether a kernel keeps them."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
