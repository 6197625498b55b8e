"""`--op` on a GPU: log_softmax and an operation from a file, in `run`, `check`, `inspect` and `gate`, with wrong and right plugins."""

import json

import pytest
import torch
from ways import by_cell
from wrongs import LATER, LIMITED, PLUGINS, RIGHT_WAYS, WRONG_WAYS

from softbench.backends import cudnn
from softbench.backends.cuda import backend as cuda
from softbench.backends.torch_compile import backend as compile_backend
from softbench.backends.triton import own
from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops import user_file
from softbench.ops.registry import numerics
from softbench.ops.rowwise import OVER_INT32
from softbench.plugins.traits import operations
from softbench.worker.checking.pre_check import PreCheck

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

LAYER_NORM = PLUGINS / "operations" / "standardize.py"
LAYER_KERNELS = PLUGINS / "operations" / "standardize_kernels.py"
FILES = {"log_softmax": "log_softmax", "standardize": LAYER_NORM}
"""What `--op` takes, by operation."""
WAYS = {**FILES, "cross_entropy": "cross_entropy", "logprob": "logprob", "rms_norm": "rms_norm"}
"""The same, of the operations that plugins compute in right and in wrong ways."""
DEVICE = "cuda"
M, N = 4096, 1024
NOT_HUGE = f"!shape {OVER_INT32}"  # it needs most of the card


@pytest.fixture(scope="module")
def standardize():
    user_file.load(str(LAYER_NORM))


def lines(rows):
    """Rows of a CSV as lines that say what went wrong."""
    return [" ".join(row[name] for name in ("backend", "direction", "dtype", "N", "status", "class", "reason")) for row in rows]


def measured(cli, *arguments, codes=(0,)):
    """The rows of a run, as `by_cell`; the run must end with one of these exit codes."""
    done = cli("run", *arguments, "--quick", timeout=800)
    assert done.returncode in codes, f"exit code {done.returncode}\n{done.stderr[-3000:]}\n{done.stdout[-3000:]}"
    return by_cell(cli.folder / "results" / "latest.csv")


def cells(ways, operation):
    """Way and direction of the ways to compute an operation. A sum of one term after the other is too slow here."""
    few = [way for way in ways if operation in way.operations and "serial" not in way.name and "one-by-one" not in way.name]
    return [(way, direction) for way in few for direction in way.makers]


def verdicts(ways, operation, dtype):
    """The verdicts of the check before timing, by backend and direction. Workers of so many backends would fill the GPU with contexts."""
    found = {}
    for way, direction in cells(ways, operation):
        case = Case(256, 4096, dtype, Direction(direction), DEVICE, operation)
        given = numerics(operation).make(case, 0, torch.device(DEVICE))
        found[way.name, direction] = PreCheck(case, way.prepare(case), given, way, None).run(3)
    return found


# The bounds of the norms in 16 bits allow what some of the wrong ways do.
WRONG_IN = [(operation, dtype) for operation in WAYS for dtype in ("fp32", "bf16") if dtype == "fp32" or "norm" not in operation]


@pytest.mark.parametrize(("operation", "dtype"), WRONG_IN)
def test_wrong_ways_are_rejected(standardize, operation, dtype):
    found = verdicts([way for way in WRONG_WAYS if way.name not in LATER], operation, dtype)
    assert len({name for name, _ in found}) >= 10
    assert {cell: verdict for cell, verdict in found.items() if verdict.grade is not Grade.WRONG} == {}


@pytest.mark.parametrize("operation", WAYS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_right_ways_are_accepted(standardize, operation, dtype):
    found = verdicts(RIGHT_WAYS, operation, dtype)
    assert len({name for name, _ in found}) >= 4
    unexpected = {
        cell: verdict
        for cell, verdict in found.items()
        if verdict.grade is Grade.WRONG or (verdict.grade is not Grade.PASS and cell[0] not in LIMITED)
    }
    assert unexpected == {}


@pytest.mark.parametrize("operation", WAYS)
def test_a_run_rejects_wrong_plugins_and_measures_right_ones(cli, operation):
    """Three of each, and what is right until its calls seem unchecked."""
    wrong, right = ([way for way in ways if operation in way.operations] for ways in (WRONG_WAYS, RIGHT_WAYS))
    few = [*wrong[:3], *(way for way in wrong[3:] if way.name in LATER), *right[:3]]
    files = [part for folder in ("wrong", "correct") for part in ("--plugin", PLUGINS / folder / "operations.py")]
    names = ",".join(way.name for way in few)
    given = ("--op", WAYS[operation], *files, "--backends", names, "--M", 256, "--N", 4096, "--dtype", "fp32")
    found = measured(cli, *given, "--direction", "forward,backward,both,fused", codes=(1,))
    rows = [found[way.name, direction] for way in few for direction in way.makers]
    assert lines(row for row in rows if row["status"] != ("wrong" if row["backend"].startswith("wrong") else "ok")) == []
    assert lines(row for row in rows if bool(row["gbps"]) != (row["status"] == "ok")) == []


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_every_backend_measures_log_softmax_or_says_why_not(cli, dtype):
    extras = "jit-trace,jit-script,fx,compile-torch,compile:reduce-overhead,compile:aot_eager"
    given = ("--op", "log_softmax", "--backends", f"all,{extras}", "--M", 512, "--N", 1000, "--dtype", dtype)
    found = measured(cli, *given, "--direction", "forward,backward,both")
    assert {row["op"] for row in found.values()} == {"log_softmax"}
    assert lines(row for row in found.values() if row["status"] not in ("ok", "skipped", "unavailable")) == []
    assert lines(row for row in found.values() if row["status"] != "ok" and not row["reason"]) == []
    required = {"copy", "torch", "naive", "compile", *extras.split(",")}
    ok = {name for name in required if all(found.get((name, way), {}).get("status") == "ok" for way in ("forward", "backward", "both"))}
    assert required - ok == set(), "\n".join(lines(row for row in found.values() if row["backend"] in required - ok))
    for row in found.values():
        lacks = row["reason"].startswith("it has no log_softmax")
        assert not (lacks and row["backend"] in ("cudnn", "flaggems")), lines([row])
    if dtype == "fp32":
        assert lines(found[name, "forward"] for name in ("torch", "naive", "compile") if found[name, "forward"]["class"] != "pass") == []


def findings(cli, operation, backends, *more):
    """The findings of `check`; none is wrong or failed."""
    done = cli("check", "--op", operation, "--backends", backends, *more, "--json", "-", timeout=850)
    assert done.stdout.startswith("{"), done.stderr[-3000:]
    found = json.loads(done.stdout)["findings"]
    assert found, done.stderr[-3000:]
    bad = [one for one in found if one["verdict"] not in ("pass", "low-precision", "skipped")]
    assert [f"{one['backend']} {one['item']} {one['direction']} {one['dtype']}: {one['verdict']} {one['reason']}" for one in bad] == []
    assert done.returncode == 0, done.stderr[-3000:]
    return found


def test_torch_and_naive_pass_the_check_cases_of_log_softmax(cli):
    found = findings(cli, "log_softmax", "torch,naive", "--case", NOT_HUGE)
    assert {(one["backend"], one["direction"]) for one in found} == {
        (name, way) for name in ("torch", "naive") for way in ("forward", "backward", "both")
    }
    assert {one["verdict"] for one in found if one["dtype"] == "fp32"} <= {"pass", "skipped"}


def test_a_compiled_log_softmax_passes_normal_and_structured_rows(cli):
    able = ["compile", "jit-script", *([] if cudnn.backend.available() else ["cudnn"])]
    findings(cli, "log_softmax", ",".join(able), "--case", "shape 37x256")
    findings(cli, "log_softmax", "compile,jit-script", "--case", "structured 37x1002")


@pytest.mark.parametrize("backend", [cuda, own], ids=lambda backend: backend.name)
def test_our_kernels_pass_the_check_cases_of_log_softmax(cli, backend):
    if "log_softmax" not in [name.partition("(")[0] for name in operations(backend)]:
        pytest.skip(f"{backend.name} has no log_softmax")
    found = findings(cli, "log_softmax", backend.name, "--case", NOT_HUGE)
    assert "pass" in {one["verdict"] for one in found}
    assert {one["verdict"] for one in found} <= {"pass", "skipped"}


def looked_at(cli, name, *more):
    """The document of `inspect`."""
    done = cli("inspect", name, "--M", M, "--N", N, "--json", "all.json", "--show", "none", *more, timeout=400)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads((cli.folder / "all.json").read_text())


@pytest.mark.parametrize(("direction", "tensors"), [("forward", 2), ("backward", 3)])
@pytest.mark.parametrize("name", ["torch", "compile"])
def test_inspect_shows_the_kernels_of_log_softmax(cli, name, direction, tensors):
    if name == "compile" and (reason := compile_backend.available()):
        pytest.skip(reason)
    found = looked_at(cli, name, "--op", "log_softmax", "--direction", direction)
    moved, names = sum(launch["moved_bytes"] or 0 for launch in found["launches"]), [launch["name"] for launch in found["launches"]]
    assert len(names) >= 1
    assert name != "torch" or any("softmax" in kernel.lower() for kernel in names), names
    assert tensors * M * N * 4 <= moved <= 1.05 * tensors * M * N * 4, (moved, names)
    assert name != "compile" or any("@triton.jit" in artifact["text"] for artifact in found["artifacts"])


def test_an_operation_from_a_file_is_measured_checked_and_inspected(cli):
    given = ("--op", LAYER_NORM, "--plugin", LAYER_KERNELS)
    found = measured(cli, *given, "--backends", "layer-*,torch", "--M", M, "--N", N, "--dtype", "bf16", "--direction", "forward,backward")
    for direction in ("forward", "backward"):
        rows = [found[name, direction] for name in ("copy", "layer-torch", "layer-compile")]
        assert lines(row for row in rows if row["status"] != "ok" or not float(row["gbps"] or 0) > 0) == []
        assert found["torch", direction]["status"] == "skipped"
        assert found["torch", direction]["reason"].startswith("it has no standardize")
    checked = findings(cli, LAYER_NORM, "layer-torch", "--plugin", LAYER_KERNELS)
    assert {one["verdict"] for one in checked} == {"pass"}
    inspected = looked_at(cli, "layer-compile", *given, "--dtype", "bf16")
    assert len(inspected["launches"]) >= 1


@pytest.mark.parametrize(
    ("op", "directions"),
    [
        *((op, "forward,backward") for op in ("layer_norm", "add_rms_norm", "cross_entropy(reduction=mean)")),
        *(("matmul(K=4096)", "forward"), ("linear_cross_entropy", "forward,fused")),
    ],
)
def test_passes_that_are_compared_as_a_whole_are_measured(cli, op, directions):
    found = measured(cli, "--op", op, "--M", M, "--N", N, "--dtype", "bf16", "--direction", directions)
    assert lines(row for row in found.values() if row["status"] not in ("ok", "skipped", "unavailable")) == []
    assert all(found["torch", direction]["status"] == "ok" for direction in directions.split(","))
    assert ("compute-bound" in found["torch", "forward"]["labels"]) == op.startswith(("matmul", "linear"))


@pytest.mark.alone  # other work on the GPU would change the verdict
@pytest.mark.parametrize(("candidate", "reference", "code"), [("naive", "torch", 1), ("torch", "naive", 0)])
def test_the_gate_judges_log_softmax(cli, candidate, reference, code):
    given = ("--op", "log_softmax", "--candidate", candidate, "--reference", reference, "--M", M, "--N", f"{N},2000", "--json", "-")
    done = cli("gate", *given, timeout=850)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    cases = {verdict["case"] for verdict in json.loads(done.stdout)["verdicts"]}
    assert cases == {f"log_softmax-forward-fp32-{M}x{columns}" for columns in (N, 2000)}
