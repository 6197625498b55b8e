"""Folders in BackendBench's format, written for these tests: right, wrong and cheating solutions, traces, and what is refused."""

import pytest
import torch
from problem_files import cases, judged

from softbench.core.errors import UsageError
from softbench.ops import registry
from softbench.ops.declaration import from_json, to_json
from softbench.plan.sweep import Sweep, cases as cases_of
from softbench.plugins.load import load as load_plugin
from softbench.plugins.source import source_of
from softbench.problems.load import load
from softbench.report import listing
from softbench.run import operations
from softbench.run.operations import with_solutions

TRACES = """Operator: aten.relu.default
cnt: 3, ((T([8, 48], f16),), {})
cnt: 1, ((T([64, 32], f32, [1, 64]),), {})
Operator: aten.add.Tensor
cnt: 9, ((T([8, 48], f32), T([8, 48], f32)), {'alpha': 2})
cnt: 9, ((T([8, 48], f32), T([8, 48], f32)), {'alpha': 2})
cnt: 2, ((T([8, 32], f32), -2.5), {})
Operator: aten.log.default
cnt: 2, ((T([8, 32], f32),), {})
Operator: aten.sum.dim_IntList
cnt: 5, ((T([8, 32], f16), [-1]), {'dtype': torch.float32})
"""
BODIES = {
    "v1": "return input * (input > 0)",
    "v2": "return torch.zeros_like(input)",
    "v3": "return KEPT.setdefault(input.data_ptr(), input.clamp_min(0)).clone()",
    "": "return input.relu() * 1.001",
}


@pytest.fixture
def folder(tmp_path):
    for operator in ("relu__default", "add__Tensor"):
        (tmp_path / "kernels" / operator).mkdir(parents=True)
        for version, body in BODIES.items():
            file = tmp_path / "kernels" / operator / f"{operator}_implementation{'_' * bool(version)}{version}.py"
            file.write_text(f"import torch\nKEPT = {{}}\n\ndef {operator}_kernel_impl(input):\n    {body}\n")
    return tmp_path / "kernels"


def operator(folder, name, traces=""):
    if traces:
        (folder / "traces.txt").write_text(traces)
    return load(f"{folder / name}:{folder / 'traces.txt'}" if traces else str(folder / name))


def test_a_folder_is_its_operators_with_their_solutions(folder, tmp_path):
    ops, solutions = with_solutions([f"backendbench:{folder}"])
    assert ops == [f"backendbench:{folder}/add__Tensor", f"backendbench:{folder}/relu__default"]
    assert solutions == [folder]
    (tmp_path / "traces.txt").write_text(TRACES)
    assert with_solutions([f"backendbench:{folder}/relu__default,{tmp_path}/traces.txt"])[0] == [
        f"backendbench:{folder}/relu__default:{tmp_path}/traces.txt"
    ]
    (tmp_path / "traces.txt").rename(folder / "traces.txt")
    assert with_solutions([f"backendbench:{folder}"])[0][0] == f"backendbench:{folder}/add__Tensor:{folder}/traces.txt"


@pytest.mark.parametrize(("version", "grade"), [("kernels:v1", "sampled"), ("kernels:v2", "wrong"), ("kernels:v3", "wrong")])
def test_solutions_of_a_folder_are_judged(folder, version, grade):
    operation = operator(folder, "relu__default")
    backends = {one.name: one for one in load_plugin(source_of(folder), registry.declarations(), registry.solutions())}
    assert list(backends) == ["kernels", "kernels:v1", "kernels:v2", "kernels:v3"]
    case = cases(operation)[1]
    assert judged(operation, backends[version].prepare(case), case)[0] == grade
    assert judged(operation, backends["kernels"].prepare(case), case)[0] == "tolerance"


def test_traces_are_cases_with_their_own_dtypes_arguments_and_strides(folder):
    relu, add = operator(folder, "relu__default", TRACES), operator(folder, "add__Tensor", TRACES)
    assert from_json(to_json(add)).cases == dict(add.cases)
    assert [(one.dtype, one.call.inputs) for one in relu.cases.values()] == [("fp32", ("self",)), ("fp16", ("self",))]
    assert [line.split("-")[2] for line in listing._cases(relu)] == ["fp32", "fp16"]
    values = registry.numerics("aten.relu")
    assert [one.dtype for one in values.check_cases("aten.relu")] == ["fp32", "fp32", "fp16", "fp16"]
    first, second = cases_of([Sweep(op=("aten.relu",), dtype=("fp32", "fp16"))], "cpu")
    assert [tensor.stride() for tensor in values.make(first, 0, torch.device("cpu"))] == [(1, 64)]
    assert (second.op, second.dtype, (values.make(second, 0, torch.device("cpu"))[0] < 0).any()) == ("aten.relu(sample=1)", "fp16", True)
    assert [one.call.inputs for one in add.cases.values()] == [("self", "other"), ("self",)]
    for case, grade in zip(cases(add), ("sampled", "wrong"), strict=True):  # the first gives alpha
        assert judged(add, lambda x, y, alpha=1: x + y * alpha, case) == ("sampled", "")
        assert judged(add, lambda x, y, alpha=3: x + y * alpha, case)[0] == grade


def test_a_damaged_trace_costs_its_own_case(folder):
    relu = operator(folder, "relu__default", TRACES.replace("cnt: 1, ((T([64", "cnt: 2, ((T([3, f16),), {})\ncnt: 1, ((T([64"))
    assert len(relu.cases) == 2
    assert [line.partition(":")[0] for line in relu.lost] == ["aten.relu(sample=2) is left out"]


def test_values_and_other_arguments_follow_the_operator(folder):
    log, total = operator(folder, "log__default", TRACES), operator(folder, "sum__dim_IntList", TRACES)
    (x,) = registry.numerics(log.name).make(cases(log)[0], 0, torch.device("cpu"))
    assert (x > 0).all()
    assert judged(total, lambda x, dim, dtype: x.to(dtype).sum(dim)) == ("sampled", "")
    for name, call in {
        "mm__default": torch.mm,
        "layer_norm__default": lambda x, shape: torch.nn.functional.layer_norm(x, shape),
        "bitwise_and__Tensor": torch.bitwise_and,
        "add_": lambda x, y: x.add_(y),
    }.items():
        operation = operator(folder, name)
        assert judged(operation, call, cases(operation)[1]) == ("sampled", ""), name


BAD = {
    "walk__default": ("", "torch.ops.aten has no operator walk"),
    "add__Tenso": ("", "has no overload Tenso; it has Tensor, Scalar"),
    "conv2d__default": ("", r"no arguments for input, weight of aten.conv2d.default .* give a file of traces"),
    "relu__default": ("Operator: aten.relu\ncnt: 1, ((open('x'),), {})\n", r"the trace .* is none of BackendBench"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_folder_that_is_no_operator_is_one_line(folder, name):
    with pytest.raises(UsageError, match=BAD[name][1]):
        operator(folder, name, BAD[name][0])


def test_one_operator_of_a_folder_may_be_unknown(folder, monkeypatch):
    def read(pool, file, *_):
        if "walk" in file:
            raise UsageError(f"--problem {file}: torch.ops.aten has no operator walk")
        registry.add(load(file), file)
        return registry.of_file(file)

    monkeypatch.setattr(operations, "_read", read)
    many = [str(folder / name) for name in ("walk__default", "relu__default")]
    assert operations._read_all(None, many, many, "--problem", 1.0, ()) == {many[1]: "aten.relu"}
    assert registry.declared("aten.relu").lost == (f"{many[0]} is left out: torch.ops.aten has no operator walk",)
    for known in ([], many[:1]):
        with pytest.raises(UsageError, match="no operator walk"):
            operations._read_all(None, many[:1], known, "--problem", 1.0, ())


def test_a_path_without_solutions_is_one_line(folder, tmp_path):
    for path, why in ((tmp_path / "x", "no such folder"), (tmp_path, "no folder in it has a solution")):
        with pytest.raises(UsageError, match=why):
            with_solutions([f"backendbench:{path}"])
    with pytest.raises(UsageError, match="there is no file of traces"):
        with_solutions([f"backendbench:{folder},absent.txt"])
    with pytest.raises(UsageError, match="kernelbench:: names no file"):
        with_solutions(["kernelbench:"])


def test_a_case_that_raises_is_lost_alone(tmp_path):
    file = tmp_path / "problem.py"
    file.write_text(
        "import torch\ncases = [dict(N=4), dict(N=7), dict(N=8)]\n\ndef inputs(N):\n return torch.randn(3, N)\n\n"
        "def reference(x):\n return x.view(3, 2, -1).sum(1)\n"
    )
    operation = load(str(file))
    assert [N for _, _, N, _ in operation.cases] == [4, 8]
    assert operation.lost[0].startswith("problem(N=7) is left out: RuntimeError: shape '[3, 2, -1]' is invalid")
