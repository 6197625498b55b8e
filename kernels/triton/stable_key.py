"""Keys of kernels in Triton's cache that do not depend on what the process has compiled before."""

from __future__ import annotations

import inspect
import threading
from typing import Any

from triton.runtime.jit import JITFunction

_keyed: dict[int, JITFunction[Any]] = {}  # by id, since a JITFunction's hash is computed from its key
_keys_lock = threading.Lock()


def with_stable_key(kernel: Any) -> Any:
    """Computes the keys of the functions that the kernel calls, then its own, and returns the kernel.

    So its key in Triton's cache does not depend on what the process has compiled before. Triton computes a kernel's key from those of the
    functions that it calls, and from the constants that these use. Triton 3.6 leaves out the constants of a function whose own key is not
    computed yet. Source: `JITFunction.cache_key` and `DependenciesFinder._update_hash` in triton/runtime/jit.py. Triton 3.9 computes the
    called function's key first. Both sort the constants by name and by their module's address, so constants of a kernel that have one name
    have one value.

    What is not a `JITFunction` has no key, such as a kernel of Triton's interpreter. It is returned as it is.
    """
    if isinstance(kernel, JITFunction) and id(kernel) not in _keyed:
        with _keys_lock:
            _compute_keys(kernel)
    return kernel


def _compute_keys(kernel: JITFunction[Any]) -> None:
    for called in inspect.getclosurevars(kernel.fn).globals.values():
        if isinstance(called, JITFunction) and id(called) not in _keyed:
            _compute_keys(called)
    _ = kernel.cache_key
    _keyed[id(kernel)] = kernel
