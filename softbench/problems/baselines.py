"""The backends of every problem: its reference, and torch.compile of it."""

from __future__ import annotations

import os
from typing import Any

import torch

from softbench.core.case import Case
from softbench.core.toolchain import missing_compiler
from softbench.ops import registry
from softbench.plugins.backend import Call
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
        values = registry.numerics(case.op)
        assert isinstance(values, ProblemValues)
        return values.callable(case.device)


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


backends = [
    Reference(),
    Compiled("reference:compile", "torch.compile of the problem's reference, for each shape"),
    Compiled("reference:max-autotune", "the same, mode max-autotune-no-cudagraphs", gpu=True, mode="max-autotune-no-cudagraphs"),
]
