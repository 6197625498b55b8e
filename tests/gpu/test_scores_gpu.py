"""Masked softmax on a GPU: every check case of the backends, long and odd shapes of the kernels, and a run with its yardstick."""

import pytest
import torch
from masked_softmaxes import LIMITED, NAME, RIGHT, WRONG, WRONG_BACKWARD, B, F, op_of
from ways import by_cell

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
)
SHAPES = (
    (8, 12, 197, 197),
    (2, 3, 1000, 1000),
    (1, 4, 4096, 4096),
    (1, 2, 1024, 16384),
    (1, 1, 2048, 12289),
    (1, 1, 8200, 8200),
    (3, 2, 130, 66),
    (1, 1, 1, 1),
)
CUDA = "cuda"


def case_of(text, dtype, direction, sizes):
    rows = sizes[0] * sizes[1] * sizes[2]
    return Case(rows, sizes[3], dtype, direction, CUDA, op_of(text), "x".join(map(str, sizes)))


def graded(call, case):
    return PreCheck(case, call, any_dim.make(case, 0, torch.device(CUDA)), object(), None).run(3)


@pytest.mark.parametrize("text", SETTINGS)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_kernels_pass_on_all_shapes(text, dtype):
    for sizes in SHAPES:
        for direction in (F, B):
            case = case_of(text, dtype, direction, sizes)
            found = graded(own.prepare(case), case)
            assert found.grade is Grade.PASS, (case.key, found)


@pytest.mark.parametrize("text", SETTINGS)
@pytest.mark.parametrize("backend", [own, torch_eager.backend], ids=["triton", "torch"])
def test_every_check_case_is_right(backend, text):
    op = op_of(text)
    runner = CheckCaseRunner(backend, CUDA, operation=op)
    for dtype in ("fp32", "bf16", "fp16"):
        for item in numerics(op).check_cases(op):
            if "over-2^31" in item.name:  # it needs most of the card
                continue
            found = runner.run(item.name, item.direction, dtype, 0)
            right = (Grade.PASS,) if backend is own or dtype == "fp32" else (Grade.PASS, Grade.LOW_PRECISION)
            assert not isinstance(found, str), (item.name, found)
            assert found.grade in right, (item.name, item.direction, dtype, found)


@pytest.mark.alone
@pytest.mark.parametrize("direction", [F, B])
def test_more_than_2_to_the_31_elements_are_right(direction):
    for text in ("causal=true", "mask=boolean,causal=true,sink=true"):
        found = CheckCaseRunner(own, CUDA, operation=op_of(text)).run("over-2^31-elements", direction, "bf16", 0)
        assert isinstance(found, str) or found.grade is Grade.PASS, found
        torch.cuda.empty_cache()


@pytest.mark.parametrize("name", [name for name in RIGHT if name != "lower half"])
def test_right_ways_are_accepted_on_a_gpu(name):
    for text in ("sink=true", "mask=boolean"):
        for direction in (F, B):
            case = case_of(text, "bf16", direction, (2, 3, 256, 257))
            found = graded(RIGHT[name](case), case)
            assert found.grade in ({Grade.PASS, Grade.LOW_PRECISION} if name in LIMITED else {Grade.PASS}), (text, found)


@pytest.mark.parametrize("wrongs", [WRONG, WRONG_BACKWARD], ids=["forward", "backward"])
def test_wrong_ways_are_rejected_on_a_gpu(wrongs):
    direction = F if wrongs is WRONG else B
    for name, (texts, make) in wrongs.items():
        case = case_of(texts[0], "bf16", direction, (2, 3, 40, 65))
        assert graded(make(case), case).grade is Grade.WRONG, name


def test_a_programs_gradients_are_those_of_torch():
    from softbench.kernels.triton.masked_softmax import masked_softmax

    x = torch.randn(2, 4, 100, 120, device=CUDA, requires_grad=True)
    sink = torch.randn(4, device=CUDA, requires_grad=True)
    keep = torch.rand(2, 1, 1, 120, device=CUDA) < 0.7
    keep[..., 0] = True
    dy = torch.randn_like(x)
    later = torch.ones(100, 120, dtype=torch.bool, device=CUDA).triu(21)
    z = (0.3 * x.double()).masked_fill(~keep, -torch.inf).masked_fill(later, -torch.inf)
    p = torch.softmax(torch.cat([z, sink.double()[:, None, None].expand(2, 4, 100, 1)], -1), -1)[..., :-1]
    y = masked_softmax(x, scale=0.3, mask=keep, causal=True, sink=sink)
    torch.testing.assert_close(y.double(), p, atol=1e-6, rtol=1e-5)
    for found, expected in zip(torch.autograd.grad(y, (x, sink), dy), torch.autograd.grad(p, (x, sink), dy.double()), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


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
