"""Looking into the built library: what the assembler gave each kernel, its SASS, and the PTX that it came from.

`cuobjdump` comes with a CUDA toolkit, with pip's `nvidia-cuda-cuobjdump` and with Triton; PTX is nvcc's, made when it is asked for (the
library holds machine code alone) and kept beside it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from . import build

_FUNCTION = re.compile(r"Function ([^\s:]+):\s*\n\s*(REG:.*)")
_ENTRY = re.compile(r"^(?:\.visible |\.weak )*\.entry ([\w$]+)\(.*?^\}", re.MULTILINE | re.DOTALL)


def cuobjdump() -> str | None:
    """Path of CUDA's disassembler, or None: on PATH, in a toolkit, among pip's packages, or Triton's own."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    places = ["cuobjdump", str(Path(home) / "bin" / "cuobjdump")]
    if compiler := build.nvcc():
        places.append(str(Path(compiler).resolve().parent / "cuobjdump"))
    places += [str(folder / "bin" / "cuobjdump") for folder in build._packaged_toolkits()]
    if triton := importlib.util.find_spec("triton"):
        places += [str(Path(folder) / "backends/nvidia/bin/cuobjdump") for folder in triton.submodule_search_locations or []]
    return next((path for place in places if (path := shutil.which(place))), None)


def resources(library: Path) -> dict[str, dict[str, int]]:
    """What each kernel takes, by its mangled name: REG and STACK of a thread, SHARED of a block, LOCAL where registers spill, CONSTANT[0].

    Raises:
        BuildError: there is no cuobjdump, or it fails.
    """
    found = {}
    for name, line in _FUNCTION.findall(_run("--dump-resource-usage", str(library))):
        found[name] = {key: int(value) for key, value in (word.rsplit(":", 1) for word in line.split()) if value.isdigit()}
    return found


def sass(library: Path, functions: Iterable[str]) -> str:
    """The machine code of kernels, given by their mangled names. Raises BuildError as `resources`."""
    return _run("--dump-sass", "--function", ",".join(functions), str(library))


def ptx(architecture: str, functions: Iterable[str]) -> str:
    """The PTX of kernels, given by their mangled names.

    Raises:
        BuildError: nvcc is not there, or fails.
    """
    wanted, file = set(functions), build.build(architecture).with_name("softmax.ptx")
    if not file.is_file():
        compiler = build.nvcc()
        if compiler is None:
            raise build.BuildError(build.MISSING)
        fresh = file.with_name(f"softmax.{os.getpid()}.ptx")
        number = architecture.removeprefix("sm_")
        command = [compiler, *(flag for flag in build.FLAGS if flag.startswith(("-O", "-std"))), "--ptx", f"-arch=compute_{number}"]
        done = subprocess.run([*command, "-o", str(fresh), str(build.SOURCE)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise build.BuildError(f"nvcc --ptx failed: {(done.stderr.strip().splitlines() or ['no message'])[0]}")
        fresh.replace(file)
    text = file.read_text()
    return "\n\n".join(match.group(0) for match in _ENTRY.finditer(text) if match.group(1) in wanted)


def _run(*arguments: str) -> str:
    program = cuobjdump()
    if program is None:
        raise build.BuildError("no cuobjdump on PATH, under CUDA_HOME, in pip's packages or Triton's; install the CUDA toolkit")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise build.BuildError(f"cuobjdump failed: {(done.stderr.strip().splitlines() or ['no message'])[0]}")
    return done.stdout
