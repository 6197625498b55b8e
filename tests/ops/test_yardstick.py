"""What the yardstick moves in a pass, and the check that it did."""

import pytest
import torch
from passes import OPERATIONS, inputs

from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops import registry, yardstick
from softbench.ops.registry import operation
from softbench.ops.yardstick import Step, Sum, steps

FORWARD = Direction.FORWARD


@pytest.fixture(autouse=True)
def added(monkeypatch):
    monkeypatch.setattr(registry, "_added", {name: (op, "file.py") for name, op in OPERATIONS.items()})


def planned(name, dtype="bf16", direction=FORWARD):
    case = Case(8, 16, dtype, direction, "cpu", name)
    return steps(operation(name), case)


def test_softmax_copies_and_its_backward_adds():
    assert planned("softmax") == (Step((Sum(("x",), ("y",)),), ()),)
    assert planned("softmax", direction=Direction.BACKWARD) == (Step((Sum(("dy", "y"), ("dx",)),), ()),)
    assert planned("softmax(out_dtype=fp32)") == (Step((Sum(("x",), ("y",)),), ()),)
    assert planned("softmax(scale=row)") == (Step((Sum(("x",), ("y",)),), ("scale",)),)


def test_a_result_is_written_before_it_is_read():
    both = (Step((Sum(("x",), ("y",)),), ()), Step((Sum(("dy", "y"), ("dx",)),), ()))
    assert planned("softmax", direction=Direction.BOTH) == planned("log_softmax", direction=Direction.BOTH) == both
    assert planned("again") == (both[0], Step(both[1].sums, ("w",)))


def test_reads_without_a_result_of_their_axes_are_only_read():
    assert planned("loss") == (Step((Sum((), ("loss",)),), ("x", "target")),)
    assert planned("half") == (Step((Sum((), ("loss",)),), ("x",)),)
    assert planned("integers") == (Step((Sum(("a", "b"), ("c",)),), ("x",)),)
    assert planned("state") == (Step((Sum(("x",), ("y",)),), ("state",)),)
    assert planned("three") == (Step((Sum(("x", "z", "v"), ("y", "u")),), ()),)


@pytest.mark.parametrize("name", ["softmax", "softmax(scale=row)", "softmax(scale=row,out_dtype=fp32)", *OPERATIONS])
def test_steps_read_and_write_the_bytes_of_the_pass(name):
    for direction in operation(name).passes:
        op, case = operation(name), Case(64, 1000, "bf16", Direction(direction), "cpu", name)
        moved = 0
        for step in steps(op, case):
            moved += sum(yardstick.read_bytes(op, case, other) for other in step.others)
            moved += sum(op.tensors[moves].bytes(case) for one in step.sums for moves in (*one.sources, *one.results))
        assert moved == op.bytes_moved(case)


def right(name, given):
    """The results by the definition, without the functions under test."""
    if name == "loss":
        return (torch.zeros(len(given[0])),)
    if name == "again":
        return given[0].clone(), (given[1].float() + given[0].float()).bfloat16()
    if name == "integers":
        return (given[1] ^ given[2],)
    total = given[0].float() + given[1].float() + given[2]
    return total.bfloat16(), total


@pytest.mark.parametrize("name", ["loss", "again", "integers", "three"])
def test_a_yardstick_must_leave_every_bit(name):
    case = Case(8, 300, "bf16", FORWARD, "cpu", name)
    given = inputs(operation(name), case)
    good = right(name, given)
    assert yardstick.check(case, given, good).grade is Grade.YARDSTICK
    for place, out in enumerate(good):
        for index in (0, out.numel() - 1):
            wrong = [tensor.clone() for tensor in good]
            wrong[place].view(yardstick.INTEGERS[out.element_size()]).view(-1)[index] ^= 1
            assert yardstick.check(case, given, tuple(wrong)).grade is Grade.WRONG


def test_a_yardstick_may_leave_another_nan():
    case = Case(4, 8, "fp32", Direction.BACKWARD, "cpu")
    dy, y = torch.randn(4, 8), torch.full((4, 8), torch.nan)
    other = torch.full((4, 8), 0x7FC12345, dtype=torch.int32).view(torch.float32)
    assert yardstick.check(case, (dy, y), (other,)).grade is Grade.YARDSTICK
    assert yardstick.check(case, (dy, dy), (other,)).grade is Grade.WRONG
