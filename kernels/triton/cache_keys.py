"""Keys of kernels in Triton's cache that do not depend on which kernels a process has compiled before.

Triton computes the key of a kernel from the keys of the functions that it calls, and from the constants that these use. Triton 3.6 leaves
out the constants of a function whose own key is not computed yet. So the key differs between processes, and kernels compile again. Source:
`JITFunction.cache_key` and `DependenciesFinder._update_hash` in triton/runtime/jit.py. Triton 3.9 computes the called function's key first.
"""

from __future__ import annotations

import inspect
import threading
from typing import Any

from triton.runtime.jit import JITFunction

_done: dict[int, JITFunction[Any]] = {}  # by id, since a JITFunction's hash is computed from its key
_lock = threading.Lock()


def with_stable_key(kernel: Any) -> Any:
    """Computes the keys of the functions that the kernel calls, then its own, and returns the kernel.

    What is not a `JITFunction` has no key, such as a kernel of Triton's interpreter. It is returned as it is.
    """
    if isinstance(kernel, JITFunction) and id(kernel) not in _done:
        with _lock:
            _compute(kernel)
    return kernel


def _compute(kernel: JITFunction[Any]) -> None:
    for called in inspect.getclosurevars(kernel.fn).globals.values():
        if isinstance(called, JITFunction) and id(called) not in _done:
            _compute(called)
    _ = kernel.cache_key
    _done[id(kernel)] = kernel
