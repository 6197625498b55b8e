"""What the tests of backends share: a small case, its result on the CPU, simulated packages, and Python processes."""

import ctypes
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import torch

from softbench.core.case import OPERATION, Case, Direction
from softbench.core.outcome import Grade
from softbench.ops.registry import numerics


def case(N=32, dtype="fp32", direction=Direction.FORWARD, M=8, device="cpu", op=OPERATION):
    return Case(M, N, dtype, direction, device, op)


def grade(backend, wanted: Case) -> tuple[Grade, str]:
    """Class and detail of the backend's output."""
    values = numerics(wanted.op)
    given = values.make(wanted, 0, torch.device("cpu"))
    out = backend.prepare(wanted)(*given)
    accuracy = values.check(wanted, given, out if isinstance(out, tuple) else (out,))
    return accuracy.grade, accuracy.detail


def assert_passes(backend, wanted: Case) -> None:
    """The backend's output on the CPU passes."""
    found, detail = grade(backend, wanted)
    assert found is Grade.PASS, detail


def install(monkeypatch, name, **contents):
    """A module of that name with these contents, and empty packages above it."""
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        module = ModuleType(".".join(parts[:i]))
        module.__spec__ = ModuleSpec(module.__name__, None)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(sys.modules[name]).update(contents)
    return sys.modules[name]


def python(code, **env):
    """Standard output of a Python process that runs the code."""
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows_at(pointer, M, N):
    """The float32 rows at an address."""
    numbers = (ctypes.c_float * (M * N)).from_address(int(getattr(pointer, "value", pointer)))
    return torch.frombuffer(numbers, dtype=torch.float32).view(M, N)
