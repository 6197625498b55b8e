"""Reads the built library: the resources of each kernel, its machine code (SASS), and the PTX that it comes from.

The library has machine code only. So nvcc makes the PTX when it is needed, and it is cached beside the library.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from ..common.cuda_toolkit import cuobjdump
from . import build

_FUNCTION = re.compile(r"Function ([^\s:]+):\s*\n\s*(REG:.*)")
_ENTRY = re.compile(r"^(?:\.visible |\.weak )*\.entry ([\w$]+)\(.*?^\}", re.MULTILINE | re.DOTALL)


def resources(library: Path) -> dict[str, dict[str, int]]:
    """The resources of each kernel, by its mangled name.

    REG: registers of a thread. STACK and LOCAL: bytes of a thread; LOCAL has spilled registers. SHARED: bytes of a CTA. CONSTANT[0]: bytes.

    Raises:
        BuildError: there is no cuobjdump, or it failed.
    """
    found = {}
    for name, line in _FUNCTION.findall(_run("--dump-resource-usage", str(library))):
        found[name] = {key: int(value) for key, value in (word.rsplit(":", 1) for word in line.split()) if value.isdigit()}
    return found


def sass(library: Path, functions: Iterable[str]) -> str:
    """The machine code of the kernels with these mangled names. Raises BuildError as `resources`."""
    return _run("--dump-sass", "--function", ",".join(functions), str(library))


def ptx(architecture: str, functions: Iterable[str], function: str = "softmax") -> str:
    """The PTX of the kernels with these mangled names, of the library of `function`.

    Raises:
        BuildError: there is no nvcc, or it failed.
    """
    wanted, file = set(functions), build.build(architecture, function).with_name("softmax.ptx")
    if not file.is_file():
        compiler = build.nvcc()
        if compiler is None:
            raise build.BuildError(build.MISSING)
        fresh = file.with_name(f"softmax.{os.getpid()}.ptx")
        number = architecture.removeprefix("sm_")
        command = [
            compiler,
            *(flag for flag in build.flags(function) if flag.startswith(("-O", "-std", "-D"))),
            "--ptx",
            f"-arch=compute_{number}",
        ]
        done = subprocess.run([*command, "-o", str(fresh), str(build.source(function))], capture_output=True, text=True, check=False)
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
