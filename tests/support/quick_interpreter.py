"""softbench's Triton backend as a plugin, under an interpreter that leaves out work which changes no result.

Triton's interpreter patches triton.language again in each call of a device function, and makes a table of dtypes in each operation. It also
repeats each addition and multiplication of indices in 64 bits to find overflows. Each result gets a new type and a new shape, and operands
are compared even if they share their shape. tests/run/test_check.py runs some cases without these changes.
"""

import functools
import os

os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported

from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

from softbench.backends.triton import own as backend  # noqa: F401

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


make_block_type, make_tensor, broadcast = core.block_type.__init__, core.tensor.__init__, TritonSemantic.broadcast_impl_value
shapes: dict[tuple[int, ...], dict] = {}
"""What tensors of a shape have in common."""


def block_type_once(self, element_ty, shape):
    """A block type is that of its element and shape: it has the attributes of the first one, which its element keeps."""
    made = element_ty.__dict__.setdefault("blocks", {})
    key = tuple(shape)
    if key not in made:
        make_block_type(self, element_ty, shape)
        made[key] = dict(self.__dict__)
    self.__dict__.update(made[key])


def tensor_of_known_shape(self, handle, type):
    key = tuple(type.shape) if type.is_block() else ()
    if key in shapes:
        self.__dict__.update(shapes[key], handle=handle, type=type, dtype=type.scalar)
        return
    make_tensor(self, handle, type)
    if self.__dict__.keys() == {"handle", "shape", "numel", "type", "dtype"}:
        shapes[key] = {"shape": self.shape, "numel": self.numel}


def broadcast_unlike_shapes(self, lhs, rhs):
    left, right = lhs.type, rhs.type
    if left.is_block() and right.is_block() and tuple(left.shape) == tuple(right.shape):
        return lhs, rhs
    return broadcast(self, lhs, rhs)


core.block_type.__init__, core.tensor.__init__ = block_type_once, tensor_of_known_shape
TritonSemantic.broadcast_impl_value = broadcast_unlike_shapes
interpreter.GridExecutor.__call__, interpreter._patch_lang = launch_anew, patch_once
interpreter._get_np_dtype = get_np_dtype
interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
