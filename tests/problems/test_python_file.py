"""Problems in plain Python: right, wrong and cheating solutions, trees, dtypes, calls in place, and what is refused."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from problem_files import cases, judged, problem

from softbench.core.errors import UsageError
from softbench.ops import registry
from softbench.ops.declaration import from_json, to_json
from softbench.ops.error_terms import U
from softbench.problems import values
from softbench.problems.layout import unpack
from softbench.problems.load import layouts_of, load
from softbench.worker.checking import probes
from softbench.worker.checking.check_case import CheckCaseRunner

NORM = '''
"""Rows over their root mean square, and the mean of all."""

import torch

cases = [dict(M=8, N=64), dict(M=3, N=100)]


def inputs(M, N, eps=1e-3, dtype=torch.float32):
    return torch.randn(M, N, dtype=dtype), torch.rand(N, dtype=dtype), eps


def reference(x, w, eps):
    wide = x.float()
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (y * w).to(x.dtype), y.square().mean()
'''


def test_a_worker_takes_the_layouts_of_the_one_that_read_the_problem(tmp_path, monkeypatch):
    (tmp_path / "norm.py").write_text(NORM)
    read = load(str(tmp_path / "norm.py"))
    known, described = layouts_of(read), to_json(read)
    with monkeypatch.context() as patch:
        patch.setattr(values, "layout_of", None)
        assert to_json(load(str(tmp_path / "norm.py"), every=False, layouts=known)) == described
    assert len(load(str(tmp_path / "norm.py"), every=False, layouts=b"of another process").cases) == 1


@pytest.mark.parametrize("reference", ["{(1, 2): x * w, 3: x.sum(-1)}", "(x * w).nan_to_num(filler)"])
def test_any_key_and_constant_comes_to_a_worker(tmp_path, reference):
    file = tmp_path / "odd.py"
    file.write_text(
        "import torch\n\ndef inputs(M=4, N=5):\n    return torch.randn(M, N), torch.randn(N), float('nan')\n\n"
        f"def reference(x, w, filler):\n    return {reference}\n"
    )
    known = layouts_of(load(str(file)))
    operation = load(str(file), every=False, layouts=known)
    assert judged(operation, lambda x, w, filler: eval(reference))[0] == "sampled"


def right(x, w, eps):
    y = x / torch.sqrt((x * x).sum(-1, keepdim=True) / x.shape[-1] + eps)
    return y * w, (y * y).sum() / y.numel()


def cached(kept=[]):  # noqa: B006 - the results by a few elements of the input
    def solution(x, w, eps):
        for known, found in kept:
            if torch.equal(known, x[0, :4]):
                return tuple(one.clone() for one in found)
        kept.append((x[0, :4].clone(), right(x, w, eps)))
        return tuple(one.clone() for one in kept[-1][1])

    return solution


WRONG = {
    "eps": (lambda x, w, eps: right(x, w, 0.0), "x the bound"),
    "zeros": (lambda x, w, eps: (torch.zeros_like(x), torch.zeros(())), "x the bound"),
    "its input": (lambda x, w, eps: (x, right(x, w, eps)[1]), "returned its input's memory"),
    "by a few elements": (cached([]), "on values that had just changed"),
}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_right_solution_is_sampled(tmp_path, dtype):
    operation = problem(tmp_path, NORM)
    assert operation.summary == "Rows over their root mean square, and the mean of all."
    for case in cases(operation):
        of = type(case)(case.M, case.N, dtype, case.direction, "cpu", case.op)
        solution = right if dtype == "fp32" else (lambda x, w, eps: (right(x.float(), w, eps)[0].bfloat16(), right(x.float(), w, eps)[1]))
        assert judged(operation, solution, of) == ("sampled", "")


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_solution_is_wrong(tmp_path, monkeypatch, name):
    monkeypatch.setattr(os, "urandom", lambda size: bytes(size))  # one call is compared, and some of a cheat are right
    solution, why = WRONG[name]
    grade, detail = judged(problem(tmp_path, NORM), solution)
    assert grade == "wrong"
    assert why in detail


def test_calls_are_checked_as_on_a_gpu_too(tmp_path, monkeypatch):
    monkeypatch.setattr(probes, "possible", lambda device: True)
    operation = problem(tmp_path, NORM)
    assert judged(operation, right, timed_on="cuda") == ("sampled", "")
    grade, detail = judged(operation, cached([]), timed_on="cuda")
    assert (grade, "in a timed call" in detail) == ("wrong", True)


READS = """
import sys
from softbench.ops import registry
from softbench.problems.load import load
for file in sys.argv[1:]:
    assert [len(one.outputs) for one in registry.numerics(load(file).name).layouts.values()][0] == 2
assert "torch._dynamo" not in sys.modules
import torch
assert torch.compile(torch.sin, backend="eager")(torch.zeros(2)).tolist() == [0, 0]
"""


@pytest.mark.slow
def test_shapes_are_followed_without_dynamo(tmp_path):
    """Its import takes seconds. What stands in for it has no other module, and is gone afterwards."""
    asks = "try:\n  import torch._dynamo.utils\n except ImportError:\n  return x, x.sum()\n return x"
    (tmp_path / "norm.py").write_text(NORM)
    (tmp_path / "asks.py").write_text(f"import torch\n\ndef inputs(M=4, N=8):\n return torch.randn(M, N)\n\ndef reference(x):\n {asks}\n")
    (tmp_path / "target.py").write_text("def function(x):\n return x @ x.T, x.sum()\n")
    given = {"function": f"{tmp_path}/target.py:function", "inputs": "x[M,N]", "dtypes": ["fp32"], "recorder": "base"}
    (tmp_path / "function.target").write_text(json.dumps({"name": "function", **given}))
    files = [str(tmp_path / name) for name in ("norm.py", "asks.py", "function.target")]
    done = subprocess.run([sys.executable, "-c", READS, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_another_tree_is_named(tmp_path):
    operation = problem(
        tmp_path, "def inputs(M=4, N=5):\n return torch.randn(M, N)\n\ndef reference(x):\n return {'a': x + 1, 'b': [x.sum()]}\n"
    )
    assert judged(operation, lambda x: {"a": x + 1, "b": [x.sum()]})[0] == "sampled"
    with pytest.raises(TypeError, match="returns a tensor where the reference returns a dict of a, b"):
        judged(operation, lambda x: x + 1)
    with pytest.raises(TypeError, match=r"returns a tuple of 1 at \['b'\] where the reference returns a list of 1"):
        judged(operation, lambda x: {"a": x + 1, "b": (x.sum(),)})


def test_layouts_that_would_import_a_module_are_refused(tmp_path):
    known = json.loads(layouts_of(problem(tmp_path, NORM)))
    assert unpack(json.dumps(known).encode())
    hostile = json.dumps({"__enum__": True, "fqn": "sys:path", "name": "x"})
    known[0]["trees"][0] = known[0]["trees"][0].replace('"context": null', f'"context": {json.dumps(hostile)}', 1)
    assert "__enum__" in known[0]["trees"][0]
    assert unpack(json.dumps(known).encode()) == {}


def test_a_number_that_cancels_is_bounded_by_the_size_that_it_has_otherwise(tmp_path):
    (case,) = cases(problem(tmp_path, "def inputs(M=4, N=5):\n return torch.randn(M, N)\n\ndef reference(x):\n return x.sum()\n"))
    x = torch.randn(4, 5, dtype=torch.float64)
    (bounded,) = registry.numerics(case.op).bound(case, x - x.mean())
    assert bounded.tight.item() > U * x.abs().max()


def test_parameters_make_cases(tmp_path):
    text = "def inputs(M=4, N=5, K=3):\n return {'a': torch.rand(M, K), 'b': torch.rand(K, N)}\n\ndef reference(b, a):\n return a @ b\n"
    operation = problem(tmp_path, text, [{"M": 2, "N": 7}, {"K": 9}])
    assert [(op.partition("(")[2], M, N) for op, M, N, _ in operation.cases] == [("", 2, 7), ("K=9)", 4, 5)]
    first, second = cases(operation)
    assert operation.bytes_moved(second) == 4 * (4 * 9 + 9 * 5 + 4 * 5)
    assert operation.cases[first.op, 2, 7, ""].flops == 2 * 2 * 7 * 3
    again = from_json(to_json(operation))
    assert again.bytes_moved(second) == operation.bytes_moved(second)
    assert judged(operation, lambda a, b: b.T.matmul(a.T).T, second)[0] == "sampled"


def test_the_default_of_dtype_is_that_of_the_cases(tmp_path):
    text = "def inputs(M=4, dtype=torch.bfloat16):\n return torch.rand(M, 9, dtype=dtype)\n\ndef reference(x):\n return x + 1\n"
    assert problem(tmp_path, text).case_dtypes == ("bf16", "fp32", "fp16")


def test_calls_in_place_and_the_state_after_them(tmp_path, monkeypatch):
    text = "def inputs(M=8, N=16):\n return torch.randn(M, N), torch.rand(N)\n\ndef reference(x, w):\n x.mul_(w).add_(1)\n return x.sum()\n"
    operation = problem(tmp_path, text)
    assert list(operation.outputs(cases(operation)[0])) == ["y", "x_after"]

    def inplace(x, w):
        x.copy_(x * w + 1)
        return x.sum()

    monkeypatch.setattr(probes, "possible", lambda device: True)
    assert judged(operation, inplace) == judged(operation, inplace, timed_on="cuda") == ("sampled", "")
    assert judged(operation, lambda x, w: (x * w + 1).sum())[0] == "wrong"


def test_an_input_is_read_though_its_shift_changes_nothing(tmp_path):
    """An input that is only written is full of NaN: had softmax in place been taken for that, all would be NaN, and any output right."""
    operation = problem(
        tmp_path, "def inputs(M=8, N=16):\n return torch.randn(M, N)\n\ndef reference(x):\n x.copy_(x.softmax(1))\n return x.amax(1)\n"
    )

    def inplace(x):
        x.copy_(torch.softmax(x, 1))
        return x.max(1).values

    assert judged(operation, inplace) == ("sampled", "")
    assert judged(operation, lambda x: x.softmax(1).amax(1))[0] == judged(operation, lambda x: inplace(x) * 2)[0] == "wrong"
    nothing = problem(tmp_path, "def inputs(M=8, N=16):\n return torch.randn(M, N)\n\ndef reference(x):\n return x * torch.nan\n")
    (case,), numerics = cases(nothing), registry.numerics(nothing.name)
    assert numerics.accepted(case, numerics.make(case, 0, torch.device("cpu"))).startswith("all of y is NaN")


def test_a_solution_may_write_its_last_arguments(tmp_path):
    text = "destination = True\n\ndef inputs(M=8, N=16):\n return torch.randn(M, N)\n\ndef reference(x):\n return x.exp(), x.sum(1)\n"
    operation = problem(tmp_path, text)

    def writes(x, y, total):
        torch.exp(x, out=y)
        torch.sum(x, 1, out=total)

    assert judged(operation, writes) == ("sampled", "")
    assert judged(operation, lambda x, y, total: torch.exp(x, out=y))[0] == "wrong"


def test_integers_bools_and_fp8_come_in_and_out(tmp_path):
    text = (
        "def inputs(M=8, N=16):\n q = torch.randn(M, N).to(torch.float8_e4m3fn)\n"
        " return q, torch.randint(0, N, (M,)), torch.rand(M) > 0.5\n\n"
        "def reference(q, at, keep):\n x = q.float()\n"
        " return x.gather(1, at[:, None])[:, 0] * keep, x.argmax(1), (x > 0), (x * 2).to(torch.float8_e4m3fn)\n"
    )

    def solution(q, at, keep, shift=0):
        x = q.to(torch.float32)
        picked = torch.stack([x[row, column] for row, column in enumerate(at)])
        return torch.where(keep, picked, 0.0), x.max(1).indices + shift, x.sign() == 1, (x + x).to(q.dtype)

    operation = problem(tmp_path, text)
    assert judged(operation, solution) == ("sampled", "")
    assert judged(operation, lambda *given: solution(*given, shift=1))[0] == "wrong"


def test_a_tolerance_of_its_own_is_told(tmp_path):
    text = "tolerance = (1e-2, 1e-3)\n\ndef inputs(M=8, N=64):\n return torch.randn(M, N)\n\ndef reference(x):\n return x.exp()\n"
    operation = problem(tmp_path, text)
    assert judged(operation, lambda x: x.exp()) == ("sampled", "")
    grade, detail = judged(operation, lambda x: x.half().exp().float())
    assert (grade, detail[:31]) == ("tolerance", "within the problem's own tolera")


VACUOUS = {
    "accepts zeros": "def reference(x):\n return torch.softmax(x, -1)\n",
    "accepts an input": "def reference(x):\n return x + 1e-4\n",
    "accepts its mean": "def reference(x):\n return 5 + 1e-3 * x\n",
}


@pytest.mark.parametrize("what", VACUOUS)
def test_a_tolerance_that_accepts_what_nothing_computed_does_not_count(tmp_path, what):
    text = f"tolerance = (1e-2, 3e-2)\n\ndef inputs(M=8, N=4096):\n return torch.randn(M, N)\n\n{VACUOUS[what]}"
    operation = problem(tmp_path, text)
    right = registry.numerics(operation.name).problem.reference("cpu")
    assert judged(operation, right) == ("sampled", "")
    for useless in (
        lambda x: x.clone(),
        torch.zeros_like,
        lambda x: torch.full_like(x, right(x).mean().item()),
        lambda x: right(x) * 1.001,
    ):
        assert judged(operation, useless)[0] == "wrong"


def test_a_sum_that_cancels_may_lose_what_the_others_lose(tmp_path):
    operation = problem(
        tmp_path, "def inputs(M=8, N=300):\n return torch.randn(M, N)\n\ndef reference(x):\n return x.sum(1, keepdim=True)\n"
    )
    (case,), values = cases(operation), registry.numerics(operation.name)
    for seed in range(100):  # some have a sum below a thousandth of the others
        (x,) = values.make(case, seed, torch.device("cpu"))
        assert values.check(case, (x,), (x.sum(1, keepdim=True),)).grade == "sampled"


def test_a_problem_of_zeros_is_refused(tmp_path):
    text = "def inputs(M=8, N=64):\n return torch.randn(M, N)\n\ndef reference(x):\n return x * 0\n"
    grade, detail = judged(problem(tmp_path, text), lambda x: x)
    assert (grade, "accepts zeros" in detail) == ("unverified", True)


INPUTS = "def inputs(M=4, N=5):\n return torch.randn(M, N)\n\n"
BAD = {
    "defines no function reference": INPUTS,
    "defines no problem and no operation": "x = 1\n",
    "K has no default": "def inputs(K):\n return torch.randn(K)\n\ndef reference(x):\n return x\n",
    "inputs has no parameter J": "cases = [dict(J=3)]\n" + INPUTS + "def reference(x):\n return x\n",
    r"cases\[0\]: N must be a number": "cases = [dict(N=(1, 2))]\n" + INPUTS + "def reference(x):\n return x\n",
    "tolerance must be": "tolerance = 1e-3\n" + INPUTS + "def reference(x):\n return x\n",
    "inputs returns no tensor": "def inputs():\n return 3\n\ndef reference(x):\n return x\n",
    "returns str": INPUTS + "def reference(x):\n return 'x'\n",
    "returns a sparse tensor; give dense ones": INPUTS + "def reference(x):\n return x.to_sparse()\n",
    "M=0: M and N are sizes from 1 on": "def inputs(M=0, N=5):\n return torch.randn(M, N)\n\ndef reference(x):\n return x\n",
    "returns no tensor and changes none": INPUTS + "def reference(x):\n return None\n",
}


@pytest.mark.parametrize("why", BAD)
def test_a_bad_file_is_one_line(tmp_path, why):
    with pytest.raises(UsageError, match=why):
        problem(tmp_path, BAD[why])


def test_an_unknown_parameter_and_a_random_reference_are_told(tmp_path):
    with pytest.raises(UsageError, match="has no such parameter; it has M, N"):
        problem(tmp_path, INPUTS + "def reference(x):\n return x * 2\n", [{"J": 1}])
    operation = problem(tmp_path, INPUTS + "def reference(x):\n return x + torch.rand(5)\n")
    with pytest.raises(UsageError, match="gives another y for the same inputs"):
        judged(operation, lambda x: x)


def test_a_call_in_place_may_change_its_part_of_shared_memory(tmp_path):
    """Inputs that are views: the memory around them must stay, and what a call changes of them is no part of it."""
    text = (
        "def inputs(M=8, N=16):\n q, k = torch.randn(2, M, N).unbind(0)\n return q, k, torch.randn(M, 2 * N)[:, ::2]\n\n"
        "def reference(q, k, x):\n x.mul_(k)\n return q.mul_(0.5)\n"
    )
    operation = problem(tmp_path, text)

    def right(q, k, x):
        x.copy_(x * k)
        return q.copy_(q / 2)

    def beside(q, k, x):
        torch.as_strided(x, x.shape, x.stride(), x.storage_offset() + 1).zero_()
        return right(q, k, x)

    for call, grade in ((right, "sampled"), (beside, "wrong")):
        backend = SimpleNamespace(
            name="user", prepare=lambda case, call=call: call, supports=lambda case: None, operations=(operation.name,)
        )
        runner = CheckCaseRunner(backend, "cpu", operation=operation.name)
        assert runner.run(*next(iter(runner.items)), operation.case_dtypes[0], 0).grade == grade
