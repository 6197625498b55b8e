"""softbench: compare kernels on the GPU - checked, isolated, interleaved, in GB/s.

- `compare`, `run_gate` and `check` do what the commands `run`, `gate` and `check` do. `Result` is what `compare` returns.
- `use` and `enable` let torch's own softmax and log_softmax run softbench's kernels.
- `build` compiles the CUDA C++ of a plugin.
- `Case`, `Direction` and the protocol `Backend` are what a plugin needs.
- Every expected error is a `SoftbenchError`; its classes are here too.

Importing softbench imports neither torch nor pandas.
"""

from typing import TYPE_CHECKING, Any

from softbench.core.case import Case, Direction
from softbench.core.errors import (
    ConfigError,
    InconclusiveError,
    NotMeasurableError,
    ResultsError,
    SoftbenchError,
    StorageError,
    UsageError,
    WorkersError,
)
from softbench.plugins.backend import Backend

if TYPE_CHECKING:
    from softbench.api.measure import check as check, compare as compare, run_gate as run_gate
    from softbench.api.result import Result as Result
    from softbench.kernels import enable as enable, use as use
    from softbench.kernels.common.cuda_library import build as build

__version__ = "1.0.0"
__all__ = [
    "Backend",
    "Case",
    "ConfigError",
    "Direction",
    "InconclusiveError",
    "NotMeasurableError",
    "Result",
    "ResultsError",
    "SoftbenchError",
    "StorageError",
    "UsageError",
    "WorkersError",
    "__version__",
    "build",
    "check",
    "compare",
    "enable",
    "run_gate",
    "use",
]
_LATER = {
    **dict.fromkeys(("check", "compare", "run_gate"), "api.measure"),
    "Result": "api.result",
    **dict.fromkeys(("enable", "use"), "kernels"),
    "build": "kernels.common.cuda_library",
}
"""Names that are imported when they are used first, with their modules."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"softbench.{_LATER[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(ipython: Any) -> None:
    """Register the cell magic `%%softbench`; `%load_ext softbench` calls this."""
    from softbench.api.notebook import load

    load(ipython)
