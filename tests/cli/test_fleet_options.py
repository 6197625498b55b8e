"""The options of runs on several cards."""

import pytest


@pytest.mark.parametrize("text", ["3/2", "x", ""])
def test_a_wrong_shard_is_one_line(main, text):
    code, out, err = main("run", "--device", "cpu", "--shard", text)
    assert (code, out) == (2, "")
    assert err.startswith(f"softbench: --shard '{text}': write ") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--devices", "all", "--ray", "auto"), "--devices all and --ray auto: give one of them"),
        (("--devices", "all", "--device", "cpu"), "--device cpu and --devices all: give one of them"),
        (("--spread", "shard"), "--spread goes with --devices or --ray"),
        (("--force",), "--force goes with --devices or --ray"),
        (("--devices", "all", "--spread", "shart"), "--spread: unknown spread 'shart'; did you mean 'shard'?"),
    ],
)
def test_options_that_contradict_each_other_are_one_line(main, options, why):
    code, out, err = main("run", *options)
    assert (code, out) == (2, "")
    assert err.startswith(f"softbench: {why}") and err.count("\n") == 1
