"""`softbench gate` of a package on a GPU: two virtual environments, a kernel in Triton, and what is told of each target."""

import json
import sys
import venv
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.alone, pytest.mark.timeout(400)]

TOY = """
import torch
import torch._dynamo  # as most packages of kernels do
import triton
import triton.language as tl

@triton.jit
def twice(x, y, size, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + places, 2 * tl.load(x + places, places < size), places < size)

def double(x):
    y = torch.empty_like(x)
    twice[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y

def more(x):
    return double(x) + ADDED
"""
TARGET = '[[target]]\nfunction = "toy:{}"\ninputs = "x[M,N]"\nM = 4096\nN = {}\ndtype = "bf16"\n'


def test_a_package_in_two_environments_is_compared(cli):
    for name, added in (("old", 0), ("new", 1)):
        venv.create(cli.folder / name, symlinks=True)
        package = cli.folder / name / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / "toy.py"
        package.write_text(f"{TOY}\nADDED = {added}\n")
    Path(cli.folder / "softbench.toml").write_text(TARGET.format("double", "[4096, 8192]") + TARGET.format("more", 4096))
    done = cli("gate", "--reference-env", "old", "--candidate-env", "new", "--processes", "5", "--json", "gate.json", timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    verdicts = json.loads((cli.folder / "gate.json").read_text())["verdicts"]
    states = {(one["op"], one["N"]): one["state"] for one in verdicts}
    assert states.pop(("more", 4096)) == "broken"
    assert states.keys() == {("double", 4096), ("double", 8192)} and {*states.values()} <= {"same", "ambiguous"}, done.stdout
