"""softbench's own kernels. `from softbench.kernels import softmax, cross_entropy` takes the fastest that work here.

`softbench.kernels.which(x)` says what runs and why, and `softbench.kernels.build()` builds the CUDA kernels. The rule is in
`softbench.kernels.automatic.choice`. `softbench.kernels.triton` and `softbench.kernels.cuda` have the operators of each. `use` and `enable`
let torch's own functions run these kernels.

The sources are in `kernels/` at the top of a checkout, and an installation maps them here. A bare checkout has no such mapping: there this
module adds the folder beside the package to its own path.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softbench.kernels.automatic.choice import Choice as Choice, build as build, which as which
    from softbench.kernels.automatic.linear_cross_entropy import linear_cross_entropy as linear_cross_entropy
    from softbench.kernels.automatic.linear_logprob import linear_logprob as linear_logprob
    from softbench.kernels.automatic.losses import cross_entropy as cross_entropy, logprob as logprob
    from softbench.kernels.automatic.masked_softmax import masked_softmax as masked_softmax
    from softbench.kernels.automatic.modules import CrossEntropyLoss as CrossEntropyLoss, LogSoftmax as LogSoftmax, Softmax as Softmax
    from softbench.kernels.automatic.override import enable as enable, use as use
    from softbench.kernels.automatic.softmax import log_softmax as log_softmax, softmax as softmax

__all__ = [
    *("Choice", "CrossEntropyLoss", "LogSoftmax", "Softmax", "build", "cross_entropy", "enable", "linear_cross_entropy"),
    *("linear_logprob", "log_softmax", "logprob", "masked_softmax", "softmax", "use", "which"),
]
_MODULES = {
    **dict.fromkeys(("Choice", "build", "which"), "choice"),
    **dict.fromkeys(("cross_entropy", "logprob"), "losses"),
    **dict.fromkeys(("CrossEntropyLoss", "LogSoftmax", "Softmax"), "modules"),
    **dict.fromkeys(("enable", "use"), "override"),
    **{name: name for name in ("masked_softmax", "linear_cross_entropy", "linear_logprob", "softmax")},
    "log_softmax": "softmax",
}
"""The modules of `softbench.kernels.automatic` with these names."""

_checkout = Path(__file__).resolve().parents[2] / "kernels"
if (_checkout / "triton" / "__init__.py").is_file() and (_checkout.parent / "pyproject.toml").is_file():
    __path__.append(str(_checkout))


def __getattr__(name: str) -> Any:
    """One of `__all__`, imported on first use: the parent process of a run imports this package, and never torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"softbench.kernels.automatic.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
