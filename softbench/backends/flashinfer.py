"""The backend `flashinfer`: the forward of softmax in FlashInfer, in CUDA C++."""

from __future__ import annotations

import torch

from softbench.backends.calls import EMPTY
from softbench.backends.third_party import ThirdParty
from softbench.core.case import Case, Direction
from softbench.plugins.backend import Call


class FlashInfer(ThirdParty):
    """FlashInfer's sampling.softmax: online, CUDA C++, with a temperature; the result is float32."""

    name, package, module = "flashinfer", "flashinfer-python", "flashinfer.sampling"
    operations = ("softmax(scale,out_dtype)",)
    only_nvidia = True
    install = "pip install flashinfer-python"
    advice = "if the probabilities of a sampler come from logits with a temperature"

    def supports(self, case: Case) -> str | None:
        if case.direction is not Direction.FORWARD:
            return "it has only the forward"
        if case.dtype != "fp32" and "out_dtype" not in case.parameters:
            return "its result is float32: add --set out_dtype=fp32"
        return EMPTY if case.M * case.N == 0 else None

    def prepare(self, case: Case) -> Call:
        """The temperature is 1 / scale. That of each row is computed in the call, from the scales that it gets."""
        softmax, value = self._module().softmax, case.parameters.get("scale", 1.0)

        def forward(x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = softmax(x, temperature=1.0 / float(value))
            return y

        def forward_of_rows(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = softmax(x, temperature=scale.reciprocal())
            return y

        return forward_of_rows if value == "row" else forward


backend = FlashInfer()
