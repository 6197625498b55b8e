"""The judge on a GPU: shared memory, figures of honest backends, and attacks that only a GPU has."""

import ctypes
import os
from statistics import median

import pytest
import torch
from wrongs import PLUGINS, load

from softbench.core.case import Case, Direction
from softbench.judge.judgement import Judge
from softbench.judge.main import readable_folders
from softbench.plugins.source import FILE, PluginSource, origins
from softbench.processes.pool import Pool
from softbench.worker import confinement, shared_memory

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

CASE = Case(4096, 16384, "bf16", Direction.FORWARD, "cuda")
SMALL = Case(64, 512, "fp32", Direction.FORWARD, "cuda")
ATTACKS = load(PLUGINS / "wrong" / "judge_attacks.py")
TOLERANCE = 0.03
ON_CPU = ("changes-shared-memory",)
LANDLOCK = max(0, ctypes.CDLL(None).syscall(confinement.LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1))
confined = pytest.mark.skipif(LANDLOCK < 6 or os.uname().machine != "x86_64", reason="this kernel has no landlock 6, or no seccomp table")


@pytest.fixture(scope="module")
def judge():
    with Pool() as pool:
        yield Judge(pool, {}, readable_folders(), {"import": 120, "build": 300, "time": 120}, challenges=5)


def judged(judge, name, case, file=None):
    path = PLUGINS / file if file else None
    source = PluginSource(FILE, path.stem, str(path), path.name) if path else next(one for one in origins(()) if one.label == name)
    return judge.judge(source, case, name)


def test_a_block_is_new_memory_that_torch_reads_and_writes():
    block = shared_memory.create(2**21, "cuda")
    block.bytes.fill_(7)
    values = shared_memory.typed(block.bytes, 512, (16, 8), torch.bfloat16)
    values.fill_(2)
    assert block.bytes[:512].eq(7).all()
    assert values.sum().item() == 256
    other = shared_memory.attach(block.descriptor, 2**21, "cuda")
    assert other.bytes.data_ptr() != block.bytes.data_ptr()
    assert torch.equal(other.bytes, block.bytes)
    values.zero_()
    assert torch.equal(other.bytes, block.bytes)
    block.bytes.zero_()


@pytest.mark.parametrize("name", ["torch", "triton", "cuda"])
def test_an_honest_backend_is_right(judge, name):
    for case in (SMALL, Case(4096, 1000, "fp32", Direction.BACKWARD, "cuda"), Case(512, 4096, "bf16", Direction.BOTH, "cuda")):
        found = judged(judge, name, case)
        assert found.status in ("ok", "skipped"), found
        assert found.confinement["network"] == found.confinement["system calls"]


@pytest.mark.alone
def test_the_figure_is_that_of_do_bench(judge):
    from triton.testing import do_bench

    found = judged(judge, "torch", CASE).document(CASE)
    x = torch.randn(CASE.M, CASE.N, device="cuda", dtype=torch.bfloat16)
    expected = 1e3 * median(do_bench(lambda: torch.softmax(x, -1), warmup=20, rep=100, return_mode="all"))
    assert found["status"] == "ok", found
    assert found["us"] == pytest.approx(expected, rel=TOLERANCE), found
    assert found["at_most_us"] >= found["us"]


@confined
@pytest.mark.parametrize(
    "attack", [attack for attack in ATTACKS if not attack.cuda and attack.name not in ON_CPU], ids=lambda one: one.name
)
def test_an_attack_reaches_nothing_that_counts(judge, attack):
    found = judged(judge, attack.name, Case(16, 96, "fp32", Direction.FORWARD, "cuda"), "wrong/judge_attacks.py")
    assert (found.status, attack.rule in found.reason) == (attack.ends, True), found


@pytest.mark.alone
def test_a_reply_before_the_gpu_is_done_gains_nothing(judge):
    honest = judged(judge, "torch", CASE).document(CASE)
    found = judged(judge, "without-a-wait", CASE, "wrong/judge_attacks.py").document(CASE)
    assert found["status"] == "wrong" or found["us"] >= (1 - TOLERANCE) * honest["us"]


@pytest.mark.parametrize("name", ["damages-its-input", "damages-when-unwatched", "cached-by-address", "stale-memory", "by-thread"])
def test_a_known_trick_gets_no_figure(judge, name):
    assert judged(judge, name, SMALL, "wrong/tricks.py").status in ("wrong", "failed")
