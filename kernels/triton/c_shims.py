"""softbench's fastest Triton kernels in packages of AOTInductor, by C functions ("C shims") that are linked into the package.

    with c_shims():
        torch._inductor.aoti_compile_and_package(exported, package_path="model.pt2")

AOTInductor cannot launch clusters, gives kernels no workspace, and takes no kernel whose assembly has side effects. The eager kernels of
the tiers cluster, split and staged need one of these. Without these functions, such calls have traced kernels (`traceable.py`).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from . import dispatch
from .c_shim_library import Library
from .cache_keys import with_stable_key
from .launch_plan import VECTOR_BYTES

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

SHIMMED = ("staged", "cluster", "split")
"""The tiers whose eager kernels compilers cannot launch."""


@dataclass(frozen=True)
class Operand:
    """The properties of a tensor that `choose_plan` reads. Its address counts as aligned."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def stride(self, dimension: int) -> int:
        return self.strides[dimension]

    def element_size(self) -> int:
        return self.dtype.itemsize

    def data_ptr(self) -> int:
        return 0


def static_launch(inputs: tuple[torch.Tensor, ...], log: bool = False) -> dispatch.PreparedLaunch | None:
    """The launch for (M, N) rows if its tier is in SHIMMED; None for another tier, for symbolic sizes, and for unaligned views.

    `inputs` are a forward's x or a backward's (dy, y), of which only the layout is used.
    """
    numbers = [number for tensor in inputs for number in (*tensor.shape, *tensor.stride(), tensor.storage_offset())]
    if not all(isinstance(number, int) for number in numbers):
        return None
    if any(tensor.storage_offset() * tensor.element_size() % VECTOR_BYTES for tensor in inputs):
        return None
    first = inputs[0]
    layouts = [tensor.stride() for tensor in inputs]
    operands = [Operand(first.shape, strides, first.dtype, first.device) for strides in (*layouts, (first.shape[1], 1))]
    tensors = cast("tuple[torch.Tensor, ...]", tuple(operands))
    problem, plan = dispatch.choose_plan(tensors)
    return dispatch.prepare_launch(problem, plan, tensors, log) if plan.tier in SHIMMED else None


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
            self._numbers[key] = self._library.add(launch, compiled_kernel(launch, inputs), inputs, log)
        return self._numbers[key]


def compiled_kernel(launch: dispatch.PreparedLaunch, inputs: tuple[torch.Tensor, ...]) -> CompiledKernel:
    """Compiles the kernel of a launch for the GPU of `inputs`, and launches nothing."""
    operands = [inputs[0].dtype] * (len(inputs) + 1) + [torch.int64] * (2 if launch.slots else 0)
    with torch.cuda.device(inputs[0].device):
        found: CompiledKernel = with_stable_key(launch.kernel).warmup(
            *operands, *launch.arguments, None, grid=(launch.programs,), **launch.options
        )
    return found


_active: ContextVar[Shims | None] = ContextVar("_active", default=None)
"""Of a thread, since Inductor's configuration is that of a thread too (torch 2.13)."""
_one_at_a_time = threading.Lock()
"""Held inside `c_shims()`: LIBRARY_PATH belongs to the process."""


def active() -> Shims | None:
    """The functions of the package that this thread compiles inside `c_shims()`; None elsewhere."""
    return _active.get()


@contextlib.contextmanager
def c_shims(compiler: str | None = None) -> Iterator[None]:
    """Packages that AOTInductor compiles in this thread inside the context have C functions.

    - Calls of softbench's Triton softmax and log-softmax with fixed sizes launch the kernels of eager calls if their tier is cluster, split
      or staged. Other calls, and calls on unaligned views, are compiled as without the context.
    - The package launches them on the current stream. A CUDA graph may capture it after a first call. For launches of tier split it keeps
      a workspace for each stream: 256 bytes for each program, at most as many as the largest launch has. Kernels and workspaces stay until
      the process ends, also if the package is unloaded. So the first call on a stream must not allocate from a private memory pool.
    - `compiler`: the path of a C++ compiler; by default Inductor's.

    The functions are for the architecture of this machine's GPU. `aot_inductor.package_cpp_only` would leave them out. A context for one
    package is enough, but several packages may be compiled in one. `torch.compile` with `cpp_wrapper` must not run inside: Inductor
    would call the functions there too, but the library has no launches for such a graph. With ROCm, the context does nothing.

    Raises:
        BuildError: there is no CUDA toolkit with headers, or the compiler fails.
        RuntimeError: another context is open.
    """
    if torch.version.hip is not None:
        yield
        return
    from torch._inductor import config
    from torch._inductor.cpp_builder import get_cpp_compiler

    from . import operator

    if not _one_at_a_time.acquire(blocking=False):
        raise RuntimeError("another c_shims() is open in this process; compile its packages first")
    try:
        with tempfile.TemporaryDirectory(prefix="softbench-") as folder:
            name = f"softbench_{uuid.uuid4().hex[:16]}"  # Inductor names a linked library by its command, and may keep it
            _active.set(Shims(Library(Path(folder), name, compiler or get_cpp_compiler())))
            functions = {rows: [declaration] for rows, declaration in operator.c_functions().items()}
            settings = {
                "aot_inductor.custom_ops_to_c_shims": {**config.aot_inductor.custom_ops_to_c_shims, **functions},
                "aot_inductor.custom_op_libs": [*(config.aot_inductor.custom_op_libs or []), name],
            }
            with _library_path(folder), config.patch(settings):
                yield
    finally:
        _active.set(None)
        _one_at_a_time.release()


@contextlib.contextmanager
def _library_path(folder: str) -> Iterator[None]:
    """Compilers look for libraries in the folder too."""
    before = os.environ.get("LIBRARY_PATH")
    os.environ["LIBRARY_PATH"] = folder if before is None else f"{folder}{os.pathsep}{before}"
    try:
        yield
    finally:
        rest = [other for other in os.environ.get("LIBRARY_PATH", "").split(os.pathsep) if other != folder]
        os.environ["LIBRARY_PATH"] = os.pathsep.join(rest)
        if before is None and not any(rest):
            del os.environ["LIBRARY_PATH"]
