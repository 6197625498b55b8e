"""`torch.compile` of the naive function and of F.softmax, by Inductor in every mode.

`compile` and `compile-torch` compile for one shape each (`dynamic=False`, `fullgraph=True`): Inductor's best code for every case.
The text after the colon names the difference: `compile:plain` is `torch.compile(f)` without options.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from softbench.backends import naive, torch_eager
from softbench.backends.calls import Eager, TensorCall, by_direction
from softbench.core.case import OPERATION, Case, Direction
from softbench.core.toolchain import missing_compiler
from softbench.ops.dtypes import TENSOR_DTYPES
from softbench.ops.registry import operation
from softbench.plugins.backend import Call

# Without this, Inductor starts a pool of compile processes in every worker; one shape at a time needs no pool.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

GRAPH_CALLS = 3  # the first call warms up, the second records the CUDA graph, the third replays it

EAGER: dict[str, Eager] = {"compile": naive.backend, "compile-torch": torch_eager.backend}
"""The backend whose functions are compiled, by the name before the colon. Of F.cross_entropy autograd takes the compiled loss."""
OF = {"compile": "the naive function", "compile-torch": "F.softmax"}


class Compiled:
    """torch.compile of a function, by Inductor or another Dynamo backend."""

    compiles: bool | str = True
    build_seconds = 1.5

    def __init__(
        self,
        name: str,
        summary: str,
        advice: str,
        *,
        extra: bool = True,
        reuses_output: bool = False,
        reset: bool = True,
        **options: Any,
    ) -> None:
        """`options` are torch.compile's. `reset`: Dynamo forgets earlier shapes before each case."""
        self.name, self.advice, self.extra, self.reuses_output = name, advice, extra, reuses_output
        self.family = name.partition(":")[0]
        self.operations = EAGER[self.family].operations
        self.summary = f"torch.compile of {OF[self.family]}{summary}"
        self.reset, self.options = reset, options
        self._kept: tuple[tuple[Any, ...], Any] | None = None

    def available(self) -> str | None:
        return missing_compiler(cuda=torch.cuda.is_available())

    def supports(self, case: Case) -> str | None:
        if self.reuses_output and case.device != "cuda":
            return "CUDA graphs need a GPU; without a GPU this mode changes nothing"
        return None

    def prepare(self, case: Case) -> Call:
        """Compiles for the case. With `reset`, Dynamo first forgets earlier shapes: dynamic shapes would replace the kernel.

        Without `reset`, the shapes of one operation, dtype and direction share a function, as in a user's program. Sharing more would
        exceed Dynamo's recompilation limit, after which Dynamo runs the function eagerly without a warning.
        """
        call: Call = self._fresh((case.op, case.dtype, case.direction), lambda: self._compiled(case))(case)
        if self.reuses_output:
            _record(call, case)
        return call

    def over_dim(self, direction: Direction, op: str = OPERATION) -> TensorCall:
        """The compiled function, which Dynamo specializes for each `dim`; as `prepare` for shapes."""
        wrap = partial(torch.compile, **self.options)
        call: TensorCall = self._fresh((op, direction), lambda: EAGER[self.family].along(direction, op, wrap))
        return _recorded(call) if self.reuses_output else call

    def _fresh(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """What `make` gives: anew each time with `reset`, else once for several calls with one key."""
        if self.reset or self._kept is None or self._kept[0] != key:
            torch._dynamo.reset()
            self._kept = key, make()
        return self._kept[1]

    def user_call(self, case: Case) -> Call | None:
        """The functions of torch, compiled."""
        return torch_eager.user_call(case, partial(torch.compile, **self.options))

    def _compiled(self, case: Case) -> Callable[[Case], Call]:
        """Gives the call of a case of this operation, dtype and direction."""
        wrap = partial(torch.compile, **self.options)
        eager = EAGER[self.family]
        if make := eager.makers.get(case.operation):
            made = make(case, wrap)
            return lambda case: made
        forward, backward = map(wrap, eager.pair(case.op, case.dtype))
        return lambda case: by_direction(case, forward, backward)


def _record(call: Call, case: Case) -> None:
    """Call until the CUDA graph is recorded, so that the worker's first call is a replay."""
    specs = operation(case.op).inputs(case)
    given = [torch.zeros(spec.shape(case), dtype=TENSOR_DTYPES[spec.dtype_of(case)], device=case.device) for spec in specs]
    given[0].requires_grad_(case.direction is Direction.BOTH)
    for _ in range(GRAPH_CALLS):
        call(*given)


def _recorded(call: TensorCall) -> TensorCall:
    """`call`, whose first call records the CUDA graph, as `_record` does."""
    times = GRAPH_CALLS

    def recorded(*given: Any) -> torch.Tensor:
        nonlocal times
        for _ in range(times - 1):
            call(*given)
        times = 1
        return call(*given)

    return recorded


STATIC = {"dynamic": False, "fullgraph": True}
VARIANTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "plain": (
        " without options: automatic dynamic shapes, graph breaks allowed",
        "the default of most users; the second shape makes one slower kernel for all later shapes",
        {"reset": False},
    ),
    "fullgraph": (
        ", fullgraph=True: automatic dynamic shapes, a graph break is an error",
        "as plain, if a fallback to Python must be an error",
        {"reset": False, "fullgraph": True},
    ),
    "dynamic": (
        ", dynamic=True: one kernel for every shape",
        "if shapes never repeat and compiling each would cost more than it saves",
        {"reset": False, "dynamic": True, "fullgraph": True},
    ),
    "max-autotune-no-cudagraphs": (
        ", mode max-autotune-no-cudagraphs: Inductor tries configurations; one compile per shape",
        "for few, long-lived shapes, if a longer build is acceptable",
        {"mode": "max-autotune-no-cudagraphs", **STATIC},
    ),
    "max-autotune": (
        ", mode max-autotune: Inductor tries configurations and replays a CUDA graph; one compile per shape",
        "max-autotune-no-cudagraphs and reduce-overhead together; the next call overwrites its output",
        {"mode": "max-autotune", "reuses_output": True, **STATIC},
    ),
    "reduce-overhead": (
        ", mode reduce-overhead: replays a CUDA graph, which copies its input; one compile per shape",
        "if the host is the limit and many small kernels run in sequence; the next call overwrites its output",
        {"mode": "reduce-overhead", "reuses_output": True, **STATIC},
    ),
}
"""Ways to call torch.compile: summary, advice, and arguments."""


def _family(name: str, advice: str, *, extra: bool) -> list[Compiled]:
    first = Compiled(name, " (Inductor, dynamic=False), compiled for each shape", advice, extra=extra, **STATIC)
    return [
        first,
        *(Compiled(f"{name}:{variant}", summary, advice, **arguments) for variant, (summary, advice, arguments) in VARIANTS.items()),
    ]


inductor = [
    *_family("compile", "if you write the function yourself and want one fused kernel of it", extra=False),
    *_family("compile-torch", "if F.softmax is part of a model that is compiled anyway", extra=True),
]
backend = inductor[0]
