"""A plugin finds neither frames nor objects of its caller; what libraries do for it goes on."""

import subprocess
import sys

import pytest

PLUGIN = """
import collections, ctypes, gc, inspect, logging, signal, sys, traceback

from softbench.worker.guarding import audit

audit.close()


def raised():
    try:
        raise ValueError
    except ValueError as error:
        return error


def handled(seen=[]):
    signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(frame))
    signal.raise_signal(signal.SIGUSR1)
    return seen


def generator():
    yield made.gi_frame


made = generator()
print({})
"""


def printed(folder, expression):
    (folder / "plugin.py").write_text(PLUGIN.format(expression))
    return subprocess.run([sys.executable, folder / "plugin.py"], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "expression",
    [
        *("sys._getframe()", "inspect.currentframe()", "inspect.stack()", "logging.currentframe()", "next(traceback.walk_stack(None))"),
        *("raised().__traceback__.tb_frame", "next(made)", "ctypes.pythonapi.PyEval_GetFrame", "sys._current_frames()"),
        *("gc.get_objects()", "gc.get_referrers(gc)", "sys.settrace(print)", "sys.setprofile(print)"),
    ],
)
def test_the_ways_to_its_caller_are_closed(tmp_path, expression):
    assert "closed to plugins" in printed(tmp_path, expression).stderr


def test_handlers_of_signals_get_no_frame(tmp_path):
    assert printed(tmp_path, "handled()").stdout == "[None]\n"


def test_libraries_may_look_for_the_line_of_their_caller(tmp_path):
    done = printed(
        tmp_path,
        "logging.warning('told'), collections.namedtuple('Pair', 'x y'), inspect.signature(raised), gc.collect(), "
        "''.join(traceback.format_exception(raised()))",
    )
    assert done.returncode == 0, done.stderr
    assert "told" in done.stderr


MADE_FRAMES = """
import sys, types

def _create_frame(filename):
    code = compile("_getframe()", filename, "eval")
    return eval(code, {"_getframe": sys._getframe})

def append_traceback(error):
    return error.with_traceback(types.TracebackType(None, _create_frame("<unknown>"), 0, 1))
"""
"""As `tvm_ffi.error`, by which errors in C++ get a traceback."""


@pytest.mark.parametrize(
    ("call", "told"),
    [("append_traceback(ValueError('no header'))", "no header"), ("_create_frame('<unknown>')", "closed to plugins")],
)
def test_an_error_in_cpp_keeps_its_text(tmp_path, call, told):
    folder = tmp_path / "site-packages" / "tvm_ffi"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "error.py").write_text(MADE_FRAMES)
    done = printed(tmp_path, f"sys.path.append({str(folder.parent)!r}) or __import__('tvm_ffi.error').error.{call}")
    assert told in done.stdout + done.stderr
