"""Where an error arose: the innermost line of the plugin's own code, or the first error line of a compiler."""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from pathlib import Path
from types import FunctionType

from softbench.plugins.source import PluginSource

PLACE = r"(?P<file>[^\s:()]+)[:(](?P<line>\d+)\)?(?::\d+)?"
COMPILER_ERROR = re.compile(rf"^{PLACE}: (?:fatal |catastrophic )?error[^:\n]*: *(?P<text>.+)$", re.MULTILINE)
"""An error line of nvcc (`a.cu(3): error: ...`) or of gcc and clang (`a.cpp:3:5: error: ...`)."""
ASSEMBLER_ERROR = re.compile(
    r"^(?P<tool>ptxas|nvlink) +(?:(?P<file>\S+), line (?P<line>\d+); )?(?:error|fatal) *: *(?P<text>.+)$", re.MULTILINE
)
"""An error line of ptxas (`ptxas a.ptx, line 3; error   : ...`, or without a line) or nvlink."""
OPERATION_FILE = "softbench_operation_"
"""The beginning of the names of the modules that `softbench.ops.user_file` imports."""
SEARCHED = 1 << 16
"""Characters of a compiler's log that are searched."""


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
    """`in prepare, mine.py:12`: the innermost frame in the code of the plugin or of a user's operation; empty if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    operations = {getattr(module, "__file__", "") for name, module in list(sys.modules.items()) if name.startswith(OPERATION_FILE)}
    if source is None or source.own:
        source = None
    elif isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{Path(error.filename).name}:{error.lineno}"
    for frame in reversed(frames):
        if frame.filename in operations or (source is not None and _belongs(Path(frame.filename), source)):
            return f"in {frame.name}, {Path(frame.filename).name}:{frame.lineno}"
    return ""


def _belongs(file: Path, source: PluginSource) -> bool:
    """True for the plugin's file and modules beside it, and for every module of a plugin's package."""
    if source.kind == "file":
        return file.parent == Path(source.target).parent
    package = sys.modules.get(source.target.partition(":")[0].partition(".")[0])
    folders = list(getattr(package, "__path__", ()))
    return any(file.is_relative_to(folder) for folder in folders) or str(file) == getattr(package, "__file__", "")
