"""Launches through ctypes, and the plans that they take."""

import ctypes
import json
import re
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from simulated import needs_nvcc
from softbench.kernels.cuda import build, launch
from softbench.kernels.cuda.launch import TIERS, Plan
from softbench.kernels.plans import table

STREAM = 7


class Library:
    """Takes the place of the built library. `needs`: the bytes of workspace that a launch asks for."""

    def __init__(self, needs=0, code=0):
        self.needs, self.code, self.calls = needs, code, []

    def softbench_forward(self, *arguments):
        self.calls.append(arguments)
        workspace_bytes = arguments[-3]
        return -self.needs if workspace_bytes < self.needs else self.code

    softbench_backward = softbench_forward

    def softbench_error(self, code):
        return f"error {code}".encode()


@pytest.fixture
def launch_with(monkeypatch):
    """Launches of (3, 5) tensors by a library, on a CPU."""
    zeros = []
    monkeypatch.setattr(launch, "_workspaces", {})
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: None, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: STREAM, raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: launch_with.capturing)
    monkeypatch.setattr(launch, "persistent_zeros", lambda index, size, dtype: zeros.append(size) or torch.zeros(size, dtype=dtype))
    plain_zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *size, dtype, **_: plain_zeros(*size, dtype=dtype))

    def launch_with(library, plan=None):
        monkeypatch.setattr(launch, "_library", lambda function, index: library)
        x = torch.ones(3, 5)
        launch.launch_forward(x, torch.empty_like(x), plan=plan)
        return zeros

    launch_with.capturing = False
    return launch_with


def test_arguments_are_pointers_strides_shape_and_dtypes(monkeypatch, launch_with):
    library = Library()
    plan = Plan(-1)
    launch_with(library, plan)
    ((_, _, *numbers, workspace, size, stream, by_reference),) = library.calls
    assert numbers == [5, 5, 3, 5, 0, 0]
    assert (workspace, size, stream) == (None, 0, STREAM)
    assert by_reference == ctypes.addressof(plan)


def test_a_missing_workspace_is_allocated_once_for_a_stream(launch_with):
    library = Library(needs=100)
    launch_with(library)
    assert launch_with(library) == [launch._MIN_WORKSPACE_BYTES]
    assert [call[-3] for call in library.calls] == [0, launch._MIN_WORKSPACE_BYTES, launch._MIN_WORKSPACE_BYTES]


def test_a_larger_workspace_replaces_a_small_one(launch_with):
    launch_with(Library(needs=100))
    assert launch_with(Library(needs=1 << 21)) == [launch._MIN_WORKSPACE_BYTES, 1 << 21]


def test_a_captured_launch_gets_its_own_workspace(launch_with):
    library = Library(needs=100)
    launch_with(library)
    launch_with.capturing = True
    assert launch_with(library) == [launch._MIN_WORKSPACE_BYTES]  # no further persistent one
    assert [call[-3] for call in library.calls[2:]] == [0, 100]


def test_a_failed_launch_names_function_shape_and_cuda_error(launch_with):
    with pytest.raises(RuntimeError, match=r"softbench_forward on \(3, 5\): error 1"):
        launch_with(Library(code=1))


def test_threads_that_launch_first_hand_over_the_plans_once(monkeypatch):
    handed = []
    monkeypatch.setattr(launch, "_libraries", {"softmax": {}})
    monkeypatch.setattr(build, "load", lambda *_: SimpleNamespace(softbench_plans=lambda *_: (time.sleep(0.02), handed.append(1))))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a card")
    monkeypatch.setattr(launch.extension, "launchers", lambda *_: None)
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(launch._library, ["softmax"] * 2, [0] * 2)
    assert one is other and len(handed) == 1


@needs_nvcc
@pytest.mark.slow
def test_each_library_has_plans_of_its_own(tmp_path):
    """Else one that is loaded later would change those of another while a thread launches by them."""
    source, libraries = tmp_path / "cells.cu", [tmp_path / "one.so", tmp_path / "other.so"]
    source.write_text(
        '#include "planner.cuh"\nextern "C" void take(int count) { softbench::cells(0).resize(count); }\n'
        'extern "C" int taken() { return int(softbench::cells(0).size()); }\n'
    )
    command = [
        build.nvcc(),
        "-std=c++17",
        "-arch=sm_90a",
        *build.SHARED,
        "-I",
        str(build.SOURCE.parent),
        "-o",
        str(libraries[0]),
        str(source),
    ]
    subprocess.run(command, check=True)
    shutil.copy(*libraries)
    one, other = (ctypes.CDLL(str(library)) for library in libraries)
    one.take(3)
    assert (one.taken(), other.taken()) == (3, 0)


HEADER = build.SOURCE.with_name("launch_plan.cuh").read_text()


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize(("source", "least"), [("launch_plans.cu", 1_000_000), ("invariant_plans.cu", 100_000)])
def test_every_plan_fits_on_every_kind_of_device(tmp_path, source, least):
    """The sources choose plans on the host by each shipped table, with devices that are only numbers."""
    program = tmp_path / "plans"
    command = [build.nvcc(), "-std=c++17", "-O1", "-arch=sm_90a", "-I", str(build.SOURCE.parent), "-o", str(program)]
    made = subprocess.run([*command, str(Path(__file__).with_name(source))], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    cells = tmp_path / "cells"
    for card in (json.loads(path.read_text())["card"] for path in table._files()):
        cells.write_text(" ".join(map(str, launch.planned_cells(card, (9, 0)))))
        done = subprocess.run([str(program), str(cells)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        assert int(done.stdout.split()[0]) > least


def test_python_and_cpp_declare_the_same_plan():
    (body,) = re.findall(r"struct SoftbenchPlan \{(.*?)\n\};", HEADER, re.DOTALL)
    assert [name for name, _ in Plan._fields_] == re.findall(r"^ +int (\w+);", body, re.MULTILINE)


def test_python_and_cpp_number_the_tiers_alike():
    (body,) = re.findall(r"enum Tier \{ AUTO = -1, (.*?) \};", HEADER)
    names = [name.lower().removeprefix("one_") for name in body.split(", ")]
    assert names == list(TIERS)
