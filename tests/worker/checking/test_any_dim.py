"""Rows along any dimension of an N-D tensor: the checks see what they see of an (M, N) tensor."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from softbench.backends import copy, naive, torch_eager
from softbench.core.case import Case, Direction, Shape, shape_of
from softbench.core.messages import Built, Skip
from softbench.core.outcome import Grade
from softbench.ops.registry import operation
from softbench.ops.softmax import NUMERICS
from softbench.plugins.traits import measured_case, unsupported
from softbench.worker.callables import prepared
from softbench.worker.checking import any_dim, row_sample
from softbench.worker.checking.check_case import CheckCaseRunner
from softbench.worker.checking.pre_check import PreCheck, verify_outputs
from softbench.worker.server import Server
from softbench.worker.timing.rotating_inputs import RotatingInputs

CPU = torch.device("cpu")
DIMS = range(4)


def case_of(dim, sizes=(3, 5, 4, 33), direction=Direction.FORWARD, op="softmax"):
    shape = Shape(sizes, dim)
    return Case(shape.rows, shape.columns, "fp32", direction, "cpu", op, str(shape))


def check(backend, case, call=None):
    """The verdict before timing."""
    return PreCheck(case, call or prepared(backend, case), any_dim.make(case, 0, CPU), backend, None).run(0)


def timed(backend, case, call=None, calls=20):
    """The verdict on two batches."""
    made = RotatingInputs(case, any_dim.make(case, 0, CPU), call or prepared(backend, case), overwrites=False)
    made.widen()
    worst = []
    for _ in range(2):
        body = made.renew()
        made.stir()
        for _ in range(calls):
            body()
        made.collect()
        worst.append(made.verify(partial(verify_outputs, backend)))
    assert made.probes.turns  # some rows changed within the batch
    return max(worst, key=lambda found: (found.grade is Grade.WRONG, *found.rank))


@pytest.mark.parametrize("dim", DIMS)
def test_rows_are_those_of_the_moved_tensor(dim):
    tensor = torch.randn(3, 5, 4, 6)
    plain, rows, version = tensor.movedim(dim, -1).reshape(-1, tensor.shape[dim]).clone(), any_dim.Rows(tensor, dim), tensor._version
    numbers = torch.tensor([7, 0, 11])
    for key in (slice(None), slice(2, 9), slice(4, 5), numbers, 5, (numbers, slice(1, 3))):
        torch.testing.assert_close(rows[key], plain[key], rtol=0, atol=0)
    rows[numbers] = rows[numbers.roll(1)]
    rows[3].fill_(9)
    plain[numbers] = plain[numbers.roll(1)]
    plain[3] = 9
    torch.testing.assert_close(rows[:], plain, rtol=0, atol=0)
    assert tensor._version == version


@pytest.mark.parametrize("backend", [torch_eager.backend, naive.backend], ids=lambda backend: backend.name)
def test_torch_and_naive_pass_over_every_dimension(backend):
    for dim in DIMS:
        for direction in operation("softmax").directions:
            op = ("softmax", "log_softmax")[(dim + (backend is naive.backend)) % 2]
            case = case_of(dim, direction=direction, op=op)
            found = check(backend, case)
            assert found.grade is Grade.PASS, (case.key, found)


@pytest.mark.parametrize("dim", DIMS)
def test_timed_calls_pass_over_every_dimension(dim):
    for direction in operation("softmax").directions:
        found = timed(torch_eager.backend, case_of(dim, direction=direction))
        assert found.grade is Grade.PASS, (direction, found)


def test_a_shape_has_the_rows_and_results_of_its_matrix():
    for direction in (Direction.FORWARD, Direction.BACKWARD):
        matrix = Case(60, 33, "fp32", direction, "cpu")
        given = NUMERICS.make(matrix, 3, CPU)
        expected = torch_eager.backend.prepare(matrix)(*given)
        for sizes, dim in (((3, 5, 4, 33), 3), ((33, 3, 5, 4), 0), ((3, 33, 5, 4), 1), ((60, 33), 1), ((33, 60), 0)):
            case = case_of(dim, sizes, direction)
            tensors = any_dim.make(case, 3, CPU)
            assert all(tensor.shape == sizes and tensor.is_contiguous() for tensor in tensors)
            for rows, plain in zip(any_dim.rows_of(case, tensors, slice(None)), given, strict=True):
                torch.testing.assert_close(rows, plain, rtol=0, atol=0)
            (out,) = any_dim.rows_of_outputs(case, (prepared(torch_eager.backend, case)(*tensors),), slice(None))
            torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("dim", DIMS)
def test_another_dimension_is_wrong(dim):
    case = case_of(dim, (4, 5, 4, 4))
    for other in set(DIMS) - {dim}:
        call = partial(torch.softmax, dim=other)
        assert check(None, case, call).grade is Grade.WRONG
    assert timed(None, case, call).grade is Grade.WRONG


def test_an_output_must_have_the_shape():
    found = check(None, case_of(1, (3, 33, 4)), lambda x: torch.softmax(x, 1).reshape(-1, 33))
    assert (found.grade, found.detail) == (Grade.WRONG, "returned shape (12, 33), not (3, 33, 4)")


def test_one_wrong_row_and_stale_results_are_found():
    case, kept = case_of(1, (64, 9, 8)), {}

    def wrong_row(x):
        y = torch.softmax(x, 1)
        y[40, :, 5] = y[40, :, 4]
        return y

    def stale(x):
        return kept.setdefault(x.data_ptr(), torch.softmax(x, 1)).clone()

    assert check(None, case, wrong_row).grade is Grade.WRONG
    assert timed(None, case, stale).grade is Grade.WRONG


def test_a_sample_of_rows_is_compared_where_there_are_many(monkeypatch):
    monkeypatch.setattr(row_sample, "WHOLE_ELEMENTS", {"cpu": 2**9})
    case = case_of(1, (40, 16, 50))
    assert row_sample.rows_to_compare(case, 0) is not None
    assert check(None, case, lambda x: torch.softmax(x, 1)).grade is Grade.PASS

    def few_rows(x):
        y = torch.softmax(x, 1)
        y[17, 3, 31] += 0.1
        return y

    assert check(None, case, few_rows).grade is Grade.WRONG  # float32 finds the row


def test_few_rows_face_every_structured_kind():
    case = case_of(1, (1, 999, 2))
    assert check(None, case, lambda x: torch.softmax(x, 1)).grade is Grade.PASS
    assert check(None, case, lambda x: torch.softmax(x.nan_to_num(neginf=-1e4), 1)).grade is Grade.WRONG


def test_the_yardstick_moves_the_bytes_as_rows():
    case = case_of(1)
    assert measured_case(copy.backend, case) == Case(3 * 4 * 33, 5, "fp32", Direction.FORWARD, "cpu")
    assert unsupported(copy.backend, case) == ""
    assert measured_case(torch_eager.backend, case) is case


def test_fewer_rows_keep_the_dimensions():
    case = Case(8 * 1024 * 1024, 16, "fp32", Direction.FORWARD, shape="8x16x1024x1024@dim1").with_rows(32)
    assert (case.M, case.N, case.shape) == (32, 16, "1x16x1x32@dim1")
    assert shape_of("4x5x7").with_rows(11) == Shape((2, 5, 7), 2)


def server(backend):
    made = Server()
    made.backend = backend
    return made


def test_a_backend_without_over_dim_is_skipped():
    matrix_only = SimpleNamespace(name="m", supports=lambda case: None, prepare=lambda case: torch.softmax)
    assert server(matrix_only).build(case_of(1), 0) == Skip("it takes (M, N) tensors only, because it has no over_dim")
    assert isinstance(server(torch_eager.backend).build(case_of(1), 0), Built)


def test_both_needs_a_forward_with_a_gradient():
    rough = SimpleNamespace(name="r", supports=lambda case: None, over_dim=lambda direction: lambda x, dim: torch.softmax(x.detach(), dim))
    both = case_of(1, direction=Direction.BOTH)
    assert server(rough).build(both, 0) == Skip("the forward of its over_dim has no gradient")
    assert isinstance(server(rough).build(case_of(1), 0), Built)


def test_over_dim_must_give_a_callable():
    with pytest.raises(TypeError, match=r"over_dim\(\) returned str, not a callable"):
        prepared(SimpleNamespace(over_dim=lambda direction: "softmax"), case_of(1))


class Writes:
    """Makes its case one without a scale."""

    name, operations = "writes", ("softmax(scale)",)

    def supports(self, case):
        object.__setattr__(case, "op", "softmax")

    def prepare(self, case):
        self.supports(case)
        return lambda x: torch.softmax(x, -1)


def test_a_backend_gets_a_copy_of_its_case():
    case = Case(64, 33, "fp32", Direction.FORWARD, "cpu", "softmax(scale=0.7)")
    assert unsupported(Writes(), case) == ""
    assert check(Writes(), case).grade is Grade.WRONG
    assert case.op == "softmax(scale=0.7)"
    assert CheckCaseRunner(Writes(), "cpu", operation=case.op).run("twice the same", Direction.FORWARD, "fp32", 0).grade is Grade.WRONG
