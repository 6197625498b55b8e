"""TorchScript and torch.fx of the naive function."""

import warnings

import pytest
from compiling import case, grade

from softbench.backends import torchscript_fx
from softbench.backends.calls import EMPTY
from softbench.core.outcome import Grade
from softbench.ops.registry import operation


@pytest.mark.parametrize("op", torchscript_fx.PAIRS)
@pytest.mark.parametrize("direction", operation("softmax").directions)
@pytest.mark.parametrize("backend", [torchscript_fx.trace, torchscript_fx.script, torchscript_fx.fx], ids=lambda backend: backend.name)
def test_results_pass_without_deprecation_warnings(backend, direction, op):
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        assert backend.available() is None
        assert grade(backend, case(direction=direction, op=op)) == (Grade.PASS, "")
    assert backend.extra
    assert backend.supports(case(0)) == EMPTY
