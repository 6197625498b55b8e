"""The byte model."""

import pytest

from softbench.core.case import Case, Direction
from softbench.ops.softmax import spec


def case(direction, dtype="bf16"):
    return Case(8, 1024, dtype, direction)


@pytest.mark.parametrize(("direction", "moved", "distinct"), [("forward", 2, 2), ("backward", 3, 3), ("both", 5, 4)])
def test_each_direction_has_its_moved_and_distinct_bytes(direction, moved, distinct):
    one = case(Direction(direction))
    assert spec.bytes_moved(one) == moved * one.tensor_bytes
    assert spec.distinct_bytes(one) == distinct * one.tensor_bytes


def test_bandwidth_is_decimal_gigabytes_a_second():
    assert spec.gbps(case(Direction.FORWARD), 1.0) == pytest.approx(2 * 8 * 1024 * 2 / 1000)
