"""Modules of torch.nn that call the functions of `softbench.kernels`."""

from inspect import signature
from typing import Any

from torch import Tensor, nn

from .losses import cross_entropy
from .softmax import log_softmax, softmax


class Softmax(nn.Softmax):
    """`torch.nn.Softmax` by `softmax`."""

    def forward(self, input: Tensor) -> Tensor:
        return softmax(input, self.dim, _stacklevel=5)


class LogSoftmax(nn.LogSoftmax):
    """`torch.nn.LogSoftmax` by `log_softmax`."""

    def forward(self, input: Tensor) -> Tensor:
        return log_softmax(input, self.dim, _stacklevel=5)


class CrossEntropyLoss(nn.CrossEntropyLoss):
    """`torch.nn.CrossEntropyLoss` by `cross_entropy`, with its other arguments as keywords."""

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        **others: Any,
    ) -> None:
        super().__init__(weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        signature(cross_entropy).bind_partial(**others)  # raises TypeError for a name that it lacks
        self.others = others

    def extra_repr(self) -> str:
        """The arguments that are not the defaults."""
        given = {"ignore_index": self.ignore_index, "reduction": self.reduction, "label_smoothing": self.label_smoothing, **self.others}
        usual = {"ignore_index": -100, "reduction": "mean", "label_smoothing": 0.0}
        return ", ".join(f"{name}={value!r}" for name, value in given.items() if name not in usual or usual[name] != value)

    def forward(self, input: Tensor, target: Tensor) -> Any:
        given = {"ignore_index": self.ignore_index, "reduction": self.reduction, "label_smoothing": self.label_smoothing}
        return cross_entropy(input, target, self.weight, **given, **self.others)  # type: ignore[arg-type]
