"""The passes of the losses as PyTorch operators, so that compilers see one opaque call; they record no gradient.

- `softbench::cuda_cross_entropy_forward`, `softbench::cuda_cross_entropy_backward` and `softbench::cuda_cross_entropy_fused`
- `softbench::cuda_logprob_forward` and `softbench::cuda_logprob_backward`

Arguments and results are those of `losses.py`, without `out` and `plan`. Results are fresh.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import losses

OPTIONS = ("ignore_index", "label_smoothing", "z_loss", "softcap")
SETTINGS = "int ignore_index=-100, float label_smoothing=0.0, float z_loss=0.0, float softcap=0.0"
SCHEMAS = {
    "cross_entropy_forward": f"(Tensor x, Tensor target, {SETTINGS}) -> (Tensor, Tensor)",
    "cross_entropy_backward": f"(Tensor x, Tensor target, Tensor lse, Tensor dloss, {SETTINGS}) -> Tensor",
    "cross_entropy_fused": f"(Tensor x, Tensor target, {SETTINGS}) -> (Tensor, Tensor)",
    "logprob_forward": "(Tensor x, Tensor target) -> (Tensor, Tensor, Tensor)",
    "logprob_backward": "(Tensor x, Tensor target, Tensor lse, Tensor entropy, Tensor dlogprob, Tensor dentropy) -> Tensor",
}
"""Arguments and results of the operators, by the function of `losses.py`."""

_library = torch.library.Library("softbench", "FRAGMENT")


def _kernel(name: str) -> Callable[..., Any]:
    """The function of `losses.py` with its options by position, as an operator passes them."""
    function = getattr(losses, name)
    tensors = SCHEMAS[name].count("Tensor ")

    def kernel(*arguments: Any) -> Any:
        return function(*arguments[:tensors], **dict(zip(OPTIONS, arguments[tensors:], strict=False)))

    return kernel


def _fake(name: str) -> Callable[..., Any]:
    """The results' shapes: numbers of rows come first, and dx is the only or the second result of a pass with a gradient."""
    results = SCHEMAS[name].partition(" -> ")[2].count("Tensor")

    def fake(x: Tensor, *arguments: Any) -> Any:
        of_rows = tuple(x.new_empty(x.shape[:1], dtype=torch.float32) for _ in range(results))
        dx = x.new_empty(x.shape)
        return of_rows if name.endswith("forward") else (of_rows[0], dx) if name.endswith("fused") else dx

    return fake


for _name, _schema in SCHEMAS.items():
    _library.define(f"cuda_{_name}{_schema}", tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(f"cuda_{_name}", _kernel(_name), "CUDA")
    torch.library.register_fake(f"softbench::cuda_{_name}", _fake(_name), lib=_library)
