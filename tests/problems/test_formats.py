"""Problems in the formats of others, written here in those formats: right, wrong and cheating solutions, and what is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from problem_files import cases, judged

from softbench.core.errors import UsageError
from softbench.ops import registry
from softbench.plan.settings import one_case
from softbench.plugins.flashinfer_solution import solution
from softbench.problems.load import load
from softbench.run.operations import with_solutions

UTILS = """
import torch

def make_match_reference(reference, **kwargs):
    def wrapped(data, output):
        return torch.allclose(output, reference(data), **kwargs), ""
    return wrapped
"""
TASK = """
files:
  - {"name": "submission.py", "source": "@SUBMISSION@"}
  - {"name": "utils.py", "source": "../utils.py"}
  - {"name": "reference.py", "source": "reference.py"}
lang: "py"
description: |
  The sums of rows.
benchmarks:
  - {"rows": 8, "columns": 300, "seed": 7}
  - {"rows": 8, "columns": 300, "seed": 8}
  - {"rows": 5, "columns": 64, "seed": 7}
"""
REFERENCE = """
import torch
from utils import make_match_reference

def generate_input(rows: int, columns: int, seed: int):
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    x = torch.randn(rows, columns, device="cuda", dtype=torch.float16, generator=gen)
    return x, torch.empty(rows, device="cuda", dtype=torch.float16)

def ref_kernel(data):
    x, out = data
    out[...] = x.sum(1)
    return out

check_implementation = make_match_reference(ref_kernel, rtol=2e-2, atol=1e-3)
"""
DEFINITION = {
    "name": "rms_h64",
    "op_type": "norm",
    "description": "Rows over their root mean square.",
    "axes": {"batch": {"type": "var"}, "hidden": {"type": "const", "value": 64}},
    "constraints": ["batch > 0"],
    "inputs": {
        "x": {"shape": ["batch", "hidden"], "dtype": "bfloat16"},
        "keep": {"shape": ["batch"], "dtype": "bool"},
        "eps": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["batch", "hidden"], "dtype": "bfloat16"}},
    "reference": "def run(x, keep, eps):\n    w = x.float()\n    w = w * (w.square().mean(-1, keepdim=True) + eps).rsqrt()\n"
    "    return {'y': (w * keep[:, None]).to(x.dtype)}\n",
}
WORKLOAD = {"axes": {"batch": 9}, "inputs": {"x": {"type": "random"}, "keep": {"type": "random"}, "eps": {"type": "scalar", "value": 1e-6}}}


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    modules = {*sys.modules}
    yield
    for name in {*sys.modules} - modules:
        if name in ("utils", "reference", "main", "helper", "rms_h64"):
            del sys.modules[name]


def task(folder, text=TASK, reference=REFERENCE):
    (folder / "sums").mkdir()
    (folder / "utils.py").write_text(UTILS)
    (folder / "sums" / "task.yml").write_text(text)
    (folder / "sums" / "reference.py").write_text(reference)
    return str(folder / "sums" / "task.yml")


def sums(data, factor=1.0):
    x, out = data
    out.copy_(x.float().sum(1) * factor)
    return out


def test_a_task_of_kernelbot_comes_in_as_it_is(tmp_path):
    operation = load(task(tmp_path))
    assert (operation.name, operation.summary) == ("sums", "The sums of rows.")
    assert [op.partition("(")[2] for op, *_ in operation.cases] == ["", "rows=5,columns=64)"]
    assert tmp_path / "utils.py" in registry.numerics("sums").problem.reads, "a judged plugin's process reads it too"
    first, second = operation.cases.values()
    assert first.spec == ("rows: 8; columns: 300; seed: 7", "rows: 8; columns: 300; seed: 8") and len(second.spec) == 1
    assert judged(operation, sums) == ("sampled", "")
    assert judged(operation, lambda data: sums(data, 1.01))[0] == "tolerance"
    assert judged(operation, lambda data: sums(data, 1.05))[0] == "wrong"
    assert judged(operation, lambda data: data[1])[0] == "wrong", "the output's memory holds nothing of the reference's"
    assert judged(operation, lambda data: data[0].float().sum(1).half()) == ("sampled", ""), "its evaluator compares what is returned"
    with pytest.raises(TypeError, match="returns a tuple of 2 where the reference returns a tensor"):
        judged(operation, lambda data: (sums(data), data[0]))
    kept = {}
    grade, detail = judged(operation, lambda data: data[1].copy_(kept.setdefault(data[0].data_ptr(), data[0].float().sum(1))))
    assert grade == "wrong", detail


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (('lang: "py"', "lang: cu"), "task.yml: lang is cu"),
        (("../utils.py", "../absent.py"), "files has the source ../absent.py, and there is no such file"),
        (("benchmarks:", "tests:"), "benchmarks must be a list of the parameters"),
        (('"name": "utils.py"', '"name": "others.py"'), "reference.py imports utils: name it in files of task.yml"),
        (("files:", "files: ["), "task.yml: while parsing"),
        (('reference.py", "source', 'other.py", "source'), "files has no reference.py"),
    ],
)
def test_a_task_that_cannot_run_is_refused(tmp_path, change, why):
    with pytest.raises(UsageError, match=why):
        load(task(tmp_path, TASK.replace(*change)))


def definition(folder, **changes):
    file = folder / "definitions" / "norm" / "rms_h64.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(DEFINITION | changes))
    workloads = folder / "workloads" / "norm" / "rms_h64.jsonl"
    workloads.parent.mkdir(parents=True)
    workloads.write_text(json.dumps({"definition": "rms_h64", "workload": WORKLOAD, "solution": None}) + "\n")
    return file


def solved(folder, factor="1", language="python", **spec):
    text = f"from helper import rms\n\ndef run(x, keep, eps, y):\n    y.copy_(rms(x, eps) * keep[:, None] * {factor})\n"
    helper = "def rms(x, eps):\n    w = x.float()\n    return w / ((w * w).sum(-1, keepdim=True) / 64 + eps).sqrt()\n"
    file = folder / "solutions" / "me" / "norm" / "rms_h64" / f"by{factor}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    sources = [{"path": "main.py", "content": text}, {"path": "helper.py", "content": helper}]
    spec = {"language": language, "target_hardware": ["cpu"], "entry_point": "main.py::run", **spec}
    file.write_text(json.dumps({"name": "mine", "definition": "rms_h64", "author": "me", "spec": spec, "sources": sources}))
    return file


def test_a_definition_of_flashinfer_comes_in_as_it_is(tmp_path):
    file, right = definition(tmp_path), solved(tmp_path)
    assert with_solutions([f"flashinfer:{file}"]) == ([f"flashinfer:{file}"], [right])
    operation = load(str(file))
    (case,) = cases(operation)
    assert (case.M, case.N, case.dtype) == (9, 64, "bf16")
    assert one_case({"op": case.op}, "judge").dtype == "bf16", "there is no other"
    assert registry.numerics(case.op).problem.reads == [tmp_path / "workloads" / "norm" / "rms_h64.jsonl"]
    assert judged(operation, solution(right).run) == ("sampled", "")
    del sys.modules["main"]
    assert judged(operation, solution(solved(tmp_path, "1.1")).run)[0] == "wrong"
    twice = load(str(file), [{"batch": 20}])
    assert [(M, N) for _, M, N, _ in twice.cases] == [(20, 64)]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"reference": "def walk(x):\n    pass\n"}, "its reference defines no function run"),
        ({"constraints": ["batch > 100"]}, "the constraint batch > 100 does not hold for batch=9"),
        ({"inputs": {"x": {"shape": ["batch"], "dtype": "float4"}}}, "x has the dtype float4; softbench has"),
        ({"axes": {"batch": {"type": "var"}, "hidden": {"type": "var"}}}, "no workload gives a value of hidden: expected .*rms_h64.jsonl"),
        ({"axes": {"batch": {"type": "ragged"}}}, "the axis batch has the type ragged; .*: is it of a newer version of FlashInfer-Trace"),
        ({"outputs": {"z": DEFINITION["outputs"]["y"]}}, "its reference returns a dict without z"),
        ({"reference": "def run(x, keep, eps):\n    return x, x\n"}, "its reference returns 2 outputs; the definition has y"),
    ],
)
def test_a_definition_that_cannot_run_is_refused(tmp_path, changes, why):
    with pytest.raises((UsageError, TypeError), match=why):
        load(str(definition(tmp_path, **changes)))


def test_a_workload_of_a_newer_version_is_refused(tmp_path):
    file = definition(tmp_path)
    workloads = tmp_path / "workloads" / "norm" / "rms_h64.jsonl"
    workloads.write_text(workloads.read_text().replace('"type": "random"', '"type": "zipf"', 1))
    with pytest.raises(UsageError, match="the input x of a workload has the type zipf; softbench knows random, scalar, safetensors"):
        load(str(file))


def test_a_solution_that_cannot_be_loaded_is_refused(tmp_path):
    with pytest.raises(UsageError, match="its language is cuda; softbench loads python, triton, tilelang"):
        solution(solved(tmp_path, language="cuda"))
    with pytest.raises(UsageError, match=r"its entry point main\.py has no function walk"):
        solution(solved(tmp_path, entry_point="main.py::walk"))
    with pytest.raises(UsageError, match="it is a solution: give it with --plugin"):
        load(str(solved(tmp_path)))
    with pytest.raises(UsageError, match="it is a definition: give it with --problem flashinfer:"):
        solution(definition(tmp_path))


@pytest.mark.slow
def test_softbench_can_be_the_evaluator_of_a_task(tmp_path):
    task(tmp_path)
    folder = tmp_path / "sums"
    (folder / "utils.py").write_text(UTILS)
    (folder / "eval.py").write_text("from softbench.problems.kernelbot_eval import main\nmain()\n")
    (folder / "tests.txt").write_text("rows: 8; columns: 300; seed: 7\nrows: 5; columns: 64; seed: 7\n")
    for factor, code in (("1", 0), ("1.1", 112)):
        text = f"def custom_kernel(data):\n    x, out = data\n    out.copy_(x.float().sum(1) * {factor})\n    return out\n"
        (folder / "submission.py").write_text(text)
        read, write = os.pipe()
        command = [sys.executable, "eval.py", "test", "tests.txt"]
        environment = {**os.environ, "POPCORN_FD": str(write), "SOFTBENCH_QUEUE": "off"}
        done = subprocess.run(command, cwd=folder, env=environment, pass_fds=[write], capture_output=True, text=True, check=False)
        os.close(write)
        with os.fdopen(read) as lines:
            found = dict(line.rstrip().split(": ", 1) for line in lines)
        assert done.returncode == code, (done.stderr, found)
        assert found["test-count"] == "2" and found["test.0.spec"] == "rows: 8; columns: 300; seed: 7"
        assert (found["test.1.status"], found["check"]) == (("pass", "pass") if code == 0 else ("fail", "fail"))
    assert subprocess.run([sys.executable, "eval.py", "walk"], cwd=folder, capture_output=True, check=False).returncode == 2


def test_a_solution_is_for_the_problems_that_it_follows(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_solved", {})
    files = {name: tmp_path / name for name in ("a.py", "b.py", "of_a.py", "of_both.py")}
    for file in files.values():
        file.touch()
    problems, solutions = ([str(files[name]) for name in names] for names in (("a.py", "b.py"), ("of_a.py", "of_both.py")))
    words = [f"kernelbench:{problems[0]},{','.join(solutions)}", f"kernelbench:{problems[1]},{solutions[1]}"]
    assert with_solutions(words) == ([f"kernelbench:{one}" for one in problems], [*map(Path, solutions), Path(solutions[1])])
    assert [registry.solved_by(one) for one in solutions] == [(problems[0],), tuple(problems)]
    assert registry.solved_by(problems[0]) == ()
    (traces := tmp_path / "traces.txt").touch()
    folder = tmp_path / "kernels" / "relu__default"
    folder.mkdir(parents=True)
    (folder / "relu__default_implementation_v1.py").touch()
    words = [words[0], f"backendbench:{folder.parent},{traces}", problems[1]]
    ops, plugins = with_solutions(words)
    assert ops == [f"kernelbench:{problems[0]}", f"backendbench:{folder}:{traces}", problems[1]], "each option begins anew"
    assert plugins == [*map(Path, solutions), folder.parent]
