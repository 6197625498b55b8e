"""Lets torch pretend to be for ROCm in every process whose PYTHONPATH has this folder, from its import on."""

import importlib.util
import sys

from pretended_rocm import pretend


class Finder:
    """Finds torch as usual, and changes it when it is imported."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            pretend(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
