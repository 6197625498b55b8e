"""Problems in KernelBench's format, written for these tests: the kinds of its level 1, and right, wrong and cheating solutions."""

from pathlib import Path

import pytest
import torch
from problem_files import cases, judged, problem
from sampled import sampled

from softbench.core.errors import UsageError
from softbench.ops import registry
from softbench.plugins.load import load
from softbench.plugins.source import source_of
from softbench.problems import baselines
from softbench.problems.own_kernel import Operators

FORM = """
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self{parameters}):
        super().__init__()
        {init}

    def forward(self, {names}):
        return {forward}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return [{given}]
"""


def model(forward, inputs, names="x", init="pass", parameters="", given=""):
    return FORM.format(forward=forward, inputs=inputs, names=names, init=init, parameters=parameters, given=given)


A, B, ROWS, IMAGES = "torch.rand(24, 40)", "torch.rand(40, 32)", "torch.rand(8, 300)", "torch.rand(2, 4, 12, 14)"
KINDS = {
    "square matmul": model("a @ b", "torch.rand(32, 32), torch.rand(32, 32)", "a, b"),
    "matmul": model("a @ b", f"{A}, {B}", "a, b"),
    "transposed matmul": model("a.T @ b.T", f"{B}, {A}", "a, b"),
    "batched matmul": model("torch.bmm(a, b)", "torch.rand(3, 8, 16), torch.rand(3, 16, 8)", "a, b"),
    "matrix by vector": model("a @ b", f"{A}, torch.rand(40, 1)", "a, b"),
    "matrix by scalar": model("a * s", f"{A}, 3.14", "a, s"),
    "diagonal": model("torch.diag(a) @ b", "torch.rand(40), torch.rand(40, 8)", "a, b"),
    "symmetric": model("a @ b", "(lambda m: m + m.T)(torch.rand(16, 16)), torch.rand(16, 16)", "a, b"),
    "triangular": model("torch.triu(a @ b)", "torch.triu(torch.rand(16, 16)), torch.triu(torch.rand(16, 16))", "a, b"),
    "einsum": model("torch.einsum('bij,jk->bik', a, b)", f"torch.rand(2, 3, 40), {B}", "a, b"),
    **{
        name: model(text, "torch.randn(8, 300)")
        for name, text in {
            "relu": "torch.relu(x)", "leaky relu": "F.leaky_relu(x, 0.01)", "sigmoid": "torch.sigmoid(x)", "tanh": "torch.tanh(x)",
            "softmax": "torch.softmax(x, dim=1)", "log softmax": "torch.log_softmax(x, dim=1)", "swish": "x * torch.sigmoid(x)",
            "gelu": "F.gelu(x)", "selu": "torch.selu(x)", "softplus": "F.softplus(x)", "hardtanh": "F.hardtanh(x)", "elu": "F.elu(x)",
            "softsign": "x / (1 + torch.abs(x))", "sum": "x.sum(1, keepdim=True)", "mean": "x.mean(1)", "max": "x.max(1)[0]",
            "argmax": "x.argmax(1)", "argmin": "x.argmin(0)", "cumsum": "x.cumsum(1)", "reverse cumsum": "x.flip(1).cumsum(1).flip(1)",
            "cumprod": "x.cumprod(1)", "l1 norm": "x / x.abs().mean(1, keepdim=True)", "l2 norm": "x / x.norm(2, 1, keepdim=True)",
            "frobenius": "x / torch.norm(x)",
        }.items()
    },
    "masked cumsum": model("(x * mask).cumsum(1)", f"{ROWS}, torch.randint(0, 2, (8, 300)).bool()", "x, mask"),
    "batch norm": model("self.f(x)", IMAGES, init="self.f = nn.BatchNorm2d(n)", parameters=", n", given="4"),
    "instance norm": model("self.f(x)", IMAGES, init="self.f = nn.InstanceNorm2d(n)", parameters=", n", given="4"),
    "group norm": model("self.f(x)", IMAGES, init="self.f = nn.GroupNorm(2, n)", parameters=", n", given="4"),
    "layer norm": model("self.f(x)", IMAGES, init="self.f = nn.LayerNorm(n)", parameters=", n", given="(4, 12, 14)"),
    "max pool": model("self.f(x)", IMAGES, init="self.f = nn.MaxPool2d(3, 2, 1)"),
    "average pool": model("self.f(x)", "torch.rand(2, 4, 20)", init="self.f = nn.AvgPool1d(3)"),
    "conv 1d": model("self.f(x)", "torch.rand(2, 4, 30)", init="self.f = nn.Conv1d(4, 6, 3)"),
    "conv 2d": model("self.f(x)", IMAGES, init="self.f = nn.Conv2d(4, 6, (3, 5), padding=1, bias=False)"),
    "conv 3d": model("self.f(x)", "torch.rand(1, 2, 6, 7, 8)", init="self.f = nn.Conv3d(2, 3, 3)"),
    "transposed conv": model("self.f(x)", IMAGES, init="self.f = nn.ConvTranspose2d(4, 3, 3, stride=2)"),
    "depthwise conv": model("self.f(x)", IMAGES, init="self.f = nn.Conv2d(4, 4, 3, groups=4)"),
    "mse": model("torch.mean((x - y) ** 2)", f"{ROWS}, {ROWS}", "x, y"),
    "cross entropy": model("F.cross_entropy(x, y)", f"{ROWS}, torch.randint(0, 300, (8,))", "x, y"),
    "huber": model("F.smooth_l1_loss(x, y)", f"{ROWS}, {ROWS}", "x, y"),
    "kl": model("F.kl_div(torch.log(x), y, reduction='batchmean')", f"{ROWS}.softmax(-1), {ROWS}.softmax(-1)", "x, y"),
    "hinge": model("torch.mean(torch.clamp(1 - x * y, min=0))", "torch.randn(8, 30), torch.randint(0, 2, (8, 1)).float() * 2 - 1", "x, y"),
    "attention": model("F.scaled_dot_product_attention(q, k, v)", ", ".join(["torch.rand(1, 2, 16, 8)"] * 3), "q, k, v"),
}  # fmt: skip


FURTHER = {
    *("transposed matmul", "triangular", "leaky relu", "selu", "softplus", "hardtanh", "elu", "softsign", "mean", "argmin", "cumprod"),
    *("l1 norm", "instance norm", "conv 3d", "kl", "hinge"),
}
"""Kinds like another one."""


@pytest.mark.parametrize("kind", sampled(KINDS, lambda kind: kind not in FURTHER))
def test_a_problem_of_each_kind_runs_unchanged_and_rejects_zeros(tmp_path, kind):
    operation = problem(tmp_path, KINDS[kind])
    (case,) = cases(operation)
    values = registry.numerics(case.op)
    assert judged(operation, values.callable("cpu")) == ("sampled", "")

    def zeros(*given):
        out = values.callable("cpu")(*given)
        return torch.zeros_like(out)

    assert judged(operation, zeros)[0] == "wrong"


LINEAR = model(
    "self.f(x) + ids[:, None]",
    "torch.rand(8, 64), torch.randint(0, 9, (8,))",
    "x, ids",
    "self.f = nn.Linear(n, m)",
    ", n, m",
    "int(torch.randint(64, 65, (1,))), 32",
)
SOLUTION = """
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.f = nn.Linear(n, m)
        self.kept = None

    def forward(self, x, ids):
        {body}
"""
BODIES = {
    "return torch.addmm(self.f.bias, x, self.f.weight.T) + ids.unsqueeze(1)": "sampled",
    "return (torch.addmm(self.f.bias, x, self.f.weight.T) + ids[:, None]) * 1.00002": "tolerance",
    "return (x.half() @ self.f.weight.T.half()).float() + ids[:, None]": "wrong",
    "self.kept = self.f(x) + ids[:, None] if self.kept is None else self.kept; return self.kept.clone()": "wrong",
}


@pytest.mark.parametrize("body", BODIES)
def test_a_solution_gets_the_weights_of_the_model(tmp_path, body):
    operation = problem(tmp_path, LINEAR)
    file = tmp_path / "solution.py"
    file.write_text(SOLUTION.format(body=body))
    (backend,) = load(source_of(file), registry.declarations(), registry.solutions())
    assert backend.operations == (operation.name,)
    assert judged(operation, backend.prepare(cases(operation)[0]))[0] == BODIES[body]


def test_a_solution_that_compiles_at_its_import_is_imported_by_its_build(tmp_path):
    operation = problem(tmp_path, LINEAR)
    file = tmp_path / "inline.py"
    body = "return self.f(x) + ids[:, None]"
    file.write_text(f"from torch.utils import cpp_extension\nopen({str(tmp_path / 'built')!r}, 'w')\n{SOLUTION.format(body=body)}")
    (backend,) = load(source_of(file), registry.declarations(), registry.solutions())
    assert not Path(tmp_path / "built").exists()
    assert judged(operation, backend.prepare(cases(operation)[0])) == ("sampled", "")
    assert Path(tmp_path / "built").exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "def custom_kernel(data):\n    return data\n",
            "it is a solution, as it has `custom_kernel`: give its problem, too, with --problem kernelbot:FOLDER",
        ),
        ("class ModelNou:\n    pass\n", "no function `ModelNew` or `problem[0-9]+`; rename `ModelNou`, which is close"),
        (LINEAR, "it is a problem, as it has `Model` and `get_inputs`: give it with --problem, and a solution here"),
    ],
)
def test_a_plugin_without_a_solution_tells_what_it_is(tmp_path, text, why):
    problem(tmp_path, LINEAR)
    (tmp_path / "other.py").write_text(text)
    with pytest.raises(UsageError, match=why):
        load(source_of(tmp_path / "other.py"), registry.declarations(), registry.solutions())


def test_a_function_of_torch_jit_is_a_solution(tmp_path):
    operation = problem(tmp_path, model("torch.exp(x)", ROWS))
    (tmp_path / "scripted.py").write_text(f"import torch\n\n@torch.jit.script\ndef {operation.name}(x):\n    return x.exp()\n")
    (backend,) = load(source_of(tmp_path / "scripted.py"), registry.declarations(), registry.solutions())
    assert judged(operation, backend.prepare(cases(operation)[0])) == ("sampled", "")


BAD = {
    r"is a plugin, as it has `ModelNew`: give it with --plugin, or as kernelbench:PROBLEM.py,\w+.py": "class ModelNew:\n pass\n",
    "Model must be a subclass": "Model = 3\n\ndef get_inputs():\n return []\n",
    "lacks get_inputs: a problem of KernelBench": model("x", ROWS).replace("get_inputs", "inputs_of"),
    "inputs returns no tensor": model("x", "3"),
}


@pytest.mark.parametrize("why", BAD)
def test_a_bad_file_is_one_line(tmp_path, why):
    with pytest.raises(UsageError, match=why):
        problem(tmp_path, BAD[why])


@pytest.mark.parametrize(
    ("forward", "own"),
    [
        ("torch.softmax(x, dim=1)", "softmax 1"),
        ("F.log_softmax(x, -1)", "log_softmax -1"),
        ("F.cross_entropy(x, t)", "cross_entropy 1"),
        ("torch.softmax(x * 2, dim=1)", ""),
        ("torch.softmax(x, dim=1) * 2", ""),
        ("torch.softmax(x, 1, torch.float64)", ""),
        ("F.cross_entropy(x, t, label_smoothing=.1)", ""),
        ("F.cross_entropy(x, t, reduction='sum')", ""),
        ("F.cross_entropy(x, 1 - t)", ""),
    ],
)
def test_softbenchs_own_kernel_is_a_baseline_of_the_same_function(tmp_path, forward, own):
    operation = problem(tmp_path, model(forward, "torch.rand(8, 30), torch.randint(0, 2, (8,))", "x, t"))
    (case,) = cases(operation)
    known = baselines.OwnKernel()
    assert registry.numerics(case.op).layout((case.op, case.M, case.N, case.shape)).own == own
    assert any(one.startswith(operation.name) for one in known.operations) == (known.supports(case) is None) == bool(own)
    if own:
        assert judged(operation, known.prepare(case))[0] == "sampled"


def test_an_operator_of_another_library_is_no_part_of_softbenchs_kernel():
    def halve(x):
        x.copy_(x / 2)

    x = torch.rand(8, 30)
    with torch.library._scoped_library("of_another", "DEF") as library, Operators() as seen:
        library.define("halve_(Tensor(a!) x) -> ()")
        library.impl("halve_", halve, "CPU")
        torch.ops.of_another.halve_(x)
        out = torch.softmax(x, 1)
    assert seen.own((x,), out) == ""
    with Operators() as seen:
        out = torch.softmax(x, 1)
    assert seen.own((x,), out) == "softmax 1"
