"""The registry of operations."""

import pytest

from softbench.ops import registry


@pytest.mark.parametrize("name", registry.NAMES)
def test_an_operation_has_its_numerics_under_its_name(name):
    assert registry.operation(name).name == name
    assert registry.numerics(name).check_cases(name)


def test_an_unknown_operation_is_a_key_error():
    with pytest.raises(KeyError, match="layernorm"):
        registry.operation("layernorm")
