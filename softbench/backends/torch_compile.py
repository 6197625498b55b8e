"""`torch.compile` in its ways: of the naive function and of F.softmax, by Inductor in every mode, and by any other Dynamo backend.

`compile` and `compile-torch` are compiled for one shape each (`dynamic=False`, `fullgraph=True`), so that every case gets the best that
Inductor makes of it. What stands behind the colon says what is otherwise: `compile:plain` is what `torch.compile(f)` alone gives.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from softbench.backends import torch_eager as functional
from softbench.backends.directions import by_direction
from softbench.backends.naive import naive_backward, naive_forward
from softbench.core.case import Case, Direction
from softbench.core.toolchain import missing_compiler
from softbench.ops.dtypes import DTYPES

# Inductor would start a pool of compile processes in every worker; one shape at a time needs none.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

GRAPH_CALLS = 3  # a CUDA graph's first call warms up, the second records, the third is the first replay

Functions = tuple[Callable[..., Any], Callable[..., Any]]
FUNCTIONS: dict[str, Functions] = {
    "compile": (naive_forward, naive_backward),
    "compile-torch": (functional._forward, functional._backward),
}
"""What is compiled, by the name of the family: forward and backward."""
OF = {"compile": "the naive function", "compile-torch": "F.softmax"}


class Compiled:
    """torch.compile of a function, by Inductor or another Dynamo backend."""

    compiles: bool | str = True

    def __init__(
        self,
        name: str,
        summary: str,
        advice: str,
        *,
        extra: bool = True,
        reuses_output: bool = False,
        anew: bool = True,
        **options: Any,
    ) -> None:
        """`options` are torch.compile's. `anew`: earlier shapes are forgotten before each case."""
        self.name, self.advice, self.extra, self.reuses_output = name, advice, extra, reuses_output
        self.family = name.partition(":")[0]
        self.summary = f"torch.compile of {OF[self.family]}{summary}"
        self.anew, self.options = anew, options
        self._kept: tuple[tuple[str, Direction], Functions] | None = None

    def available(self) -> str | None:
        return missing_compiler(cuda=torch.cuda.is_available())

    def supports(self, case: Case) -> str | None:
        if self.reuses_output and case.device != "cuda":
            return "CUDA graphs need a GPU; without them it is as without this mode"
        return None

    def prepare(self, case: Case) -> Callable[..., Any]:
        """Forgets earlier shapes first: otherwise automatic dynamic shapes would quietly swap the kernel under test.

        Where those are what is measured (`anew=False`) the shapes of one dtype and direction share a function, as a user's would; more
        than that would meet Dynamo's limit of recompilations, beyond which it falls back to eager without a word.
        """
        key = case.dtype, case.direction
        if self.anew or self._kept is None or self._kept[0] != key:
            torch._dynamo.reset()
            forward, backward = FUNCTIONS[self.family]
            self._kept = key, (torch.compile(forward, **self.options), torch.compile(backward, **self.options))
        call = by_direction(case, *self._kept[1])
        if self.reuses_output:
            _record(call, case)
        return call


def _record(call: Callable[..., Any], case: Case) -> None:
    """Call until the CUDA graph has been recorded: the worker's own first call is to be a replay like the later ones."""
    given = [torch.zeros(case.M, case.N, dtype=DTYPES[case.dtype], device=case.device)]
    if case.direction is not Direction.FORWARD:
        given.append(torch.zeros_like(given[0]))
    given[0].requires_grad_(case.direction is Direction.BOTH)
    for _ in range(GRAPH_CALLS):
        call(*given)


STATIC = {"dynamic": False, "fullgraph": True}
WAYS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "plain": (
        " and nothing else: automatic dynamic shapes, graph breaks allowed",
        "what most users get; the second shape makes one slower kernel for all that follow",
        {"anew": False},
    ),
    "fullgraph": (
        ", fullgraph=True: automatic dynamic shapes, a graph break is an error",
        "as plain, where falling back to Python must not pass unseen",
        {"anew": False, "fullgraph": True},
    ),
    "dynamic": (
        ", dynamic=True: one kernel for every shape, from the first on",
        "when shapes never repeat and compiling anew would cost more than it saves",
        {"anew": False, "dynamic": True, "fullgraph": True},
    ),
    "max-autotune-no-cudagraphs": (
        ", mode max-autotune-no-cudagraphs: configurations are tried out; one shape, one compile",
        "for few, long-lived shapes, when a longer build is no matter",
        {"mode": "max-autotune-no-cudagraphs", **STATIC},
    ),
    "max-autotune": (
        ", mode max-autotune: configurations are tried out, replayed as a CUDA graph; one shape, one compile",
        "as max-autotune-no-cudagraphs and reduce-overhead together; its output lives until the next call",
        {"mode": "max-autotune", "reuses_output": True, **STATIC},
    ),
    "reduce-overhead": (
        ", mode reduce-overhead: replayed as a CUDA graph, which copies its input; one shape, one compile",
        "when the host is the limit and many small kernels follow each other; its output lives until the next call",
        {"mode": "reduce-overhead", "reuses_output": True, **STATIC},
    ),
}
"""Ways to call torch.compile: summary, advice, and how it is called."""


def _family(name: str, advice: str, *, extra: bool) -> list[Compiled]:
    first = Compiled(name, " (Inductor, dynamic=False), compiled anew for each shape", advice, extra=extra, **STATIC)
    return [first, *(Compiled(f"{name}:{way}", summary, when, **how) for way, (summary, when, how) in WAYS.items())]


inductor = [
    *_family("compile", "when you write the function yourself and want one kernel of it without writing that", extra=False),
    *_family("compile-torch", "when F.softmax stands in a model that is compiled anyway", extra=True),
]
backend = inductor[0]


def _all() -> list[Any]:
    from softbench.backends.dynamo_backends import others

    return [*inductor, *others()]


def __getattr__(name: str) -> Any:
    """`backends`: all of them, made when asked for: knowing Dynamo's backends means importing it."""
    if name == "backends":
        return _all()
    raise AttributeError(name)
