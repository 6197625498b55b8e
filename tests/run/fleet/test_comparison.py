"""Cards are compared before they share a sweep, and by `softbench doctor --devices`."""

import pytest
from fleets import FakeCards, Note, request

from softbench.core.errors import UsageError
from softbench.run.fleet.comparison import compare, require_alike
from softbench.run.fleet.doctor import examine
from softbench.run.fleet.members import Members


def opened(tmp_path, cards):
    members = Members(cards, request(tmp_path), Note())
    members.open()
    return members


def test_each_card_copies_alone_and_with_the_others(tmp_path):
    found = compare(opened(tmp_path, FakeCards(us=(100, 125))))
    assert [one.member.name for one in found] == ["cuda:0", "cuda:1"]
    assert found[0].alone.gbps == pytest.approx(4096 * 32768 * 2 * 2 / 100e-6 / 1e9)
    assert found[0].text.startswith("copy 5369 GB/s") and "at once" in found[0].text


def test_one_card_has_nothing_to_be_compared_with(tmp_path):
    (one,) = compare(opened(tmp_path, FakeCards(("H200",))))
    assert "at once" not in one.text
    require_alike([one])


def test_only_cards_of_one_model_must_be_alike(tmp_path):
    require_alike(compare(opened(tmp_path, FakeCards(("H200", "B200"), us=(100, 50)))))
    with pytest.raises(UsageError, match=r"cuda:2 and cuda:0 \(H200\) are 50% apart: copy moves 3579 and 5369 GB/s"):
        require_alike(compare(opened(tmp_path, FakeCards(("H200", "B200", "H200"), us=(100, 50, 150)))))


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
