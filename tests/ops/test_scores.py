"""Attention scores as rows: tensors that rows share, what causal queries see, bytes, and the checks of timed calls."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from softbench.backends import copy, torch_eager
from softbench.core.case import Case, Direction
from softbench.core.errors import UsageError
from softbench.core.outcome import Grade
from softbench.ops import registry, scores, user_file
from softbench.ops.declaration import from_json, to_json, validate
from softbench.ops.operation import SEEN, Operation, Pass, Preset, Share, TensorSpec
from softbench.ops.parameters import Parameter
from softbench.ops.registry import declared, operation
from softbench.ops.values import Values
from softbench.plan.sweep import Sweep, cases
from softbench.worker.checking import any_dim
from softbench.worker.checking.check_case import CheckCaseRunner
from softbench.worker.checking.pre_check import PreCheck, verify_outputs
from softbench.worker.timing.rotating_inputs import RotatingInputs

CPU = torch.device("cpu")
NAME = "masked_softmax"
F, B = Direction.FORWARD, Direction.BACKWARD


def case_of(text, direction=F, sizes=(2, 3, 4, 5), dtype="bf16"):
    op = operation(f"{NAME}({text})" if text else NAME).text
    return Case(sizes[0] * sizes[1] * sizes[2], sizes[3], dtype, direction, "cpu", op, "x".join(map(str, sizes)))


@pytest.mark.parametrize(
    ("axes", "shape", "of_row"),
    [
        (("B", "S", "N"), (2, 1, 4, 5), lambda b, h, s: (b, 0, s)),
        (("H", "S", "N"), (1, 3, 4, 5), lambda b, h, s: (0, h, s)),
        (("S", "N"), (1, 1, 4, 5), lambda b, h, s: (0, 0, s)),
        (("B", "N"), (2, 1, 1, 5), lambda b, h, s: (b, 0, 0)),
        (("B", "H", "S", "N"), (2, 3, 4, 5), lambda b, h, s: (b, h, s)),
        (("H",), (3,), lambda b, h, s: (h,)),
        (("B", "H", "S"), (2, 3, 4), lambda b, h, s: (b, h, s)),
    ],
)
def test_rows_have_their_part_of_a_shared_tensor(axes, shape, of_row):
    case, spec = case_of(""), TensorSpec(axes, "fp32")
    assert spec.shape(case) == shape
    tensor = torch.randn(shape)
    found = scores.Shared(case, spec, tensor)[slice(None)]
    expected = torch.stack([tensor[of_row(row // 12, row // 4 % 3, row % 4)] for row in range(24)])
    assert torch.equal(found, expected)
    assert torch.equal(scores.laid_out(case, spec, found), tensor)
    numbers = torch.tensor([7, 0, 23])
    assert torch.equal(scores.Shared(case, spec, tensor)[numbers], expected[numbers])
    assert spec.shape(case.of_rows(9)) == ((9, 5) if "N" in axes else (9,))


@pytest.mark.parametrize(("S", "N", "seen"), [(3, 3, [1, 2, 3]), (2, 5, [4, 5]), (5, 2, [1, 2, 2, 2, 2]), (1, 4, [4])])
def test_causal_queries_see_no_later_key(S, N, seen):
    case = case_of("causal=true", sizes=(2, 2, S, N))
    assert scores.seen(case, slice(None), CPU).tolist() == seen * 4
    op = operation(case.op)
    assert op.bytes_read(case, "x") == 2 * 4 * sum(seen)
    assert op.bytes_moved(case) == 2 * 4 * (sum(seen) + S * N)
    y = torch.ones(2, 2, S, N)
    scores.clear_unseen(replace(case, direction=B), (y.clone(), y))
    assert y.sum(dim=-1).long().view(-1).tolist() == seen * 4


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", 0),
        ("mask=additive", 2 * 2 * 4 * 5),
        ("mask=boolean,mask_axes=HSN", 3 * 4 * 5),
        ("mask=boolean,mask_axes=BN", 2 * 5),
        ("sink=true", 3 * 4),
    ],
)
def test_a_shared_tensor_is_read_once(text, read):
    case = case_of(text)
    assert operation(case.op).bytes_moved(case) == 2 * (2 * 24 * 5) + read


def test_a_mask_of_keys_is_read_whole_by_causal_queries():
    case = case_of("mask=boolean,mask_axes=BN,causal=true")
    assert operation(case.op).bytes_read(case, "mask") == 2 * 5
    half = case_of("mask=boolean,mask_axes=SN,causal=true", sizes=(2, 3, 4, 4))
    assert operation(half.op).bytes_read(half, "mask") == 10


def timed(backend, case):
    """The verdict on three batches of timed calls."""
    made = RotatingInputs(case, any_dim.make(case, 0, CPU), backend.prepare(case), overwrites=False)
    made.widen()
    worst = []
    for _ in range(3):
        body = made.renew()
        made.stir()
        for _ in range(20):
            body()
        made.collect()
        worst.append(made.verify(partial(verify_outputs, backend)))
    return max(worst, key=lambda found: (found.grade is Grade.WRONG, *found.rank))


@pytest.mark.parametrize("direction", [F, B])
@pytest.mark.parametrize("text", ["mask=boolean", "mask=additive,mask_axes=HSN,causal=true,sink=true", "causal=true"])
def test_timed_calls_of_scores_pass(text, direction):
    for sizes in ((2, 3, 40, 33), (1, 1, 5, 33)):
        case = case_of(text, direction, sizes, "fp32")
        assert timed(torch_eager.backend, case).grade is Grade.PASS


@pytest.mark.parametrize("direction", [F, B])
def test_the_yardstick_moves_the_bytes_of_scores(direction):
    for text in ("", "mask=additive,mask_axes=BHSN", "causal=true,sink=true,mask=boolean"):
        case, backend = case_of(text, direction, (2, 3, 40, 33)), copy.Copy()
        found = PreCheck(case, backend.prepare(case), any_dim.make(case, 0, CPU), backend, None).run(3)
        assert found.grade is Grade.YARDSTICK, (text, found)
        one_query = case_of(text, direction, (2, 3, 1, 33))  # a single query sees all keys, and its rows are a matrix
        found = PreCheck(one_query, backend.prepare(one_query), any_dim.make(one_query, 0, CPU), backend, None).run(3)
        assert found.grade is Grade.YARDSTICK, (text, found)


def test_a_sweep_gives_scores_four_sizes():
    plain = cases([Sweep((64,), (128,), op=(NAME,))], "cpu")
    assert [(case.M, case.N, case.shape) for case in plain] == [(64, 128, "1x1x64x128")]
    of_shape = cases([Sweep(shape=("2x3x4x5", "gpt2"), op=(NAME,))], "cpu")
    assert [case.shape for case in of_shape] == ["2x3x4x5", "8x12x1024x1024", "4x25x1024x1024"]
    for shape in ("8x16x32", "2x3x4x5@dim1"):
        with pytest.raises(UsageError, match=r"takes shapes of B, H, S, N with rows along N"):
            cases([Sweep(shape=(shape,), op=(NAME,))], "cpu")


def test_the_declaration_survives_json_and_is_checked():
    given = declared(NAME)
    assert from_json(to_json(given)) == replace(given, tensors=dict(given.tensors), passes=dict(given.passes), presets=dict(given.presets))
    tensors = {**given.tensors, "sink": TensorSpec(("K",), "fp32")}
    for changed, message in (
        ({"scores": False}, "tensor bias has axes"),
        ({"tensors": tensors}, "tensor sink has axes"),
        ({"causal": ("sank", True)}, "causal: when names sank"),
        ({"causal": ()}, "the share of x is seen"),
        ({"presets": {"a": Preset(("8x16",))}}, "preset a: 8x16 is not"),
    ):
        with pytest.raises(ValueError, match=message):
            validate(replace(given, **changed))


BIASED = Operation(
    name="biased",
    tensors={"x": TensorSpec(("M", "N")), "bias": TensorSpec(("H", "S", "N")), "y": TensorSpec(("M", "N"))},
    passes={"forward": Pass(("x", "bias"), ("y",), ("x", "bias"), (Share("x", SEEN, ("causal", True)),))},
    parameters=(Parameter("causal", "bool", False),),
    scores=True,
    causal=("causal", True),
)


class Biased(Values):
    """x + bias, and 0 beyond what a causal query sees."""

    def draw(self, case, random):
        rows = random.normal(case.M, case.N), random.normal(case.M, case.N)
        return (*rows, torch.randint(1, case.N + 1, (case.M,), generator=random.generator)) if case.parameters else rows

    def reference(self, case, x, bias, *seen):
        y = x + bias
        return (torch.where(torch.arange(case.N) < seen[0][:, None], y, 0.0) if seen else y,)

    def bound(self, case, x, bias, *seen):
        return (2.0**-7 * (x.abs() + bias.abs()) + 2.0**-24,)

    def structured_rows(self, case):
        return {"constant": lambda x, *others: x.fill_(3), "large": lambda x, *others: x.mul_(100)}


def biased(ahead, case):
    """The call of a backend that sees so many keys ahead."""
    if not case.parameters:
        return lambda x, bias: x + bias
    return lambda x, bias: (x + bias).tril(max(0, x.shape[-1] - x.shape[-2]) + ahead)


def test_a_user_may_declare_an_operation_of_scores():
    validate(BIASED)
    registry.add(BIASED, "biased.py", Biased())
    for op in ("biased", "biased(causal=true)"):
        user_file._try(operation(op), registry.numerics(op), Case(32, 48, "bf16", F, "cpu", op))
        case = Case(24, 5, "bf16", F, "cpu", op, "2x3x4x5")
        right = biased(0, case)
        for call, grade in ((right, Grade.PASS), (lambda x, bias: x + bias.flip(1), Grade.WRONG), (lambda x, bias: x, Grade.WRONG)):
            assert PreCheck(case, call, any_dim.make(case, 0, CPU), object(), None).run(3).grade is grade
        backend = SimpleNamespace(name="user", operations=("biased(causal)",), supports=lambda case: None)
        for ahead in (0, 1):
            backend.prepare = partial(biased, ahead)
            found = CheckCaseRunner(backend, "cpu", operation=op).run("normal 64x781", F, "bf16", 0)
            assert found.grade is (Grade.WRONG if ahead and op != "biased" else Grade.PASS)
