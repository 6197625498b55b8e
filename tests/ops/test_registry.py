"""The operations that other packages reach."""

import ast
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


def test_other_packages_import_no_module_of_an_operation():
    for path in (ROOT / "softbench").rglob("*.py"):
        if path.is_relative_to(ROOT / "softbench" / "ops"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                assert not any(node.module.startswith(f"softbench.ops.{name}") for name in registry.NAMES), path
