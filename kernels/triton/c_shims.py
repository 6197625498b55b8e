"""softbench's fastest Triton kernels in packages of AOTInductor, by C functions ("C shims") that are linked into the package.

    with c_shims():
        torch._inductor.aoti_compile_and_package(exported, package_path="model.pt2")

AOTInductor cannot launch clusters, gives kernels no workspace, and takes no kernel whose assembly has side effects. The eager kernels of
the tiers cluster, split and staged need one of these. Without these functions, such calls have traced kernels (`traceable.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from ..common.cuda_toolkit import cuda_home
from . import dispatch, row_operators
from .dispatch import IN_SHARED_MEMORY, PreparedLaunch, with_stable_key
from .grid_exchange import COUNTER_WORDS
from .launch_plan import VECTOR_BYTES, WARP

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

SHIMMED = ("staged", "cluster", "split")
"""The tiers whose eager kernels compilers cannot launch."""
SOURCES = Path(__file__).parent
DTYPES = {torch.float16: 5, torch.float32: 6, torch.bfloat16: 15}
"""PyTorch's numbers of the dtypes (c10/core/ScalarType.h)."""
FLAGS = ("-O1", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-DUSE_CUDA")
CUBIN = """asm(".pushsection .rodata\\n.balign 16\\nsoftbench_cubin_{0}: .incbin \\"{0}.cubin\\"\\n.popsection");
extern "C" __attribute__((visibility("hidden"))) const unsigned char softbench_cubin_{0}[];
const int64_t arguments_{0}[] = {{{1}}};
"""


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


def static_launch(inputs: tuple[torch.Tensor, ...], log: bool = False) -> PreparedLaunch | None:
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


class BuildError(RuntimeError):
    """The library cannot be built. The text says why."""


class Library:
    """The static library lib`name`.a in `folder`: `c_shims.cpp`, and a table of launches with their kernels.

    AOTInductor links it into a package, which then needs neither Python nor another file. `compiler` is the path of a C++ compiler.

    Raises:
        BuildError: there is no CUDA toolkit, or the compiler or `ar` fails.
    """

    def __init__(self, folder: Path, name: str, compiler: str) -> None:
        self.folder, self.name, self.compiler = folder, name, compiler
        self._launches: list[tuple[str, str]] = []
        home = cuda_home()
        if home is None:
            raise BuildError("no CUDA toolkit with the headers that C++ launchers include; install one, or set CUDA_HOME to its folder")
        self._compile("c_shims.o", SOURCES / "c_shims.cpp", f"-I{Path(torch.__file__).parent / 'include'}", f"-I{home / 'include'}")
        self._archive()

    def add(self, launch: PreparedLaunch, compiled: CompiledKernel, inputs: tuple[torch.Tensor, ...], log: bool) -> int:
        """The number of a new launch in the table. `inputs` are (M, N) tensors that the kernel reads; only their layout is used.

        Raises:
            BuildError: the compiler or `ar` fails, or the kernel needs scratch memory.
        """
        number = len(self._launches)
        if any(getattr(compiled.metadata, f"{kind}_scratch_size", 0) for kind in ("global", "profile")):
            raise BuildError(f"{compiled.metadata.name} needs scratch memory, which packages lack; turn instrumentation of Triton off")
        (self.folder / f"{number}.cubin").write_bytes(compiled.asm["cubin"])
        arguments = arguments_of(launch, compiled)
        data = CUBIN.format(number, ", ".join(map(str, arguments)) or "0")
        self._launches.append((data, _fields(number, launch, compiled, inputs, log, len(arguments))))
        self._archive()
        return number

    def _archive(self) -> None:
        """Writes the library with the launches that were added so far."""
        data = "\n".join(data for data, _ in self._launches)
        # a table has at least one line in C++
        lines = "\n".join(f"    {{{fields}}}," for _, fields in self._launches) or "    {},"
        (self.folder / "table.cpp").write_text(
            f'#include "c_shims.h"\nnamespace softbench {{\n{data}\nconst Launch launches[] = {{\n{lines}\n}};\n'
            f"const int launch_count = {len(self._launches)};\nconst int64_t counter_words = {COUNTER_WORDS};\n}}\n"
        )
        self._compile("table.o", Path("table.cpp"), f"-I{SOURCES}")
        self._run("ar", "rcs", f"lib{self.name}.a", "c_shims.o", "table.o")

    def _compile(self, result: str, source: Path, *options: str) -> None:
        self._run(self.compiler, *FLAGS, *options, "-c", str(source), "-o", result)

    def _run(self, *command: str) -> None:
        try:
            subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True)
        except OSError as error:
            raise BuildError(f"{command[0]} does not start: {error.strerror}") from error
        except subprocess.CalledProcessError as error:
            raise BuildError(f"{command[0]} failed:\n{error.stderr.strip()[-2000:]}") from error


def arguments_of(launch: PreparedLaunch, compiled: CompiledKernel) -> list[int]:
    """The launch's arguments after the operands that the compiled kernel takes. Its constants are inside the kernel."""
    kinds = compiled.src.signature
    names = launch.kernel.arg_names[-len(launch.arguments) - 1 : -1]  # the last one is the scale, which is None
    return [int(value) for name, value in zip(names, launch.arguments, strict=True) if kinds[name] != "constexpr"]


def _fields(
    number: int, launch: PreparedLaunch, compiled: CompiledKernel, inputs: tuple[torch.Tensor, ...], log: bool, arguments: int
) -> str:
    """A line of the table, in the order of `Launch` in `c_shims.h`."""
    found: Any = compiled.metadata
    M, N = inputs[0].shape
    strides = ", ".join(str(tensor.stride(0)) for tensor in inputs)
    fields = (
        *(f"softbench_cubin_{number}", json.dumps(found.name)),
        *(len(inputs), str(log).lower(), DTYPES[inputs[0].dtype], found.target.arch),
        *(M, N, f"{{{strides}}}"),
        *(launch.programs, found.num_ctas, WARP * found.num_warps, found.shared),
        COUNTER_WORDS + launch.slots if launch.slots else 0,
        str(launch.kernel in IN_SHARED_MEMORY).lower(),
        *(arguments, f"arguments_{number}"),
    )
    return ", ".join(map(str, fields))


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


def compiled_kernel(launch: PreparedLaunch, inputs: tuple[torch.Tensor, ...]) -> CompiledKernel:
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

    if not _one_at_a_time.acquire(blocking=False):
        raise RuntimeError("another c_shims() is open in this process; compile its packages first")
    try:
        with tempfile.TemporaryDirectory(prefix="softbench-") as folder:
            name = f"softbench_{uuid.uuid4().hex[:16]}"  # Inductor names a linked library by its command, and may keep it
            _active.set(Shims(Library(Path(folder), name, compiler or get_cpp_compiler())))
            functions = {rows: [declaration] for rows, declaration in row_operators.c_functions().items()}
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
