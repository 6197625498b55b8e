"""`softbench doctor --devices`."""

import pytest
from fleets import FakeCards

from softbench.run.fleet.doctor import examine


def test_the_cards_are_listed_with_what_they_copy():
    found = examine("all", print, lambda devices: FakeCards(us=(100, 101)))
    assert [one[:2] for one in found] == [("cuda:0", "ok"), ("cuda:1", "ok")]
    assert "copy 5369 GB/s" in found[0][2] and found[0][2].startswith("node1/0/")


def test_cards_that_are_apart_or_lost_are_findings():
    cards = FakeCards(("H200",) * 3, us=(100, 110, 100), unopened={2: "no driver"})
    found = examine("all", print, lambda devices: cards)
    assert [one[:2] for one in found[2:]] == [("cuda:2", "missing"), ("cards", "warning")]
    assert "10% apart" in found[-1][2]
    every = FakeCards(unopened={0: "no driver", 1: "no driver"})
    assert examine("all", print, lambda devices: every)[0][:2] == ("cards", "missing")


@pytest.mark.slow
def test_a_host_without_gpus_has_no_cards(main):
    code, _, err = main("doctor", "--devices", "all")
    assert code == 2 and err.startswith("softbench: --devices all: ")
