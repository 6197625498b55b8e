"""softbench's fastest Triton kernels in packages of AOTInductor, by C functions ("C shims") that are linked into the package.

    with c_shims() as configs:
        torch._inductor.aoti_compile_and_package(exported, package_path="model.pt2", inductor_configs=configs)

AOTInductor cannot launch clusters, gives kernels no workspace, and takes no kernel whose assembly has side effects. The tiers cluster,
split and staged need one of these. Without these functions, such calls have slower kernels (`traceable.py`).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from . import dispatch
from .c_shim_library import Library
from .static_launch import static_launch

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

DRIVER = ":libcuda.so"
"""The name of the driver's library for the linker. It follows the functions, which need it.

A linker drops a library that nothing before it needs, such as Inductor's own `cuda`. Inductor keeps only the first of two equal names.
"""


class Shims:
    """The C functions of the package that is being compiled."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._numbers: dict[tuple[Any, ...], int] = {}

    def number(self, inputs: tuple[torch.Tensor, ...], log: bool) -> int | None:
        """The number of the launch for these rows in the package's table; None if their tier needs no C function."""
        launch = static_launch(inputs, log)
        if launch is None:
            return None
        key = (*((tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in inputs), log)
        if key not in self._numbers:
            self._numbers[key] = self._library.add(launch, compiled_kernel(launch, inputs), inputs)
        return self._numbers[key]


def compiled_kernel(launch: dispatch.PreparedLaunch, inputs: tuple[torch.Tensor, ...]) -> CompiledKernel:
    """Compiles the kernel of a launch for the GPU of `inputs`, and launches nothing."""
    operands = [inputs[0].dtype] * (len(inputs) + 1) + [torch.int64] * (2 if launch.slots else 0)
    with torch.cuda.device(inputs[0].device):
        found: CompiledKernel = launch.kernel.warmup(*operands, *launch.arguments, None, grid=(launch.programs,), **launch.options)
    return found


_active: ContextVar[Shims | None] = ContextVar("c_shims", default=None)


def active() -> Shims | None:
    """The functions of the package that is being compiled inside `c_shims()`; None elsewhere."""
    return _active.get()


@contextlib.contextmanager
def c_shims(compiler: str | None = None) -> Iterator[dict[str, Any]]:
    """Inductor's configuration for packages with C functions; compile the package inside the context.

    - Calls of softbench's Triton softmax and log-softmax with fixed sizes launch the kernels of eager calls if their tier is cluster, split
      or staged. Other calls, and calls on unaligned views, are compiled as without the context.
    - The package launches them on the current stream, also while a CUDA graph is captured. For launches of tier split it keeps a workspace
      for each stream until the process ends: 256 bytes for each program, at most as many as the largest launch has.
    - `compiler`: the path of a C++ compiler; by default Inductor's.

    A package is for one GPU architecture, as without the context. If a configuration of yours has `custom_ops_to_c_shims` or
    `custom_op_libs`, merge both.

    Raises:
        BuildError: there is no CUDA toolkit with headers, or the compiler fails.
    """
    from torch._inductor.cpp_builder import get_cpp_compiler

    from . import operator

    with tempfile.TemporaryDirectory(prefix="softbench-") as folder:
        name = f"softbench_{uuid.uuid4().hex[:16]}"  # Inductor names a linked library by its command, and may keep it
        library = Library(Path(folder), name, compiler or get_cpp_compiler())
        token = _active.set(Shims(library))
        before = os.environ.get("LIBRARY_PATH")
        os.environ["LIBRARY_PATH"] = folder if before is None else f"{folder}{os.pathsep}{before}"
        try:
            yield {
                "aot_inductor.custom_ops_to_c_shims": {packaged: [declaration] for packaged, declaration in operator.c_functions().items()},
                "aot_inductor.custom_op_libs": [name, DRIVER],
            }
        finally:
            _active.reset(token)
            if before is None:
                os.environ.pop("LIBRARY_PATH", None)
            else:
                os.environ["LIBRARY_PATH"] = before
