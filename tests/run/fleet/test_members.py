"""The messages between a fleet and its cards, which are compared before they share a sweep, and by `softbench doctor --devices`."""

from contextlib import contextmanager
from dataclasses import asdict, replace

import pytest
from fleets import FakeCards, Note, request

from softbench.core.errors import NotMeasurableError, UsageError
from softbench.run.fleet import members as members_module
from softbench.run.fleet.comparison import compare, require_alike
from softbench.run.fleet.doctor import examine
from softbench.run.fleet.members import CardsLostError, Members
from softbench.run.plan_of import plan_of


def opened(tmp_path, models=("H200", "H200"), **about):
    members = Members(FakeCards(models, **about), request(tmp_path), Note())
    members.open()
    return members


def say(members, number, **message):
    members.cards.events.put((number, message))
    members.take(lambda member, process, records: None)


@pytest.mark.parametrize(("wait", "cards", "log_of"), [(True, 2, ["begin", 0, 1, "end"]), (False, 2, [0, 1]), (True, 1, [0])])
def test_cards_of_two_commands_do_not_open_at_once(tmp_path, monkeypatch, wait, cards, log_of):
    """Otherwise each command could hold a card for which the other waits. Cards that do not measure hold none, and one waits for one."""
    log = []

    @contextmanager
    def several(note):
        log.append("begin")
        yield
        log.append("end")

    class Logged(FakeCards):
        def send(self, number, message):
            log.append(number)
            super().send(number, message)

    monkeypatch.setattr(members_module.place_queue, "several", several)
    members = Members(Logged(("H200",) * cards), request(tmp_path), Note())
    members.open(wait=wait)
    assert all(member.plan for member in members.all)
    assert log == log_of


def test_cards_in_use_are_left_out_until_none_is_left(tmp_path):
    members = opened(tmp_path)
    say(members, 0, op="error", text="in use", code=5)
    members.require(members.alive)
    say(members, 1, op="error", text="in use", code=5)
    with pytest.raises(NotMeasurableError, match=r"^[^;]*: in use; [^;]*: in use$"):
        members.require(members.alive)
    members.all[0].too_busy = False
    with pytest.raises(CardsLostError):
        members.require(members.alive)


def test_an_invalid_message_costs_the_card(tmp_path):
    members = opened(tmp_path)
    for number, message in enumerate(({"op": "records", "process": 0, "records": [{}]}, {"op": "beat", "doing": "x", "left": "soon"})):
        say(members, number, **message)
    assert [member.lost for member in members.all] == [
        "it sent an invalid message: KeyError: 'outcome'",
        "it sent an invalid message: Expected `float`, got `str` - at `$.left`",
    ]
    assert members.cards.killed == [0, 1]


@pytest.mark.parametrize(
    "message",
    [
        {"op": "records", "process": 1e400, "records": []},
        {"op": "opened", "machine": asdict(FakeCards().machine()), "gpu": 9, "unit": "u", "infos": [], "unsupported": []},
    ],
    ids=lambda message: message["op"],
)
def test_a_number_out_of_range_costs_the_card(tmp_path, message):
    members = opened(tmp_path)
    say(members, 1, **message)
    assert [member.lost.partition(":")[0] for member in members.all] == ["", "it sent an invalid message"]


def test_a_card_that_never_speaks_is_lost_later(tmp_path, monkeypatch):
    monkeypatch.setattr(members_module, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(members_module, "FIRST_SECONDS", 3600.0)
    cards = FakeCards()
    cards.hung = {0, 1}
    members = Members(cards, request(tmp_path), Note())
    members.take()
    assert len(members.alive) == 2
    monkeypatch.setattr(members_module, "FIRST_SECONDS", 0.0)
    members.take()
    assert [member.lost for member in members.all] == ["it said nothing for 0 s"] * 2


def test_cards_of_one_host_have_one_note(tmp_path):
    members = opened(tmp_path)
    for number in (0, 1):
        say(members, number, op="note", text="1 other process is using this GPU")
    assert list(members.observer) == ["cuda:0: 1 other process is using this GPU"]


def test_what_a_run_leaves_out_is_told_once(tmp_path, monkeypatch):
    monkeypatch.setattr(members_module, "plan_of", lambda *given: replace(plan_of(*given), lost=("mine is left out",)))
    assert opened(tmp_path).observer.losses == ["cuda:0: mine is left out"]


def test_logs_of_failed_workers_name_their_card(tmp_path):
    members, logs = opened(tmp_path), []
    members.keep_log = lambda label, text: logs.append((label, text))
    say(members, 1, op="log", label="torch", text="Traceback")
    assert logs == [("cuda:1 torch", "Traceback")]


def test_a_wrong_request_is_one_error(tmp_path):
    members = opened(tmp_path)
    with pytest.raises(UsageError, match="--backends: unknown backend"):
        say(members, 0, op="error", text="--backends: unknown backend 'x'", code=2)


def test_without_any_card_the_reasons_are_given(tmp_path):
    with pytest.raises(CardsLostError, match="cuda:0 is lost: no driver; cuda:1 is lost: no driver"):
        opened(tmp_path, unopened={0: "no driver", 1: "no driver"})


def test_each_card_copies_alone_and_with_the_others(tmp_path):
    found = compare(opened(tmp_path, us=(100, 125)))
    assert [one.member.name for one in found] == ["cuda:0", "cuda:1"]
    assert found[0].alone.gbps == pytest.approx(4096 * 32768 * 2 * 2 / 100e-6 / 1e9)
    assert found[0].text.startswith("copy 5369 GB/s") and "at once" in found[0].text


def test_one_card_has_nothing_to_be_compared_with(tmp_path):
    (one,) = compare(opened(tmp_path, ("H200",)))
    assert "at once" not in one.text
    require_alike([one])


def test_only_cards_of_one_model_must_be_alike(tmp_path):
    require_alike(compare(opened(tmp_path, ("H200", "B200"), us=(100, 50))))
    with pytest.raises(UsageError, match=r"cuda:2 and cuda:0 \(H200\) are 50% apart: copy moves 3579 and 5369 GB/s"):
        require_alike(compare(opened(tmp_path, ("H200", "B200", "H200"), us=(100, 50, 150))))


def test_the_cards_are_listed_with_what_they_copy():
    found = examine("all", Note().note, lambda devices: FakeCards(us=(100, 101)))
    assert [one[:2] for one in found] == [("cuda:0", "ok"), ("cuda:1", "ok")]
    assert "copy 5369 GB/s" in found[0][2] and found[0][2].startswith("node1/0/")


def test_cards_that_are_apart_or_lost_are_findings():
    cards = FakeCards(("H200",) * 3, us=(100, 110, 100), unopened={2: "no driver"})
    found = examine("all", Note().note, lambda devices: cards)
    assert [one[:2] for one in found[2:]] == [("cuda:2", "missing"), ("cards", "warning")]
    assert "10% apart" in found[-1][2]
    every = FakeCards(unopened={0: "no driver", 1: "no driver"})
    assert examine("all", Note().note, lambda devices: every)[0][:2] == ("cards", "missing")
