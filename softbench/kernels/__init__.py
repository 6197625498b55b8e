"""The anchor of softbench's own kernels: `softbench.kernels.common`, `softbench.kernels.triton` and `softbench.kernels.cuda`.

Their sources are in `kernels/` at the top of a checkout, and an installation maps them here. A bare checkout has no such mapping: there
this module adds the folder beside the package to its own path.
"""

from pathlib import Path

_checkout = Path(__file__).resolve().parents[2] / "kernels"
if (_checkout / "triton" / "__init__.py").is_file() and (_checkout.parent / "pyproject.toml").is_file():
    __path__.append(str(_checkout))
