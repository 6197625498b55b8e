"""A static library of C functions that launch compiled Triton kernels: `c_shims.cpp`, and a table of launches.

AOTInductor links the library into a package. The package then needs neither Python nor another file.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..common.cuda_toolkit import cuda_home
from .dispatch import IN_SHARED_MEMORY, PreparedLaunch
from .launch_plan import WARP
from .workspace import COUNTER_WORDS

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

SOURCES = Path(__file__).parent
DTYPES = {torch.float16: 5, torch.float32: 6, torch.bfloat16: 15}
"""PyTorch's numbers of the dtypes (c10/core/ScalarType.h)."""
FLAGS = ("-O1", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-DUSE_CUDA")
CUBIN = """asm(".pushsection .rodata\\n.balign 16\\nsoftbench_cubin_{0}: .incbin \\"{0}.cubin\\"\\n.popsection");
extern "C" __attribute__((visibility("hidden"))) const unsigned char softbench_cubin_{0}[];
const int64_t arguments_{0}[] = {{{1}}};
"""


class BuildError(RuntimeError):
    """The library cannot be built. The text says why."""


class Library:
    """The library lib`name`.a in `folder`. `compiler` is the path of a C++ compiler, such as g++.

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
