"""mypy lets functions of modules with kernels go without annotations. Only the kernels may."""

import ast
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[2] / "kernels"


def is_kernel(function: ast.FunctionDef) -> bool:
    return any("triton.jit" in ast.unparse(decorator) for decorator in function.decorator_list)


@pytest.mark.parametrize("path", sorted(KERNELS.rglob("*.py")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_host_functions_are_annotated(path):
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef) or is_kernel(function):
            continue
        given = function.args
        parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
        bare = [parameter.arg for parameter in parameters if parameter.annotation is None]
        assert set(bare) <= {"self", "cls"} and function.returns is not None, (function.name, bare)
