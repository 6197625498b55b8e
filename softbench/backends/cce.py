"""The backend `cce`: Apple's Cut Cross Entropy, in Triton, whose logits never leave the chip. Source: the project's public function.

It is of https://arxiv.org/abs/2411.09009.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from softbench.backends.calls import EMPTY, by_autograd, parameters
from softbench.backends.third_party import ThirdParty
from softbench.core.case import Case, Direction
from softbench.core.toolchain import missing_compiler
from softbench.plugins.backend import Call


class Cce(ThirdParty):
    """Apple's Cut Cross Entropy: Triton products that keep tiles of logits in registers, and compute them again for the gradient."""

    name, package, module = "cce", "cut-cross-entropy", "cut_cross_entropy"
    install = "pip install cut-cross-entropy"
    operations = ("linear_cross_entropy(hidden,ignore_index,softcap)",)
    advice = "if memory for a part of the logits is lacking"
    extra = True  # softmax is none of its operations

    def available(self) -> str | None:
        return super().available() or missing_compiler(cuda=True)

    def supports(self, case: Case) -> str | None:
        if case.dtype == "fp32":
            return "its kernels take 16-bit tensors"
        return EMPTY if case.M * case.N == 0 else None

    def prepare(self, case: Case) -> Call:
        """Without its filter, which leaves out gradients that bfloat16 would round away from each sum."""
        module: Any = self._module()
        given = parameters(case)
        function = partial(
            module.linear_cross_entropy, ignore_index=given["ignore_index"], softcap=given["softcap"] or None, filter_eps=None
        )

        def forward(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = function(x, w, target)
            return loss.float()

        return forward if case.direction is Direction.FORWARD else partial(by_autograd, forward)


backend = Cce()
