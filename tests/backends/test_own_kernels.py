"""The backends of softbench's own kernels: how they call the functions of losses and scores, and the rows that they refuse."""

import sys
from types import ModuleType

import pytest
import torch
from masked_softmaxes import B, F, case_of

from softbench.backends import cuda, naive, own_kernels, softbench_library, torch_eager
from softbench.backends.triton import own
from softbench.core.case import Case, Direction
from softbench.ops.registry import operation

CHECK_CASES = """
from softbench.backends.triton import own
from softbench.worker.checking.check_case import CheckCaseRunner
from softbench.plugins.traits import operations
op = "masked_softmax(mask=boolean,causal=true,sink=true)"
assert any(one.startswith("masked_softmax(") for one in operations(own))
runner = CheckCaseRunner(own, "cpu", operation=op)
for name, direction in runner.items:
    if name not in {shapes} and not name.startswith(("shape", "structured")):
        found = runner.run(name, direction, "bf16", 0)
        assert isinstance(found, str) or found.grade.value == "pass", (name, direction, found)
    elif name in {shapes}:
        found = runner.run(name, direction, "fp32", 0)
        assert found.grade.value == "pass", (name, direction, found)
print("fine")
"""
SHAPES = ["shape 1x1x5x2", "shape 2x3x7x7", "structured 2x5x70x33", "shape 1x2x2x16384"]


@pytest.fixture
def backend(monkeypatch):
    """A backend whose losses are those of `naive`, with lse behind the results of logprob's forward."""

    class Own(own_kernels.Kernels):
        name, losses = "own", "losses_of_a_test"
        operations = own.operations

    def cross_entropy(direction):
        def call(*tensors, **options):
            given = ",".join(f"{name}={value}" for name, value in options.items())
            case = Case(*tensors[0].shape, "fp32", direction, "cpu", f"cross_entropy({given})")
            return naive.cross_entropy(case)(*tensors)

        return call

    def logprob_forward(x, target):
        return *naive.logprob(Case(*x.shape, "fp32", Direction.FORWARD, "cpu", "logprob"))(x, target), torch.logsumexp(x, 1)

    module = ModuleType("softbench.kernels.losses_of_a_test")
    calls = {f"cross_entropy_{direction.value}": cross_entropy(direction) for direction in operation("cross_entropy").directions}
    vars(module).update(calls | {"logprob_forward": logprob_forward})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return Own()


@pytest.mark.parametrize("op", ["cross_entropy", "cross_entropy(label_smoothing=0.1,z_loss=0.01)"])
def test_a_loss_gets_tensors_and_all_parameters(backend, op):
    torch.manual_seed(0)
    x, target = torch.randn(4, 9), torch.tensor([0, 8, -100, 3])
    for direction in (Direction.FORWARD, Direction.FUSED):
        case = Case(4, 9, "fp32", direction, "cpu", op)
        got, expected = backend.prepare(case)(x, target), naive.cross_entropy(case)(x, target)
        assert len(got) == 2 and all(torch.equal(*pair) for pair in zip(got, expected, strict=True))


def test_results_beyond_the_pass_are_left_out(backend):
    x, target = torch.randn(4, 9), torch.tensor([0, 8, 1, 3])
    assert len(backend.prepare(Case(4, 9, "fp32", Direction.FORWARD, "cpu", "logprob"))(x, target)) == 2


@pytest.mark.parametrize("op", ["softmax", "cross_entropy(reduction=mean)", "logprob", "masked_softmax(causal=true)"])
def test_the_library_and_torch_name_the_calls_of_their_users(op):
    torch.manual_seed(0)
    case = Case(4, 9, "fp32", Direction.FORWARD, "cpu", op, "1x2x2x9" if "masked" in op else "")
    given = [torch.randn(case.sizes), *([torch.tensor([0, 8, -100 if "cross" in op else 1, 3])] if op[0] in "cl" else [])]
    found = []
    for backend in (softbench_library.backend, torch_eager.backend):
        results = backend.user_call(case)(*given)
        found.append(results[0].squeeze() if isinstance(results, tuple) else results.squeeze())
    torch.testing.assert_close(*found)


def test_the_library_gives_gradients_by_autograd_only():
    x, target = torch.randn(4, 9), torch.tensor([0, 8, -100, 3])
    case = Case(4, 9, "fp32", Direction.FUSED, "cpu", "cross_entropy(z_loss=0.01)")
    found = [backend.prepare(case)(x, target) for backend in (softbench_library.backend, naive.backend)]
    torch.testing.assert_close(*found)
    assert "--direction both" in softbench_library.backend.supports(Case(4, 9, "fp32", Direction.BACKWARD, "cpu"))


@pytest.mark.slow
def test_check_cases_of_scores_pass_under_the_interpreter(run_interpreted):
    run_interpreted(CHECK_CASES.format(shapes=SHAPES))


@pytest.mark.parametrize(
    ("text", "direction", "reason"),
    [
        ("scale=2", F, None),
        ("mask=boolean", B, None),
        ("mask=boolean", F, "with mask N is at most 16384"),
        ("causal=true,sink=true", B, "with causal and sink N is at most 16384"),
    ],
)
def test_longer_rows_of_scores_are_refused_with_the_reason(text, direction, reason):
    assert own.supports(case_of(text, "bf16", direction, (1, 1, 2, 16384))) is None
    assert own.supports(case_of(text, "bf16", direction, (1, 1, 2, 16385))) == reason


def test_the_library_of_a_case_is_the_one_it_calls():
    ops = "softmax", "softmax(scale=2)", "log_softmax", "linear_cross_entropy(hidden=8)"
    found = [cuda._library(Case(2, 8, "bf16", F, "cpu", op)) for op in ops]
    assert found == ["softmax", "scaled_softmax", "log_softmax", "cross_entropy"]
