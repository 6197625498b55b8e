"""Our kernels of attention scores on a GPU: every check case, long and odd shapes, and a run with its yardstick."""

import pytest
import torch
from masked_softmaxes import LIMITED, NAME, RIGHT, TOGETHER, WRONG, WRONG_BACKWARD, B, F, op_of
from sampled import with_dtypes
from ways import by_cell, slug
from wrongs import PLUGINS

from softbench.backends import torch_eager
from softbench.backends.triton import own
from softbench.core.case import Case
from softbench.core.outcome import Grade
from softbench.ops.registry import numerics
from softbench.worker.checking import any_dim
from softbench.worker.checking.check_case import CheckCaseRunner
from softbench.worker.checking.pre_check import PreCheck

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

SETTINGS = (
    "",
    "causal=true,scale=0.125",
    "mask=boolean,mask_axes=BN",
    "scale=0.3,mask=additive,mask_axes=HSN,causal=true,sink=true",
    "mask=boolean,mask_axes=SN,causal=true,sink=true",
    "mask=additive,mask_axes=BHSN",
    "mask=boolean,causal=true",
)
SHAPES = (
    (8, 12, 197, 197),
    (2, 3, 1000, 1000),
    (4, 12, 128, 128),
    (1, 4, 4096, 4096),
    (1, 2, 1024, 16384),
    (1, 1, 2048, 12289),
    (1, 1, 300, 16383),
    (1, 1, 8200, 8200),
    (3, 2, 130, 66),
    (1, 1, 1, 1),
)
DEVICE = "cuda"


def case_of(text, dtype, direction, sizes):
    rows = sizes[0] * sizes[1] * sizes[2]
    return Case(rows, sizes[3], dtype, direction, DEVICE, op_of(text), "x".join(map(str, sizes)))


def graded(call, case, seed=0):
    return PreCheck(case, call, any_dim.make(case, seed, torch.device(DEVICE)), object(), None).run(3)


@pytest.mark.parametrize("text", SETTINGS)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_kernels_pass_on_all_shapes(text, dtype):
    for sizes in SHAPES:
        for direction in (F, B):
            case = case_of(text, dtype, direction, sizes)
            found = graded(own.prepare(case), case)
            assert found.grade is Grade.PASS, (case.key, found)


@with_dtypes("text", SETTINGS)
@pytest.mark.parametrize("backend", [own, torch_eager.backend], ids=["triton", "torch"])
def test_every_check_case_is_right(backend, text, dtype):
    op = op_of(text)
    runner = CheckCaseRunner(backend, DEVICE, operation=op)
    for item in numerics(op).check_cases(op):
        if "over-2^31" in item.name:  # it needs most of the card
            continue
        found = runner.run(item.name, item.direction, dtype, 0)
        right = (Grade.PASS, Grade.LOW_PRECISION) if backend is torch_eager.backend and dtype != "fp32" else (Grade.PASS,)
        assert not isinstance(found, str), (item.name, found)
        assert found.grade in right, (item.name, item.direction, found)


@pytest.mark.alone
@pytest.mark.parametrize("direction", [F, B])
def test_more_than_2_to_the_31_elements_are_right(direction):
    for text in ("causal=true", "mask=boolean,causal=true,sink=true"):
        found = CheckCaseRunner(own, DEVICE, operation=op_of(text)).run("over-2^31-elements", direction, "bf16", 0)
        assert isinstance(found, str) or found.grade is Grade.PASS, found
        torch.cuda.empty_cache()


@pytest.mark.alone
def test_a_run_measures_scores_beside_their_yardstick(cli):
    done = cli(
        "run", "--quick", "--op", NAME, "--set", "causal=true,sink=true,mask=boolean", "--shape", "2x8x1024x1024", "--dtype", "bf16",
        "--direction", "forward,backward", "--backends", "triton,torch,naive,compile,copy", timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = by_cell(cli.folder / "results" / "latest.csv")
    assert {row["status"] for row in found.values()} == {"ok"}, found
    assert {found["triton", direction]["class"] for direction in ("forward", "backward")} == {"pass"}


@pytest.mark.parametrize("text", TOGETHER.values())
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_right_ways_are_accepted(text, dtype):
    for name, make in RIGHT.items():
        allowed = {Grade.PASS, Grade.LOW_PRECISION} if name in LIMITED else {Grade.PASS}
        cases = [case_of(text, dtype, direction, (2, 3, 40, 65)) for direction in (F, B)]
        assert {graded(make(case), case, seed=3).grade for case in cases} <= allowed, name


@pytest.mark.alone
def test_a_run_rejects_wrong_plugins_and_measures_right_ones(cli):
    names = [f"wrong-masked-{slug(name)}" for name in ("one later key", "sink ignored", "dsink of the other sign", "zeros")]
    names += [f"right-masked-{slug(name)}" for name in ("float32", "two tiles", "torch")]
    files = [part for folder in ("wrong", "correct") for part in ("--plugin", PLUGINS / folder / "operations.py")]
    given = ("--op", NAME, "--set", TOGETHER["causal order and sinks"], "--shape", "2x8x512x512", "--direction", "forward,backward")
    done = cli("run", "--quick", *given, *files, "--backends", ",".join(names), timeout=800)
    assert done.returncode == 1, done.stderr[-3000:]
    found = by_cell(cli.folder / "results" / "latest.csv")
    measured = {cell: row["status"] for cell, row in found.items() if cell[0] in names and row["status"] != "skipped"}
    assert len(measured) == 4 + 1 + 2 * 3
    assert {cell: status for cell, status in measured.items() if status != ("wrong" if cell[0].startswith("wrong") else "ok")} == {}


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("wrongs", [WRONG, WRONG_BACKWARD], ids=["forward", "backward"])
def test_wrong_ways_are_rejected(wrongs, dtype):
    direction = F if wrongs is WRONG else B
    for name, (texts, make) in wrongs.items():
        case = case_of(texts[0], dtype, direction, (2, 3, 40, 65))
        assert graded(make(case), case, seed=3).grade is Grade.WRONG, name
