"""softbench's Triton backends as a plugin, under an interpreter that leaves out work which changes no result.

Triton's interpreter patches triton.language again in each call of a device function, and makes a table of dtypes in each operation. It also
repeats each addition and multiplication of indices in 64 bits to find overflows. `check` runs two of the backends with that, in
tests/run/test_check.py.
"""

import functools
import os

os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported

from triton.runtime import interpreter

from softbench.backends.own_kernels import own, row, tile

patched: set[frozenset[int]] = set()
"""The modules that the present launch has patched, for each set of them that a function can have."""
launch, patch = interpreter.GridExecutor.__call__, interpreter._patch_lang


def launch_anew(self, *given, **named):
    patched.clear()
    return launch(self, *given, **named)


def patch_once(function):
    """Patches what `function` sees. The interpreter needs the result for the first call of a launch only, to restore what was there."""
    seen = frozenset(id(value) for value in function.__globals__.values() if value is interpreter.tl or value is interpreter.tl.core)
    if seen in patched:
        return None
    patched.add(seen)
    return patch(function)


find_np_dtype = interpreter._get_np_dtype
find_once = functools.cache(find_np_dtype)


def get_np_dtype(dtype):
    scalar = dtype.scalar
    return find_once(scalar) if type(scalar) is interpreter.tl.dtype else find_np_dtype(dtype)  # pointers have no hash


interpreter.GridExecutor.__call__, interpreter._patch_lang = launch_anew, patch_once
interpreter._get_np_dtype = get_np_dtype
interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
backends = [row, tile, own]
