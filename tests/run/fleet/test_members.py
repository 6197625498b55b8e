"""The messages between a fleet and its cards."""

from contextlib import contextmanager
from dataclasses import asdict

import pytest
from fleets import FakeCards, Note, request

from softbench.core.errors import UsageError
from softbench.run.fleet import members as members_module
from softbench.run.fleet.members import CardsLostError, Members


def opened(tmp_path, **about):
    members = Members(FakeCards(**about), request(tmp_path), Note())
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
