"""What a launch's choice depends on, what is chosen, and the tables in which choices were measured."""

from __future__ import annotations

import functools
import json
import os
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path

STAYS_BYTES = 32 << 20  # of all that a launch reads: half of an H200's L2


@dataclass(frozen=True)
class Shape:
    """What a choice depends on. `alignment`: the largest power of two, up to 16, that divides every operand's address, row stride and row
    length in bytes; `congruent`: all operands are of one dtype, and their rows start equally far above a 16-byte boundary."""

    backward: bool
    M: int
    N: int
    size: int  # bytes an element
    alignment: int
    congruent: bool
    sms: int
    clusters: bool  # Hopper or later, not interpreted
    bytes_a_cycle: float = 0.0  # of the memory at its peak, a cycle of an SM; 0: unknown
    hopper: bool = False  # compute capability 9.0

    @property
    def tensors(self) -> int:
        return 2 if self.backward else 1

    @property
    def stays(self) -> bool:
        """Whether lines that are read are to stay in L2 before those that are written: what is written then leaves L2 soon after it was
        written, presumably in its order, and memory takes it the faster (`forward.py` has by how much; only Hopper has been measured).
        Not for launches that read little: what those have read would survive a flush such as do_bench's, and they would only seem fast."""
        return self.hopper and self.M * self.N * self.size * self.tensors >= STAYS_BYTES


@dataclass(frozen=True)
class Plan:
    tier: str  # tile, loop, rows, cluster, group
    P: int = 1
    T: int = 32
    W: int = 4
    V: int = 1
    ALIGN: int = 0
    warps: int = 1
    registers: int | None = None
    BM: int = 1
    C: int = 1
    G: int = 1
    H: int = 0


SM_REGISTERS, SM_THREADS, SM_SHARED = 65536, 2048, 227 * 1024
OWN_SHARED = 2048  # bytes a program, of Triton's reductions and the driver
GPC_SMS = 18  # of Hopper, at most; a cluster is on one GPC
UNLIMITED = 168  # registers a thread where a plan has no limit


def resident(T: int, registers: int | None, H: int = 0) -> int:
    """Programs of T threads that an SM holds at once, each with H tiles of 16-byte vectors in shared memory; 0 where not even one."""
    return min(SM_REGISTERS // ((registers or UNLIMITED) * T), SM_THREADS // T, SM_SHARED // (H * T * 16 + OWN_SHARED))


@functools.cache
def measured(device: str) -> dict[str, list[tuple[int, int, Plan]]]:
    """The table for a device, by kind; empty where there is none."""
    chosen = os.environ.get("SOFTBENCH_TRITON_TABLE")
    source = Path(chosen) if chosen else resources.files(__package__).joinpath("tables", f"{device.replace(' ', '-')}.json")
    if not source.is_file():
        return {}
    table: dict[str, list[tuple[int, int, Plan]]] = {}
    for kind, step, rows, numbers in json.loads(source.read_text()):
        table.setdefault(kind, []).append((step, rows, Plan(**numbers)))
    return table


def as_numbers(plan: Plan) -> dict[str, object]:
    """What a table's file holds of a plan: what is not a default."""
    plain = asdict(Plan(plan.tier))
    return {"tier": plan.tier, **{key: value for key, value in asdict(plan).items() if value != plain[key]}}
