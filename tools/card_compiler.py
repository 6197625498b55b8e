"""Compiles a Triton kernel for a GPU that is not here, and reads what it takes."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from card_limits import Card, Resources


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
