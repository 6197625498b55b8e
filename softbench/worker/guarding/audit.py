"""Keeps a plugin from what its caller holds: its frames, and the objects that the garbage collector knows.

There it would find which rows are compared, and change samples. Python tells an audit hook of each way to them before it opens, and an
exception of the hook keeps it closed. A hook stays until the process ends. It deters cheating; it is no security boundary.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

OBJECTS = {"gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys._current_frames", "sys._current_exceptions"}
"""Events that give objects of others. A plugin, and what it calls, gets none."""
FRAMES = {"sys._getframe", "sys.settrace", "sys.setprofile", "sys.monitoring.register_callback"}
"""Events that give frames. Libraries look for the line of their caller, so they are closed to the plugin's own code."""
ATTRIBUTES = {"tb_frame", "gi_frame", "cr_frame", "ag_frame"}
"""Attributes that give frames; as FRAMES."""
GIVING = {"currentframe", "stack", "walk_stack", "walk_tb", "extract_stack", "print_stack", "format_stack", "getinnerframes", "<lambda>"}
"""Functions of Python's library that give the frames they get to their caller; `<lambda>` is that of `logging`."""
MAKER = "tvm_ffi.error", "_create_frame"
"""The function that makes frames for the traceback of an error in C++, by code that it evaluates. TileLang and CuTe DSL have it."""
SYMBOLS = ("PyEval_", "PyFrame_", "PyThreadState_", "PyInterpreterState_", "PyGC_", "PyObject_GC_", "PyUnstable_")
"""Python's own functions in C that give them, by `ctypes.pythonapi`."""
_HERE = Path(__file__)
FOLDERS = {folder for one in (Path(os.__file__).parent, _HERE.parents[2], _HERE.parents[3] / "kernels") for folder in (one, one.resolve())}
ADVICE = "trace outside softbench, and install a library that asks for it without -e"
LIBRARIES = ("<frozen", *(f"{folder}{os.sep}" for folder in FOLDERS))
PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
"""How files of Python's library and softbench begin, and what the paths of installed packages contain."""


class ForbiddenError(RuntimeError):
    """A plugin asked for frames or objects of its caller."""


def close() -> None:
    """Close these ways for the rest of this process's life."""
    frame_of, asking = sys._getframe, [False]

    def hook(event: str, given: tuple[object, ...]) -> None:
        if event in OBJECTS:
            both, what = True, f"{event}()"
        elif event in FRAMES:
            both, what = False, f"{event}()"
        elif event == "object.__getattr__" and given[1] in ATTRIBUTES:
            both, what = False, f"the attribute {given[1]}"
        elif event == "ctypes.dlsym" and str(given[1]).startswith(SYMBOLS):
            both, what = True, f"ctypes.pythonapi.{given[1]}"
        else:
            return
        if asking[0]:
            return
        asking[0] = True
        try:
            caller = frame_of(1)
        except ValueError:  # a thread that C started
            return
        finally:
            asking[0] = False
        while event == "ctypes.dlsym" and caller.f_back and caller.f_globals.get("__name__") == "ctypes":
            caller = caller.f_back
        before = caller.f_back
        if before is not None and (before.f_globals.get("__name__"), before.f_code.co_name) == MAKER:
            caller, before = before, before.f_back
            both = True
        if _own(caller) or ((both or caller.f_code.co_name in GIVING) and _own(before)):
            raise ForbiddenError(f"{what} shows what measures and checks a plugin, and is closed to plugins; {ADVICE}")

    sys.addaudithook(hook)
    _signal.signal = _without_frames(_signal.signal)


def _without_frames(real: Callable[..., object]) -> Callable[..., object]:
    """`signal.signal` whose handlers get no frame: it is that of what a signal interrupts, which may be the caller of a plugin."""

    def set_handler(number: int, handler: object) -> object:
        plain = not callable(handler) or (isinstance(code := getattr(handler, "__code__", None), CodeType) and of_library(code))
        return real(number, handler if plain else lambda number, frame: handler(number, None))  # type: ignore[operator]

    return set_handler


def of_library(code: CodeType) -> bool:
    """True if code belongs to Python's library, an installed package or softbench."""
    return code.co_filename.startswith(LIBRARIES) or any(part in code.co_filename for part in PACKAGES)


def _own(frame: FrameType | None) -> bool:
    """True if the frame's code belongs to no library."""
    return frame is not None and not of_library(frame.f_code)
