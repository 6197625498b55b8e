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
def test_the_small_kernels_are_compiled(number):
    rows, of_two = {"ROWS": 256}, {"RANKS": 2, "ROWS": 256}
    of_rows = ["*i64", "*i1", "*fp32"]
    for kernel, kinds, constants in (
        (small._begin, ["*bf16", "*i64", number, *of_rows, "*fp32", "i64", "i64", "i32", "i32"], rows),
        (small._merge, ["*fp32", "*i64", number, "*fp32", "*fp32", "i32", "i32", "fp32"], of_two),
        (
            small._gradient,
            ["*i64", "*fp32", "*fp32", "i32", "*i64", *of_rows, number, "*i64", "*fp32", "*fp32", "i32", "i32", "fp32"],
            rows,
        ),
    ):
        signature = dict(zip(kernel.arg_names, [*kinds, *["constexpr"] * len(constants)], strict=True))
        assert triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", 90, 32)).asm["ptx"]


def test_the_kernels_of_one_card_take_a_part_of_the_vocabulary(run_interpreted):
    run_interpreted(CODE + WITH_KERNELS)
