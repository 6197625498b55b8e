"""Functions of a package in two environments: what is compared and refused. A forked worker has the packages of its environment."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from softbench.core.errors import ConfigError, UsageError
from softbench.core.toolchain import PRELOAD, preload_file
from softbench.gate import fresh_pairs, packages, scan, targets
from softbench.plan.sweep import Sweep
from softbench.plugins.targets import resolve, tell_modules, variables_before
from softbench.problems.load import declared
from softbench.problems.target import Target, TargetValues
from softbench.results.document import load_header
from softbench.run import operations

OLD = "def scale(x, factor=2.0):\n    return x * factor\n"
BENCHMARKS = """
import torch, toy

class TimeScale:
    params = [2.0, 3.0]
    param_names = ["factor"]
    def setup(self, factor):
        self.x = torch.ones(8)
    def time_scale(self, factor):
        toy.scale(self.x, factor)

def test_scale(benchmark):
    assert benchmark(toy.scale, torch.ones(8)).sum() == 16
"""


@pytest.fixture
def gate(main, tmp_path, monkeypatch):
    """`gate(new, *options)`: one look of one process pair at a toy package whose old version is OLD; exit code, verdicts, stderr."""
    monkeypatch.setattr(fresh_pairs, "undecided", lambda report: [])

    def call(new, *options, function="toy:scale", inputs="x[M,N]"):
        for name, code in (("old", OLD), ("new", new)):
            package = tmp_path / name / "lib" / "python3" / "site-packages"
            package.mkdir(parents=True)
            if code is not None:
                (package / "toy.py").write_text(f"import torch\n{code}")
            (tmp_path / name / "bin").mkdir()
            (tmp_path / name / "bin" / "python").symlink_to("/bin/false")
        environments = ("--candidate-env", "new", "--reference-env", "old")
        sizes = ("--M", 4, "--N", 8, "--inputs", inputs) if inputs else ()
        code, _, err = main("gate", "--candidate", function, *environments, *sizes, "--device", "cpu", "--processes", 1, "--rounds", 6,
                            *options, "--json", "gate.json")  # fmt: skip
        verdicts = json.loads((tmp_path / "gate.json").read_text())["verdicts"] if (tmp_path / "gate.json").exists() else []
        return code, [(one["case"], one["state"], one["reason"]) for one in verdicts], err

    return call


def test_each_side_has_its_own_version_and_the_old_outputs_are_right(gate):
    code, [(case, state, reason)], _ = gate(OLD.replace("factor\n", "factor + 1\n"))
    assert (code, case, state) == (1, "scale-forward-fp32-4x8", "broken")
    assert "in the reference; beyond the tolerance, rtol 1e-05 and atol 1e-05" in reason


def test_equal_outputs_within_a_tolerance_are_measured(gate, tmp_path):
    _, [(_, state, reason)], err = gate(OLD.replace("factor\n", "factor * 1.001\n"), "--tolerance", "0.01,0", inputs="x[M,N], factor=3.0")
    assert state == "ambiguous" and reason.startswith(("1 process pair", "the two backends share no round")), err
    assert "softbench: new against old: plan: " in err
    assert load_header(tmp_path / "results" / "gate" / "latest.json.gz")["commits"] == {"candidate": "new", "base": "old"}


@pytest.mark.parametrize(
    ("new", "function", "code", "told"),
    [
        (None, "toy:scale", 2, "new: there is no module toy"),
        ("", "toy:scale", 2, "new: toy has no scale"),
        (OLD.replace("factor=2.0", "factor"), "toy:scale", 3, "takes (x, factor=2.0) in old and (x, factor) in new"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_line(gate, new, function, code, told):
    got, verdicts, err = gate(new, function=function)
    assert (got, verdicts) == (code, [])
    assert told in err.splitlines()[-1]


def test_an_interruption_while_targets_are_read_is_told(gate, monkeypatch):
    monkeypatch.setattr("softbench.gate.packages.request_of", lambda *_: signal.raise_signal(signal.SIGINT))
    code, _, err = gate(OLD)
    assert (code, err.endswith("softbench: interrupted\n")) == (130, True), err


@pytest.mark.slow
@pytest.mark.parametrize("function", ["bench.py:TimeScale.time_scale", "bench.py:test_scale"])
def test_a_benchmark_of_another_suite_can_be_named(gate, tmp_path, function):
    (tmp_path / "bench.py").write_text(BENCHMARKS)
    _, verdicts, err = gate(OLD, function=function, inputs="")
    assert {state for _, state, _ in verdicts} == {"ambiguous"}, err
    assert len(verdicts) == (2 if "Time" in function else 1), "asv's params are cases"


@pytest.mark.parametrize("returned", ["x * 2, x[:2]", "x.t()"])
def test_a_view_of_an_input_is_refused_before_anything_is_measured(gate, returned):
    code, verdicts, err = gate(f"def scale(x):\n    return {returned}\n", "--reference-env", "new")
    assert (code, verdicts) == (2, [])
    assert "toy:scale in new: returns its input's memory as y" in err.splitlines()[-1]


def test_a_kernel_that_writes_its_input_unknown_to_torch_is_in_place(tmp_path, monkeypatch):
    (tmp_path / "toy.py").write_text("def negate(x):\n    x.numpy()[:] *= -1\n    return x\n")
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "negate.target"
    known = {"name": "negate", "function": "toy.py:negate", "inputs": "x[M,N]", "tolerance": None, "recorder": "base"}
    file.write_text(json.dumps({**known, "dtypes": ["fp32"]}))
    (case,) = declared(TargetValues(Target(file)), [{"M": 4, "N": 8}]).cases.values()
    assert case.call.outputs == ("x_after",)


def test_modules_are_not_told_if_a_package_sets_what_they_read(tmp_path, monkeypatch):
    """A later worker would have torch._dynamo before the variable, so that the first process set alone would follow it."""
    monkeypatch.setenv(PRELOAD, str(tmp_path / "modules"))
    file = preload_file()
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "0")
    variables_before.cache_clear()
    found = []
    for name, text in (("plain", ""), ("late", "import os\nos.environ['TORCH_COMPILE_DISABLE'] = '1'\n")):
        (tmp_path / f"{name}.py").write_text(text + "def f(x): ...\n")
        resolve(f"{tmp_path}/{name}.py:f")
        tell_modules()
        found.append(file.read_text("utf-8").split())
    variables_before.cache_clear()
    assert "torch" in found[0] and found[1] == []


def test_all_targets_that_cannot_be_called_are_named_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(operations, "read_in", lambda python, files, *_, **__: {file: UsageError(f": {file}: no") for file in files})
    side = packages.Environment("old", Path("python"))
    with pytest.raises(UsageError, match="2 of 2 targets cannot be called; mend or remove them: toy:f in old: no; toy:g in old: no"):
        packages._declared([targets.Target("toy:f"), targets.Target("toy:g")], packages.Sides(side, side), tmp_path, None)


def test_a_function_without_inputs_says_what_it_takes(tmp_path, monkeypatch):
    (tmp_path / "toy.py").write_text(OLD)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "scale.target"
    file.write_text(json.dumps({"name": "scale", "function": "toy.py:scale", "inputs": "", "tolerance": None, "recorder": "base"}))
    with pytest.raises(UsageError, match=r"takes \(x\), but has no inputs"):
        Target(file)


def test_a_module_of_torch_is_moved_to_the_gpu_of_its_inputs(tmp_path, monkeypatch):
    (tmp_path / "toy.py").write_text("import torch\nclass Norm(torch.nn.Linear):\n    def to(self, device):\n        self.moved = device\n")
    for there, moved in ((True, "cuda"), (False, None)):
        monkeypatch.setattr("torch.cuda.is_available", lambda there=there: there)
        found = resolve(f"{tmp_path / 'toy.py'}:Norm(2, 2).forward")
        assert getattr(found.__self__, "moved", None) == moved


def test_a_function_is_called_with_the_dtypes_of_its_target_only(tmp_path, monkeypatch):
    (tmp_path / "toy.py").write_text("def half(x):\n    assert x.dtype.itemsize == 2\n    return x + 1\n")
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "half.target"
    known = {"name": "half", "function": "toy.py:half", "inputs": "x[M,N]", "tolerance": None, "recorder": "base"}
    file.write_text(json.dumps({**known, "dtypes": ["bf16"]}))
    assert declared(TargetValues(Target(file)), [{"M": 4, "N": 8}]).cases
    file.write_text(json.dumps({**known, "dtypes": ["bf16", "fp16"]}))
    (case,) = declared(TargetValues(Target(file)), [{"M": 4, "N": 8}]).cases.values()
    assert {spec.dtype for spec in case.tensors.values()} == {"case"}, "all have the dtype of the case"
    file.write_text(json.dumps({**known, "dtypes": []}))
    with pytest.raises(AssertionError):
        declared(TargetValues(Target(file)), [{"M": 4, "N": 8}])


def test_targets_of_two_modules_share_no_reader(tmp_path, monkeypatch):
    """A module may change its whole process, as by another default dtype."""
    readers, read = iter("abc"), []
    pool = SimpleNamespace(
        spawn=lambda role, python: next(readers),
        discard=lambda *workers: read.extend(workers),
        **dict.fromkeys(("send_ahead", "preload"), lambda *_, **__: None),
    )
    monkeypatch.setattr(operations, "opened", lambda **given: pool)
    monkeypatch.setattr(operations, "keep", lambda pool: None)
    monkeypatch.setattr(operations, "_asked", lambda pool, worker, *rest: read.append(worker) or "softmax")
    files = {tmp_path / f"{place}{number}": (place, ()) for place in ("wide", "plain") for number in range(2)}
    operations.read_in("python", files, ["python"])
    assert "".join(read) == "aaabbb", "each is asked twice, in the order of the files, and discarded"


def test_a_new_function_is_a_note_beside_others():
    facts = {"signature": "x", "lent": False, "file": ""}
    new, old = ({"": {}, "f": facts, "g": facts | error} for error in ({}, {"error": "toy has no g"}))
    infos = [
        SimpleNamespace(name=name, broken="", unavailable="", facts=of)
        for name, of in ((packages.CANDIDATE, new), (packages.REFERENCE, old))
    ]
    side = packages.Environment("it", Path("python"))
    notes = packages.check(SimpleNamespace(infos=infos), packages.Sides(side, side), dict.fromkeys("fg", targets.Target("toy:g")))
    assert notes[0] == "toy:g is new: it: toy has no g"


def test_an_added_parameter_with_a_default_changes_no_call():
    assert packages.callable_as("x, factor=2.0", "x, factor=2.0, out=None")
    assert packages.callable_as("x, *, eps", "x, *, eps, bias=None")
    assert not packages.callable_as("x, factor=2.0", "x, eps=0, factor=2.0")
    assert not packages.callable_as("x, weight", "x, w")


def test_targets_are_read_and_a_mistake_names_its_key(tmp_path):
    file = tmp_path / "softbench.toml"
    file.write_text("margin = 2\n[[target]]\nfunction = 'toy:Norm(8).forward'\nname = 'norm'\ninputs = 'x[M,N]'\nM = 4\nN = '8:32:*2'\n")
    found = targets.read(file)
    assert (found.margin, found.targets[0].label) == (0.02, "norm")
    assert targets.Target("toy.norms:Norm.apply").label == "Norm", "a package has many autograd functions"
    assert targets.Target("toy.norms:rms_norm").label == "toy_rms_norm", "softbench has an operation rms_norm"
    assert found.targets[0].cases == [{"M": 4, "N": 8}, {"M": 4, "N": 16}, {"M": 4, "N": 32}]
    file.write_text("[[target]]\nfunction = 'toy:f'\nop = 'rms_norm'\nM = 4\nN = 8\n")
    assert packages._operation(targets.read(file).targets[0], {})[1] == Sweep((4,), (8,), op=("rms_norm",))
    given = targets.Target("toy:f", inputs="x[M,N]", axes={"M": (4,), "dtype": ("bf16",), "set": ((("K", 2),),)})
    assert packages._operation(given, {given: SimpleNamespace(name="f", cases={})}) == ("f", Sweep(dtype=("bf16",), op=("f",)))
    for text, told in (
        ("[[target]]\nfunction = 'toy'", "function is missing"),
        ("[[target]]\nfunction = 'toy:f'\nshap = '4'", "shap"),
        ("[[target]]\nfunction = 'toy:f'\nop = 'softmax'", "needs M and N"),
        ("[[target]]\nfunction = 'toy:f'\n[[target]]\nfunction = 'toy.b:f'", "two targets are called f"),
        ("margin = 3", "has no target"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=rf"softbench\.toml.*{told}"):
            targets.read(file)


def test_changed_files_choose_the_targets(tmp_path):
    written = {
        "__init__": "from .loss import loss\nfrom .norm import norm\n",
        "norm": "from . import common\n",
        "loss": "import torch\n",
        "common": "",
    }
    for name, code in written.items():
        (tmp_path / "toy").mkdir(exist_ok=True)
        (tmp_path / "toy" / f"{name}.py").write_text(code)
    both = [targets.Target("toy.norm:norm"), targets.Target("toy.loss:loss"), targets.Target("x:y", files=("csrc/*",))]
    chosen = {
        name: [one.label for one in targets.affected(both, [name], tmp_path)]
        for name in ("toy/common.py", "toy/loss.py", "toy/__init__.py", "csrc/a.cu", "README.md", "tests/test_norm.py")
    }
    assert chosen == {
        "toy/common.py": ["norm"],
        "toy/loss.py": ["loss"],
        "toy/__init__.py": ["norm", "loss"],
        "csrc/a.cu": ["norm", "loss", "y"],
        "README.md": [],
        "tests/test_norm.py": [],
    }
    assert targets.affected([targets.Target("elsewhere:f")], ["README.md"], tmp_path), "what it imports is not known"


def test_measurements_are_no_changed_files(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for name in ("results/gate/run-20261129-175705.jsonl", "results/gate/latest.csv", "mine/results/kernel.cu", "mine/new.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    empty_tree = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
    assert targets.changed_files(empty_tree, tmp_path) == ["mine/new.py", "mine/results/kernel.cu"]


def test_a_target_is_named_alone_and_a_subfolder_names_the_folder_of_the_file(main, tmp_path, monkeypatch):
    (tmp_path / "softbench.toml").write_text("[[target]]\nfunction = 'toy:scale'\ninputs = 'x[M,N]'\n")
    code, _, err = main("gate", "--candidate", "scal", "--measure", "memory")
    assert (code, "the targets of softbench.toml are scale" in err) == (2, True), err
    (tmp_path / ".git").mkdir()
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path / "src")
    for words in (("gate",), ("gate", "init")):
        code, _, err = main(*words)
        assert (code, str(tmp_path) in err) == (2, True), err


@pytest.mark.parametrize("gpu", [True, False])
def test_init_finds_kernels_and_benchmarks(tmp_path, monkeypatch, gpu):
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda path, name: iter([path] if gpu else []) if path == Path("/dev") else glob(path, name))
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "__init__.py").write_text("")
    (tmp_path / "toy" / "ops.py").write_text(
        "import triton, torch\n@triton.jit\ndef kernel(x): ...\ndef _own(x): ...\n"
        "def rms_norm(x, weight, eps): ...\ndef rope(q: torch.Tensor): ...\n"
        "class Norm(torch.autograd.Function):\n    def forward(ctx, x): ...\n"
        "class Scale(torch.nn.Module):\n    def __init__(self, size, eps=0): ...\n    def forward(self, x): ...\n"
        "class Plain(torch.nn.Module):\n    def forward(self, x): ...\n"
    )
    (tmp_path / "bench.py").write_text(BENCHMARKS)
    found = {one.function: one.missing or one.inputs for one in scan.scan(tmp_path)}
    assert found == {
        "bench.py:TimeScale.time_scale": "",
        "bench.py:test_scale": "",
        "toy.ops:rms_norm": "x[M,N], weight[N], 1e-6",
        "toy.ops:rope": "q",
        "toy.ops:Norm.apply": "x[M,N]",
        "toy.ops:Scale(size).forward": "size",
        "toy.ops:Plain().forward": "x[M,N]",
    }
    (tmp_path / "softbench.toml").write_text(scan.targets_text(tmp_path)[0])
    found = targets.read(tmp_path / "softbench.toml").targets
    assert len(found) == 5
    assert {"bf16" if gpu else "fp32"} == {dtype for one in found for dtype in one.axes.get("dtype", ())}


def test_the_base_is_where_the_branch_began(tmp_path):
    def git(*words):
        line = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", tmp_path, *words]
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "-q", "-b", "main")
    commits = []
    for name in "ab":
        git("commit", "-qm", name, "--allow-empty")
        commits.append(git("rev-parse", "HEAD"))
    assert packages.base_commit(tmp_path) == commits[0], "on the main branch it is the commit before"
    git("checkout", "-qb", "work")
    git("commit", "-qm", "c", "--allow-empty")
    assert packages.base_commit(tmp_path) == commits[1]
    assert packages.base_commit(Path(tmp_path)) != git("rev-parse", "HEAD")
