"""The options of runs on several cards."""

import os

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
        (("--devices", "all", "--spread", ""), "--spread: unknown spread ''"),
    ],
)
def test_options_that_contradict_each_other_are_one_line(main, options, why):
    code, out, err = main("run", *options)
    assert (code, out) == (2, "")
    assert err.startswith(f"softbench: {why}") and err.count("\n") == 1


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_cards_that_do_not_exist_are_one_line(cli, more):
    done = cli("run", "--devices", "70,90", *more)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("softbench: --devices 70,90: ") and done.stderr.count("\n") == 1
    assert not list(cli.folder.iterdir())


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_more_threads_than_a_card_has_processors_are_refused(cli):
    """As for a run on one processor; the folder of the results is not created."""
    cards = ",".join(f"cpu:{number}" for number in range(len(os.sched_getaffinity(0))))
    done = cli("run", "--devices", cards, "--backends", "torch", "--M", 8, "--N", 8, "--threads", 2)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == "softbench: --threads 2: must be at most 1, the processors of the card cpu"
    assert not list(cli.folder.iterdir())


@pytest.mark.slow
def test_a_dry_run_shows_the_cases_of_each_card(cli):
    done = cli("run", "--devices", "cpu:0", "--backends", "torch", "--M", 8, "--N", "8,16,24", "--dry-run")
    assert done.returncode == 0, done.stderr
    *_, whole, card = done.stdout.splitlines()
    assert whole.startswith("3 cases x 2 backends (copy, torch) = 6 cells") and " on 1 card (" in whole
    assert (
        card.startswith("cpu:0 (")
        and ": 3 cases, about " in card
        and card.endswith("forward-fp32-8x8, forward-fp32-8x16, forward-fp32-8x24")
    )
    assert not list(cli.folder.iterdir())
