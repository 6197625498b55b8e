"""Losses of a vocabulary that is split across two ranks, unevenly; `two_ranks.py` in tests/support has the cases."""

import os
from pathlib import Path

import pytest
import triton
from softbench.kernels.triton import vocabulary_parallel as small
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

SUPPORT = Path(__file__).parents[2] / "support"
CODE = f"import sys; sys.path.append({str(SUPPORT)!r}); import torch; torch.set_num_threads(1); import two_ranks\n"
WITH_KERNELS = "from softbench.kernels.triton import losses, vocabulary_parallel\ntwo_ranks.run(losses, vocabulary_parallel)"


def test_a_split_vocabulary_gives_what_one_card_gives(forks):
    done = forks().run_code(f"{CODE}two_ranks.run()", dict(os.environ), 120)
    assert done.stdout == "fine\n", done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="nothing is compiled under TRITON_INTERPRET=1")
@pytest.mark.parametrize("number", ["*i64", "i32"])
def test_the_merging_kernel_is_compiled(number):
    kinds = ["*fp32", "*i64", number, number, "*fp32", "*fp32", "*i64", "*fp32", "i32", "i32", "i32", "fp32"]
    for reduction, rows in ((0, small.ROWS), (1, small.ROWS_TOGETHER)):
        constants = {"RANKS": 2, "REDUCTION": reduction, "ROWS": rows}
        signature = dict(zip(small._merge.arg_names, [*kinds, *["constexpr"] * 3], strict=True))
        options = {"num_warps": rows // small.ROWS_OF_WARP}
        assert triton.compile(ASTSource(small._merge, signature, constants), target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]


def test_the_kernels_of_one_card_take_a_part_of_the_vocabulary(run_interpreted):
    run_interpreted(CODE + WITH_KERNELS)
