"""`torch.compile` of the naive functions: one shape, one compile."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from softbench.backends import by_direction
from softbench.backends.naive import naive_backward, naive_forward
from softbench.model import Case
from softbench.toolchain import missing_compiler

# Inductor would start a pool of compile processes in every worker; one shape at a time needs none.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


class Compiled:
    """torch.compile of the naive function (Inductor, dynamic=False), compiled anew for each shape."""

    name = "compile"
    compiles = True

    def available(self) -> str | None:
        return missing_compiler(cuda=torch.cuda.is_available())

    def supports(self, case: Case) -> str | None:
        return None

    def prepare(self, case: Case) -> Callable[..., Any]:
        """Forgets earlier shapes first: otherwise automatic dynamic shapes would quietly swap the kernel under test."""
        torch._dynamo.reset()
        forward = torch.compile(naive_forward, dynamic=False, fullgraph=True)
        backward = torch.compile(naive_backward, dynamic=False, fullgraph=True)
        return by_direction(case, forward, backward)


backend = Compiled()
