"""The backend `flaggems`: softmax and log_softmax of BAAI's FlagGems, in Triton."""

from __future__ import annotations

import importlib

import torch

from softbench.backends.calls import EMPTY, by_direction, differentiable
from softbench.backends.third_party import ThirdParty
from softbench.core.case import Case, Direction
from softbench.core.toolchain import missing_compiler
from softbench.plugins.backend import Call


class FlagGems(ThirdParty):
    """BAAI's FlagGems: Triton, online or in one block by N; the backward is autotuned."""

    name, package, module = "flaggems", "flag-gems", "flag_gems.ops.softmax"
    operations = ("softmax", "log_softmax")
    install = "pip install flag-gems, of a version that fits this torch and Triton"
    advice = "if all operators of a model come from FlagGems"

    def available(self) -> str | None:
        return super().available() or missing_compiler(cuda=True)

    def supports(self, case: Case) -> str | None:
        return EMPTY if case.M * case.N == 0 else None

    def prepare(self, case: Case) -> Call:
        """A module and its functions have the name of the operation."""
        gems = importlib.import_module(f"flag_gems.ops.{case.operation}")
        gems_forward, gems_backward = getattr(gems, case.operation), getattr(gems, f"{case.operation}_backward")

        def forward(x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = gems_forward(x, -1)
            return y

        def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            dx: torch.Tensor = gems_backward(dy, y, -1, y.dtype)
            return dx

        return by_direction(case, differentiable(forward, backward) if case.direction is Direction.BOTH else forward, backward)


backend = FlagGems()
