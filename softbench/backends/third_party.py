"""Base of the backends of other packages: `quack`, `liger`, `flaggems`, `flashinfer`, and those of `softbench.backends.gallery`.

The timed call is the project's own entry point. Its output allocation and its look-ups count, as they do for its users.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch

from softbench.backends import nvidia
from softbench.core.text import one_line

FORBIDDEN = "ForbiddenError"
"""What `softbench.worker.guarding.audit` raises where a module that is in no site-packages looks at frames."""


class ThirdParty:
    """Base class: a module of a package that may be missing."""

    name: str
    package: str
    """Name of the package for pip."""
    module: str
    """The module with the kernels."""
    needs = ""
    """The package to find if `module` is softbench's own."""
    install: str
    advice: str
    compiles: bool | str = True
    only_nvidia = False

    def available(self) -> str | None:
        if self.only_nvidia and torch.version.hip is not None:
            return nvidia.missing()
        try:
            if not _found(self.needs or self.module.partition(".")[0]):
                return f"{self.package} is not installed; where there is a CUDA GPU: {self.install}"
            if not torch.cuda.is_available():
                return "no CUDA GPU here"
            self._module()
        except Exception as error:  # a DSL that does not find its libraries can raise anything
            if type(error).__name__ == FORBIDDEN:
                only = "which only packages in site-packages may do; not from PYTHONPATH or by -e"
                return f"{self.package} looks at frames, {only}: {self.install}"
            reason = one_line(f"{type(error).__name__}: {error}", 150)
            newer = self.install.replace("install", "install -U", 1)
            return f"{self.module} cannot be imported ({reason}); for torch {torch.__version__}, try an older version, or: {newer}"
        return None

    def sources(self) -> list[Path]:
        """The Python files of the imported kernel package. A resumed run measures a changed package again."""
        file = getattr(sys.modules.get(self.module), "__file__", None)
        return sorted(Path(file).parent.glob("*.py")) if file else []

    def _module(self) -> ModuleType:
        """The module from `sys.modules`: the function `quack.softmax` hides the attribute of that name."""
        return importlib.import_module(self.module)


def _found(module: str) -> bool:
    """Whether a module is installed. Packages around it are imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
