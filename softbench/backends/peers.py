"""The backends `flashinfer`, `flaggems` and `tilegym`: the softmax of packages that have one function a pass.

docs/backends.md says why other packages have no backend.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from softbench.backends.calls import EMPTY, Pair, TensorCall, by_direction, differentiable
from softbench.backends.third_party import ThirdParty
from softbench.core.case import Case, Direction
from softbench.core.toolchain import missing_compiler
from softbench.plugins.backend import Call

CHUNK = 32768
"""From longer rows on, TileGym is asked for its kernel in chunks: one tile of such a row does not fit the registers of a block."""


class Peer(ThirdParty):
    """A package whose functions take rows. `functions(case)` returns its forward, or its forward and its backward."""

    def __init__(
        self, name: str, summary: str, advice: str, package: str, module: str, functions: Callable[[Case], Any], **traits: object
    ) -> None:
        self.name, self.summary, self.advice, self.package, self.module = name, summary, advice, package, module
        self.install, self.functions = f"pip install {package}", functions
        self.forward_only = self.float32_result = self.in_triton = False
        vars(self).update(traits)

    def available(self) -> str | None:
        return super().available() or (missing_compiler(cuda=True) if self.in_triton else None)

    def supports(self, case: Case) -> str | None:
        if self.forward_only and case.direction is not Direction.FORWARD:
            return "it has only the forward"
        if self.float32_result and case.dtype != "fp32" and "out_dtype" not in case.parameters:
            return "its result is float32: add --set out_dtype=fp32"
        return EMPTY if case.M * case.N == 0 else None

    def prepare(self, case: Case) -> Call:
        found = self.functions(case)
        if self.forward_only:
            call: Call = found
            return call
        forward, backward = found
        return by_direction(case, differentiable(forward, backward) if case.direction is Direction.BOTH else forward, backward)


def _flashinfer(case: Case) -> TensorCall:
    """The temperature is 1 / scale. That of each row is computed in the call, from the scales that it gets."""
    softmax, value = importlib.import_module("flashinfer.sampling").softmax, case.parameters.get("scale", 1.0)

    def forward(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = softmax(x, temperature=1.0 / float(value))
        return y

    def forward_of_rows(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = softmax(x, temperature=scale.reciprocal())
        return y

    return forward_of_rows if value == "row" else forward


def _flaggems(case: Case) -> Pair:
    """A module and its functions have the name of the operation."""
    gems = importlib.import_module(f"flag_gems.ops.{case.operation}")
    gems_forward, gems_backward = getattr(gems, case.operation), getattr(gems, f"{case.operation}_backward")

    def forward(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = gems_forward(x, -1)
        return y

    def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        dx: torch.Tensor = gems_backward(dy, y, -1, y.dtype)
        return dx

    return forward, backward


def _tilegym(case: Case) -> TensorCall:
    return partial(importlib.import_module("tilegym.ops").softmax, backend="cutile", use_chunked=case.N > CHUNK)


flashinfer = Peer(
    "flashinfer",
    "FlashInfer's sampling.softmax: online, CUDA C++, with a temperature; the result is float32.",
    "if the probabilities of a sampler come from logits with a temperature",
    "flashinfer-python",
    "flashinfer.sampling",
    _flashinfer,
    operations=("softmax(scale,out_dtype)",),
    forward_only=True,
    float32_result=True,
    only_nvidia=True,
)
flaggems = Peer(
    "flaggems",
    "BAAI's FlagGems: Triton, online or in one block by N; the backward is autotuned.",
    "if all operators of a model come from FlagGems",
    "flag-gems",
    "flag_gems.ops.softmax",
    _flaggems,
    operations=("softmax", "log_softmax"),
    install="pip install flag-gems, of a version that fits this torch and Triton",
    in_triton=True,
)
tilegym = Peer(
    "tilegym",
    "NVIDIA's TileGym: cuTile, a persistent grid, autotuned warps.",
    "to learn cuTile from its authors; forward only",
    "tilegym",
    "tilegym.ops",
    _tilegym,
    install="pip install tilegym 'cuda-tile[tileiras]'",
    forward_only=True,
    only_nvidia=True,
    extra=True,
)
