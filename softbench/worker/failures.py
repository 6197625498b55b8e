"""Errors of a request: out of memory, a lost CUDA context, and the reply that reports them with the line where they arose.

That is the innermost line of the plugin's own code, or the first error line of a compiler.
"""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import FunctionType

import torch

from softbench.core.errors import SoftbenchError
from softbench.core.messages import Failure
from softbench.core.outcome import Status
from softbench.core.text import in_words, one_line, size
from softbench.plugins.source import PluginSource

OUT_OF_MEMORY = re.compile(
    r"DefaultCPUAllocator|(CUDA|HIP)( driver)? error: out of memory|(CUDA|HIP)\]: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
    r"|(BLAS|DNN)_STATUS_ALLOC_FAILED"
)
"""Texts of the CPU's allocator in torch, of the runtimes' and drivers' errors in torch, of Triton, cupy and numba, of cuBLAS and cuDNN."""
ASKED = re.compile(r"allocate (?:(?P<bytes>\d+) bytes|(?P<amount>[\d.]+ [KMGT]?i?B))")
"""How much memory torch could not allocate, on a CPU or a GPU."""
REASON = 280
"""The longest reason with the place at its end; the stage precedes it in a line of 300."""
PLACE_LENGTH = 160
"""The longest place in a reason."""
PLACE = r"(?P<file>[^\s:()]+)[:(](?P<line>\d+)\)?(?::\d+)?"
COMPILER_ERROR = re.compile(rf"^{PLACE}: (?:fatal |catastrophic )?error[^:\n]*: *(?P<text>.+)$", re.MULTILINE)
"""An error line of nvcc (`a.cu(3): error: ...`) or of gcc and clang (`a.cpp:3:5: error: ...`)."""
ASSEMBLER_ERROR = re.compile(
    r"^(?P<tool>ptxas|nvlink) +(?:(?P<file>\S+), line (?P<line>\d+); )?(?:error|fatal) *: *(?P<text>.+)$", re.MULTILINE
)
"""An error line of ptxas (`ptxas a.ptx, line 3; error   : ...`, or without a line) or nvlink."""
OPERATION_FILE = "softbench_operation_"
"""The beginning of the names of the modules that `softbench.ops.user_file` imports."""
INTERPRETER_ERROR = "InterpreterError"
"""What Triton's interpreter raises at the launch for an error in a kernel."""
SEARCHED = 1 << 16
"""Characters of a compiler's log that are searched."""


def out_of_memory(error: BaseException) -> bool:
    """torch's own error on the GPU; on the CPU its allocator raises a bare RuntimeError.

    Without the allocator the error is CUDA's own: for a context or module on a GPU that others fill, and from kernels of a plugin.
    """
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or OUT_OF_MEMORY.search(str(error)) is not None


def poisoned() -> bool:
    """True when CUDA cannot be used any more in this process (illegal address, device assert)."""
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False


def failure(stage: str, error: Exception, source: PluginSource | None) -> Failure:
    """The reply to a request that raised `error` in the code of a plugin source, if one was loaded."""
    if type(error).__name__ == INTERPRETER_ERROR and isinstance(error.__cause__, Exception):
        error = error.__cause__  # with the kernel's line
    status = Status.OOM if out_of_memory(error) else Status.FAILED
    text = str(error).strip()
    # A compiler's log or a CUDA hint may follow; the first line says what happened, the log keeps the rest.
    reason = f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
    place, compiled = _place(error, source)
    if status is Status.OOM and (asked := ASKED.search(text)):
        amount = size(int(asked["bytes"])) if asked["bytes"] else asked["amount"]
        reason = f"out of memory, as it asked for {amount}: free memory, or choose a smaller shape"
    if isinstance(error, SyntaxError):
        reason = f"{type(error).__name__}: {error.msg}"
    if isinstance(error, SoftbenchError):
        reason, place = text, Path(source.target).name if source is not None and source.kind == "file" else ""
    elif compiled:
        reason, place = f"{type(error).__name__}: {compiled}", ""
    log(error)
    place = f" ({one_line(place, PLACE_LENGTH)})" if place else ""
    return Failure(status, "import" if stage == "load" else stage, one_line(reason, REASON - len(place)) + place, poisoned())


def _place(error: BaseException, source: PluginSource | None) -> tuple[str, str]:
    """The user's line and the compiler's first error. Without them if the search fails: it reads files and modules of the plugin."""
    try:
        return user_line(error, source), compiler_error(error)
    except Exception as other:
        log(other)
        return "", ""


def log(error: BaseException) -> None:
    """Write the traceback into the worker's log, if the disk has room."""
    with suppress(OSError):
        traceback.print_exception(error)


def compiler_error(error: BaseException) -> str:
    """The first error of a compiler's log that the exception holds, as `a.cu:3: text`; empty if it holds none.

    The log is the exception's text, or what `subprocess` captured. An error of Triton's compiler counts too.
    """
    for log in (str(error), *(getattr(error, name, None) for name in ("stderr", "stdout"))):
        text = log.decode(errors="replace") if isinstance(log, bytes) else log
        if not isinstance(text, str):
            continue
        if found := COMPILER_ERROR.search(text[:SEARCHED]) or ASSEMBLER_ERROR.search(text[:SEARCHED]):
            place = f"{Path(found['file']).name}:{found['line']}" if found["file"] else found["tool"]
            return f"{place}: {found['text']}"
    return _triton_error(error)


def _triton_error(error: BaseException) -> str:
    """The innermost error of Triton's compiler. Its text quotes the kernel's source first, and counts lines from the kernel's `def`."""
    kind = getattr(sys.modules.get("triton.compiler.errors"), "CompilationError", ())
    if not isinstance(error, kind):
        return ""
    while isinstance(error.__cause__, kind):  # the error of a function that the kernel calls
        error = error.__cause__
    text = getattr(error, "error_message", None) or str(error.__cause__ or "").strip().partition("\n")[0]
    line, source = getattr(getattr(error, "node", None), "lineno", 0), str(getattr(error, "src", ""))
    if (kernel := _kernel_of(source)) is None:
        return text
    lines, start = inspect.getsourcelines(kernel)
    begin = start + next((i for i, code in enumerate(lines) if code.lstrip().startswith("def ")), 0)  # decorators precede it
    return f"{Path(kernel.__code__.co_filename).name}:{begin + line - 1}: {text}"


def _kernel_of(source: str) -> FunctionType | None:
    """The function of the kernel with this source, among the kernels of all modules: Triton removes its compiler's frames."""
    triton = sys.modules["triton"]
    for module in list(sys.modules.values()):
        for found in list(getattr(module, "__dict__", {}).values()):
            while isinstance(found, triton.KernelInterface) and not isinstance(found, triton.JITFunction):
                found = getattr(found, "fn", None)  # the kernel of an autotuner
            if isinstance(found, triton.JITFunction) and found.src == source and isinstance(found.fn, FunctionType):
                return found.fn
    return None


def user_line(error: BaseException, source: PluginSource | None) -> str:
    """`in prepare, mine.py:12: code`: the innermost frame in the code of the plugin or of a user's operation; empty if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    operations = {getattr(module, "__file__", "") for name, module in list(sys.modules.items()) if name.startswith(OPERATION_FILE)}
    if source is None or source.own:
        source = None
    elif isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{Path(error.filename).name}:{error.lineno}"
    for frame in reversed(frames):
        if frame.filename in operations or (source is not None and _belongs(Path(frame.filename), source)):
            return in_words(frame.name, Path(frame.filename), frame.lineno or 0, frame.line or "")
    return ""


def _belongs(file: Path, source: PluginSource) -> bool:
    """True for the plugin's file and modules beside it, and for every module of a plugin's package."""
    if source.kind == "file":
        return file.parent == Path(source.target).parent or file.is_relative_to(source.target)
    package = sys.modules.get(source.target.partition(":")[0].partition(".")[0])
    folders = list(getattr(package, "__path__", ()))
    return any(file.is_relative_to(folder) for folder in folders) or str(file) == getattr(package, "__file__", "")
