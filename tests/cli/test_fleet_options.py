"""The options of runs on several cards."""

import pytest


@pytest.mark.parametrize("text", ["3/2", "x"])
def test_a_wrong_shard_is_one_line(main, text):
    code, out, err = main("run", "--device", "cpu", "--shard", text)
    assert (code, out) == (2, "")
    assert err.startswith(f"softbench: --shard '{text}': write ") and err.count("\n") == 1
