"""The backends of every problem: its reference, torch.compile of it, and softbench's own kernel for it."""

from __future__ import annotations

import os
from typing import Any

import torch

from softbench.core.case import Case
from softbench.core.toolchain import missing_compiler
from softbench.ops import registry
from softbench.plugins.backend import Call
from softbench.problems import own_kernel
from softbench.problems.values import ProblemValues

# Without this, Inductor starts a pool of compile processes in every worker; one shape at a time needs no pool.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


class Reference:
    """The problem's reference, eager."""

    name, compiles = "reference", False

    @property
    def operations(self) -> tuple[str, ...]:
        """All problems, with all their parameters."""
        return tuple(one for one in registry.declarations() if registry.declared(one.partition("(")[0]).whole)

    def available(self) -> str | None:
        """None: whether it can run here shows when it is called."""
        return None

    def supports(self, case: Case) -> str | None:
        """None: the reference defines the problem."""
        return None

    def prepare(self, case: Case) -> Call:
        """The reference on the case's device."""
        return _values(case.op).callable(case.device)


class Compiled(Reference):
    """torch.compile of the problem's reference."""

    compiles, build_seconds = True, 10.0

    def __init__(self, name: str, doc: str, *, gpu: bool = False, **options: Any) -> None:
        self.name, self.summary, self.options = name, doc, options
        self.extra = gpu and not torch.cuda.is_available()

    def available(self) -> str | None:
        """None, or which compiler Inductor lacks."""
        return missing_compiler(cuda=torch.cuda.is_available())

    def prepare(self, case: Case) -> Call:
        """Compiles for the case."""
        torch._dynamo.reset()
        found: Call = torch.compile(super().prepare(case), dynamic=False, **self.options)
        return found


class OwnKernel(Reference):
    """The function of softbench.kernels that computes what the reference computes."""

    name, summary = "reference:softbench", "softbench's own kernel, if it has one for the reference"
    compiles = True

    def __init__(self) -> None:
        self.extra = not torch.cuda.is_available()  # there it is torch's

    @property
    def operations(self) -> tuple[str, ...]:
        """The problems of such a reference, with all their parameters."""
        return tuple(one for one in super().operations if any(layout.own for layout in _values(one.partition("(")[0]).layouts.values()))

    def supports(self, case: Case) -> str | None:
        """None, or that the reference of the case is another."""
        return None if _own(case) else "the reference calls other operators than softbench has kernels for"

    def prepare(self, case: Case) -> Call:
        """The function."""
        return own_kernel.function(_own(case))


def _own(case: Case) -> str:
    return _values(case.op).layout((case.op, case.M, case.N, case.shape)).own


def _values(op: str) -> ProblemValues:
    values = registry.numerics(op)
    assert isinstance(values, ProblemValues)
    return values


backends = [
    Reference(),
    Compiled("reference:compile", "torch.compile of the problem's reference, for each shape"),
    Compiled("reference:max-autotune", "the same, mode max-autotune-no-cudagraphs", gpu=True, mode="max-autotune-no-cudagraphs"),
    OwnKernel(),
]
