"""The byte model."""

import pytest

from softbench.core.case import Case, Direction
from softbench.ops.registry import operation

OPERATION = operation("softmax")
TENSOR = 8 * 1024 * 2


def case(direction):
    return Case(8, 1024, "bf16", direction)


@pytest.mark.parametrize(("direction", "moved", "distinct"), [("forward", 2, 2), ("backward", 3, 3), ("both", 5, 4)])
def test_each_direction_has_its_moved_and_distinct_bytes(direction, moved, distinct):
    one = case(Direction(direction))
    assert OPERATION.bytes_moved(one) == moved * TENSOR
    assert OPERATION.distinct_bytes(one) == distinct * TENSOR
    assert OPERATION.largest_bytes(one) == TENSOR


def test_bandwidth_is_decimal_gigabytes_a_second():
    assert OPERATION.gbps(case(Direction.FORWARD), 1.0) == pytest.approx(2 * TENSOR / 1000)
