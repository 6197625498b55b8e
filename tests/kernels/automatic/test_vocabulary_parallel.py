"""Losses of a vocabulary that is split across two ranks, unevenly; `two_ranks.py` in tests/support has the cases."""

import os
from pathlib import Path

SUPPORT = Path(__file__).parents[2] / "support"
CODE = f"import sys; sys.path.append({str(SUPPORT)!r}); import torch; torch.set_num_threads(1); import two_ranks\n"
WITH_KERNELS = "from softbench.kernels.triton import losses, vocabulary_parallel\ntwo_ranks.run(losses, vocabulary_parallel)"


def test_a_split_vocabulary_gives_what_one_card_gives(forks):
    done = forks().run_code(f"{CODE}two_ranks.run()", dict(os.environ), 120)
    assert done.stdout == "fine\n", done.stderr[-2000:]


def test_the_kernels_of_one_card_take_a_part_of_the_vocabulary(run_interpreted):
    run_interpreted(CODE + WITH_KERNELS)
