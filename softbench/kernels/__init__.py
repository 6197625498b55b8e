"""The anchor of softbench's own kernels: `softbench.kernels.triton` and `softbench.kernels.cuda`.

Their sources stand in `kernels/` at the top of a checkout and are mapped here when softbench is installed. In a bare checkout,
where nothing did the mapping, the folder is found beside the package.
"""

from pathlib import Path

_checkout = Path(__file__).resolve().parents[2] / "kernels"
if (_checkout / "triton" / "__init__.py").is_file() and (_checkout.parent / "pyproject.toml").is_file():
    __path__.append(str(_checkout))
