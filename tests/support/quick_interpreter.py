"""softbench's Triton backends as a plugin, under an interpreter that patches triton.language once in a launch.

Triton's interpreter does so again in each call of a device function, which takes a third of these kernels' time and changes nothing.
"""

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


interpreter.GridExecutor.__call__, interpreter._patch_lang = launch_anew, patch_once
backends = [row, tile, own]
