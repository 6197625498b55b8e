"""The loss of a product of hidden states and a weight: right and wrong ways to compute it in chunks, and its operations."""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from softbench.backends import copy, naive, torch_eager
from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops import linear_cross_entropy
from softbench.ops.registry import numerics, operation
from softbench.plan import plan
from softbench.worker.checking import output_checks
from softbench.worker.checking.check_case import CheckCaseRunner
from softbench.worker.checking.pre_check import PreCheck

CPU = torch.device("cpu")
CHUNK = 24
SET = {"label_smoothing": 0.1, "z_loss": 0.01, "softcap": 6.0}
OP = f"linear_cross_entropy(hidden=16,{','.join(f'{name}={value:g}' for name, value in SET.items())})"


def case_of(direction=Direction.FUSED, dtype="fp32", op=OP):
    return Case(64, 96, dtype, direction, "cpu", op)


def graded(case, call, device=CPU):
    return PreCheck(case, call, numerics(case.op).make(case, 0, device), object(), None).run(1)


def in_chunks(x, w, target, wrong=""):
    """The loss and its gradients by chunks of rows."""
    e, cap = SET["label_smoothing"], SET["softcap"]
    kept = target != -100
    count = len(x) if wrong == "divided by all rows" else kept.sum()
    if wrong == "ignored rows count":
        target, kept = target.clamp(min=0), torch.ones_like(kept)
    loss, dx, dw = torch.zeros(()), torch.zeros_like(x), torch.zeros_like(w)
    for start in range(0, len(x), CHUNK):
        if wrong == "a chunk is lost" and start == CHUNK:
            continue
        rows, t, there = x[start : start + CHUNK].float(), target[start : start + CHUNK].clamp(min=0), kept[start : start + CHUNK]
        z = cap * torch.tanh(rows @ w.float().T / cap)
        lse = z.logsumexp(1)
        mean = 0 if wrong == "no mean of smoothing" else e * (lse - z.mean(1))
        of_rows = (1 - e) * (lse - z.gather(1, t[:, None])[:, 0]) + mean + SET["z_loss"] * lse.square()
        loss += torch.where(there, of_rows, 0).sum() / count
        factor = 1 if wrong == "no z-loss in the gradient" else 1 + 2 * SET["z_loss"] * lse[:, None]
        g = torch.exp(z - lse[:, None]) * factor - (0 if wrong == "no share of smoothing" else e / z.shape[1])
        g.scatter_add_(1, t[:, None], torch.full((len(t), 1), e - 1))
        g *= 1 if wrong == "no slope of the softcap" else 1 - (z / cap).square()
        g = torch.where(there[:, None], g, 0) / count
        dx[start : start + CHUNK] = (g @ w.float()).to(x.dtype)
        added = (g.T @ rows).to(w.dtype)
        dw = added if wrong == "dw of the last chunk" else dw + added
    return loss, dx, dw


WRONG = (
    *("ignored rows count", "divided by all rows", "no mean of smoothing", "no share of smoothing", "no z-loss in the gradient"),
    *("no slope of the softcap", "dw of the last chunk", "a chunk is lost"),
)


@pytest.mark.parametrize("wrong", ["", *WRONG])
def test_right_and_wrong_chunks_are_told_apart(wrong):
    found = graded(case_of(), lambda *given: in_chunks(*given, wrong))
    assert found.grade is (Grade.WRONG if wrong else Grade.PASS), found


@pytest.mark.parametrize("wrong", ["", "ignored rows count", "no share of smoothing", "dw of the last chunk", "a chunk is lost"])
def test_wrong_chunks_are_found_in_16_bits(wrong):
    grade = graded(case_of(dtype="bf16"), lambda *given: in_chunks(*given, wrong)).grade
    assert (grade is Grade.WRONG) == bool(wrong)


@pytest.mark.parametrize("op", [OP, pytest.param("linear_cross_entropy(hidden=16)", marks=pytest.mark.slow)])
def test_the_backends_are_right_in_both_directions(op):
    for direction in operation(op).directions:
        case = case_of(direction, "bf16", op)
        for backend in (naive.backend, torch_eager.backend):
            call = backend.prepare(case)
            call(*numerics(op).make(case, 5, CPU))  # the first one imports modules, which change filters of warnings
            assert graded(case, call).grade in {Grade.PASS, Grade.LOW_PRECISION}


def test_the_reference_is_that_of_torch():
    case = case_of(op="linear_cross_entropy(hidden=16,label_smoothing=0.1)")
    x, w, target = numerics(case.op).make(case, 0, CPU)
    leaves = [one.double().requires_grad_() for one in (x, w)]
    loss = torch.nn.functional.cross_entropy(leaves[0] @ leaves[1].T, target, label_smoothing=0.1)
    expected = loss.detach(), *torch.autograd.grad(loss, leaves)
    for found, exact in zip(numerics(case.op).reference(case, *(one.detach() for one in leaves), target), expected, strict=True):
        torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-9)


def test_three_products_count():
    found, case = operation(OP), case_of()
    assert found.flops(case) == 3 * found.flops(case_of(Direction.FORWARD)) == 6 * 64 * 16 * 96
    assert found.products_alone(case) == (64, 16, 96)
    assert operation("matmul").products_alone(Case(4, 4, "fp32", Direction.FORWARD, "cpu", "matmul")) is None
    assert found.bytes_moved(case) == 2 * 4 * 16 * (64 + 96) + 8 * 64 + 4


class Held(TorchDispatchMode):
    """Bytes of the tensors that are alive and were made in this context, and their peak."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.alive = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for storage in (one.untyped_storage() for one in tree_leaves(out) if isinstance(one, torch.Tensor)):
            key, size = storage._cdata, storage.nbytes()
            if key not in self.alive:
                self.alive[key] = weakref.ref(storage, lambda _, key=key, size=size: self.freed(key, size))
                self.now += size
                self.peak = max(self.peak, self.now)
        return out

    def freed(self, key, size):
        self.now -= size
        del self.alive[key]


def test_a_check_holds_no_more_memory_than_the_plan_of_a_run_expects(monkeypatch):
    monkeypatch.setattr(linear_cross_entropy, "FEWEST_ROWS", 8)
    case = Case(32, 1024, "bf16", Direction.FUSED, "cpu", "linear_cross_entropy(hidden=96)")
    given = numerics(case.op).make(case, 0, CPU)
    outputs = naive.backend.prepare(case)(*given)
    with Held() as held:
        assert numerics(case.op).check(case, given, outputs).grade is Grade.PASS
    doubles = 8 * case.N * 96
    assert 3 * doubles < held.peak < plan.WHOLE_TEMPORARIES * doubles


def test_copy_is_the_yardstick_where_the_reference_takes_long(monkeypatch):
    monkeypatch.setattr(output_checks, "LONG_REFERENCE", 0)
    case, backend = case_of(), copy.Copy()
    call, given = backend.prepare(case), numerics(case.op).make(case, 0, CPU)
    assert PreCheck(case, call, given, backend, None).run(1).grade is Grade.YARDSTICK


def test_gradients_of_the_call_before_are_found():
    class Stale(Loss):
        operations = ("linear_cross_entropy(hidden,ignore_index)",)
        kept = None

        def prepare(self, case):
            call = naive.backend.prepare(case)

            def stale(*given):
                loss, dx, dw = call(*given)
                self.kept = dw if self.kept is None or self.kept.shape != dw.shape else self.kept
                return loss, dx, self.kept.clone()

            return stale

    runner = CheckCaseRunner(Stale(True), "cpu", operation="linear_cross_entropy")
    grades = {name: runner.run(f"{name} 304x16x136", Direction.FUSED, "fp32", 0).grade for name in ("normal", "other values")}
    assert grades == {"normal": Grade.PASS, "other values": Grade.WRONG}


class Loss:
    """A backend of the loss alone, with or without the maximum of each row."""

    name, operations = "loss", ("linear_cross_entropy(hidden)",)

    def __init__(self, maximum):
        self.maximum = maximum

    def available(self):
        return None

    def supports(self, case):
        return None

    def prepare(self, case):
        return self.loss

    def loss(self, x, w, target):
        z = x.float() @ w.float().T
        lse = z.logsumexp(1) if self.maximum else z.exp().sum(1).log()
        kept = target != -100
        return torch.where(kept, lse - z.gather(1, target.clamp(min=0)[:, None])[:, 0], 0).sum() / kept.sum()


@pytest.mark.parametrize(("maximum", "grade"), [(True, Grade.PASS), (False, Grade.WRONG)])
def test_a_loss_without_the_maximum_is_wrong_where_rows_are_shifted(maximum, grade):
    runner = CheckCaseRunner(Loss(maximum), "cpu", operation="linear_cross_entropy")
    assert runner.run("shifted 64x33x257", Direction.FORWARD, "bf16", 0).grade is grade
