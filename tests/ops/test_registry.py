"""The registry of operations."""

import subprocess
import sys
from pathlib import Path

import pytest

from softbench.core.case import OPERATION
from softbench.ops import registry

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", registry.NAMES)
def test_an_operation_has_its_numerics_under_its_name(name):
    assert registry.operation(name).name == name
    assert registry.numerics(name).check_cases(name)


def test_the_default_operation_exists():
    assert OPERATION in registry.NAMES


def test_an_unknown_operation_is_a_key_error():
    with pytest.raises(KeyError, match="layernorm"):
        registry.operation("layernorm")


def test_an_operation_needs_no_torch():
    code = "import sys; from softbench.ops.registry import operation; operation('softmax'); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
