"""The launch plans of the heuristics, and the plan as Python and C++ declare it."""

import re
import subprocess
from pathlib import Path

import pytest
from nvcc import needs_nvcc
from softbench.kernels.cuda import build
from softbench.kernels.cuda.launch_plan import TIERS, Plan

HEADER = build.SOURCE.with_name("launch_plan.cuh").read_text()


@needs_nvcc
@pytest.mark.slow
def test_every_heuristic_plan_fits_on_every_kind_of_device(tmp_path):
    """`launch_plans.cu` runs the heuristics on the host, with devices that are only numbers."""
    program = tmp_path / "plans"
    command = [build.nvcc(), "-std=c++17", "-O1", "-arch=sm_90a", "-I", str(build.SOURCE.parent), "-o", str(program)]
    made = subprocess.run([*command, str(Path(__file__).with_name("launch_plans.cu"))], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.split()[0]) > 1_000_000


def test_python_and_cpp_declare_the_same_plan():
    (body,) = re.findall(r"struct SoftbenchPlan \{(.*?)\n\};", HEADER, re.DOTALL)
    assert [name for name, _ in Plan._fields_] == re.findall(r"^ +int (\w+);", body, re.MULTILINE)


def test_python_and_cpp_number_the_tiers_alike():
    (body,) = re.findall(r"enum Tier \{ AUTO = -1, (.*?) \};", HEADER)
    names = [name.lower().removeprefix("one_") for name in body.split(", ")]
    assert names == list(TIERS)
