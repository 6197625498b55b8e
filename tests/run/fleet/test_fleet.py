"""A run on several cards: what is dealt, what a lost card costs, and what is stored. Some tests have real cards of the CPU."""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from fleets import BACKENDS, FakeCards, Note, request
from hypothesis import HealthCheck, given, settings, strategies as st
from sampled import sampled
from timed import wait_for

from softbench.core.errors import Interrupted, NotMeasurableError, StorageError, UsageError
from softbench.plan.estimate import load_seconds, run_seconds
from softbench.results import writer
from softbench.results.document import load
from softbench.run.fleet import fleet, members
from softbench.run.fleet.doctor import Notes
from softbench.run.fleet.fleet import How, run
from softbench.run.fleet.members import CardsLostError

N = list(range(256, 1536, 256))


def measured(cards, asked, spread="shard", force=False, observer=None):
    return run(How(lambda asked: cards, spread, force), asked, Note() if observer is None else observer, lambda kept: None)


def cells(kept):
    return Counter((record.backend, record.case.N) for record in kept.records())


def test_cases_are_dealt_to_equal_cards_whole(tmp_path):
    cards = FakeCards()
    kept = measured(cards, request(tmp_path))
    assert cells(kept) == {(name, n): 1 for name in BACKENDS for n in N}
    assert {number for number, _ in cards.dealt} == {0, 1}
    for n in N:  # the backends of a case share a card
        assert len({record.unit for record in kept.records() if n == record.case.N}) == 1
    assert cards.closed
    rows = kept.rows()
    assert [row.N for row in rows] == [n for n in N for _ in BACKENDS]  # the order of the sweep
    document = load(kept.json)
    assert [one["unit"] for one in document["units"]] == ["node1/0/00000000", "node1/1/00000001"]
    assert (tmp_path / "latest.csv").read_text() == kept.csv.read_text()
    assert document["seconds"]["time"] == 2.0


def test_replicate_measures_everything_on_every_card(tmp_path):
    kept = measured(FakeCards(us=(100, 130)), request(tmp_path), "replicate")
    assert cells(kept) == {(name, n): 2 for name in BACKENDS for n in N}
    assert {row.unit: row.median_us for row in kept.rows()} == {"node1/0/00000000": 100, "node1/1/00000001": 130}
    assert all(row.speedup == pytest.approx(1) for row in kept.rows() if row.backend == "naive")  # over torch of its own card


def test_models_are_kept_apart(tmp_path):
    kept = measured(FakeCards(("H200", "H200", "B200"), us=(100, 100, 50)), request(tmp_path))
    assert cells(kept) == {(name, n): 2 for name in BACKENDS for n in N}
    assert Counter(row.device for row in kept.rows()) == {"H200": len(BACKENDS) * len(N), "B200": len(BACKENDS) * len(N)}
    assert kept.header["device_name"] == "H200 and B200"


def test_a_dry_run_tells_what_each_card_would_measure(tmp_path):
    models, asked = ("H200", "H200", "B200"), request(tmp_path)
    dealt = fleet.dry_run(How(lambda asked: FakeCards(models)), asked, Note())
    cards = FakeCards(models)
    measured(cards, asked)
    assert [(hand.name, [case.N for case in hand.cases]) for hand in dealt] == [(f"cuda:{number}", N) for number, N in cards.dealt]
    every = fleet.dry_run(How(lambda asked: FakeCards(models), "replicate"), asked, Note())
    assert [len(hand.cases) for hand in every] == [len(N)] * 3
    with pytest.raises(CardsLostError, match="no driver"):
        fleet.dry_run(How(lambda asked: FakeCards(unopened={0: "no driver", 1: "no driver"})), asked, Note())


def test_the_cells_of_all_cards_are_counted_before_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr("softbench.plan.plan.MAX_CELLS", 20)
    measured(FakeCards(), request(tmp_path))
    for start in (measured, lambda cards, asked, spread: fleet.dry_run(How(lambda asked: cards, spread), asked, Note())):
        with pytest.raises(UsageError, match="5 cases x 3 backends x 2 cards = 30 cells"):
            start(FakeCards(), request(tmp_path / "all"), "replicate")
    assert not (tmp_path / "all").exists()


def test_cards_that_differ_share_no_sweep(tmp_path):
    with pytest.raises(UsageError, match=r"cuda:1 and cuda:0 \(H200\) are 3% apart: .* or add --force"):
        measured(FakeCards(us=(100, 103)), request(tmp_path))
    assert not list(tmp_path.glob("run-*"))
    assert cells(measured(FakeCards(us=(100, 103)), request(tmp_path), force=True)).total() == len(BACKENDS) * len(N)
    assert measured(FakeCards(us=(100, 101)), request(tmp_path))


def test_cards_are_compared_before_the_sweep(tmp_path):
    cards = FakeCards()
    measured(cards, request(tmp_path))
    assert [op for _, op in cards.log] == ["open"] * 2 + ["copy"] * 4 + ["measure"] * 2


def test_a_wrong_request_ends_a_comparison(tmp_path):
    """It does not say that the cards differ."""

    class Refusing(FakeCards):
        def _measure(self, number, message):
            self.events.put((number, {"op": "error", "text": "--timer: no such timer", "code": 2}))

    seen, cards = Note(), Refusing()
    with pytest.raises(UsageError, match="--timer: no such timer"):
        measured(cards, request(tmp_path), observer=seen)
    assert list(seen) == []
    assert cards.log[-1][1] == "copy"


def test_a_card_whose_backends_do_not_load_is_left_out(tmp_path):
    seen = Note()
    kept = measured(FakeCards(unopened={0: "out of memory"}), request(tmp_path), observer=seen)
    assert cells(kept) == {(name, n): 1 for name in BACKENDS for n in N}
    assert seen.losses == ["cuda:0 is lost: out of memory"]


@pytest.mark.parametrize("how", sampled(["dies", "copy fails", "forgets"], lambda how: how == "copy fails"))
def test_other_cards_measure_the_cases_of_a_lost_card(tmp_path, how):
    seen = Note()
    cards = FakeCards(("H200",) * 3, fails={1: (1, how)})
    kept = measured(cards, request(tmp_path), observer=seen)
    assert cells(kept) == {(name, n): 1 for name in BACKENDS for n in N}
    assert all(row.status == "ok" for row in kept.rows())
    assert any(text.startswith("cuda:1 is lost: ") for text in seen)
    assert cards.killed == [1]
    assert seen.pace.done == seen.pace.cells


def test_a_silent_card_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(members, "SILENT_SECONDS", 1.2)
    seen = Note()
    kept = measured(FakeCards(fails={0: (1, "hangs")}), request(tmp_path), observer=seen)
    assert cells(kept) == {(name, n): 1 for name in BACKENDS for n in N}
    assert "cuda:0 is lost: it said nothing for 1.2 s" in seen


def test_process_sets_of_a_case_are_of_one_card(tmp_path):
    """Card 1 has measured one process set of a case when it is lost: the other card measures both, and that record is removed."""
    cards = FakeCards(fails={1: (3, "dies")})
    kept = measured(cards, request(tmp_path, processes=2))
    assert all(row.processes == 2 for row in kept.rows())
    assert cells(kept) == {(name, n): 1 for name in BACKENDS for n in N}


def test_a_case_that_breaks_copy_everywhere_is_a_failure(tmp_path):
    cards = FakeCards(fails={0: (0, "copy fails"), 1: (0, "copy fails")})
    kept = measured(cards, request(tmp_path))
    assert cards.killed == [0] or cards.killed == [1]  # only one card is given up for it
    assert {row.status for row in kept.rows()} == {"failed"}


def test_without_a_card_left_the_run_can_be_resumed(tmp_path):
    """What the cards measured is stored, with the reason of each; a later run with one of them measures only the rest."""
    with pytest.raises(CardsLostError, match=r"cases? of run-.* could not be measured: cuda:0 is lost: .*; cuda:1 is lost"):
        measured(FakeCards(fails={0: (2, "dies"), 1: (1, "dies")}), request(tmp_path))
    assert not (tmp_path / "latest.csv").exists()
    (csv,) = tmp_path.glob("run-*.csv")
    before = csv.read_text().splitlines()
    assert len(before) == 1 + 3 * len(BACKENDS)
    cards, seen = FakeCards(), Note()
    kept = measured(cards, request(tmp_path, resume=True), observer=seen)
    assert sum(len(some) for _, some in cards.dealt) == len(N) - 3
    assert cells(kept) == {(name, n): 1 for name in BACKENDS for n in N}
    assert f"resuming {kept.name}: 9 cells are there already" in seen
    assert set(before) <= set(kept.csv.read_text().splitlines())


def test_resuming_without_the_card_that_died_keeps_its_cells(tmp_path):
    with pytest.raises(CardsLostError):
        measured(FakeCards(fails={0: (1, "dies"), 1: (1, "dies")}), request(tmp_path))
    one = FakeCards(("H200",))
    kept = measured(one, request(tmp_path, resume=True))
    assert len({row.unit for row in kept.rows()}) == 2
    assert {row.device for row in kept.rows()} == {"H200"}
    assert sum(len(some) for _, some in one.dealt) == len(N) - 2


def test_a_card_that_joins_a_resumed_run_is_recorded(tmp_path):
    for models, fails in ((("H200",), {0: (1, "dies")}), (("H200",) * 3, {i: (i > 0, "dies") for i in range(3)})):
        with pytest.raises(CardsLostError):
            measured(FakeCards(models, fails=fails), request(tmp_path, resume=True))
    kept = measured(FakeCards(("H200",)), request(tmp_path, resume=True))
    assert len(kept.header["units"]) == 3
    assert {row.device for row in kept.rows()} == {"H200"}


def test_a_resumed_run_that_ends_before_its_first_case_writes_its_document_again(tmp_path):
    with pytest.raises(CardsLostError):
        measured(FakeCards(fails={0: (1, "dies"), 1: (1, "dies")}), request(tmp_path))
    (document,) = tmp_path.glob("run-*.json.gz")

    def interrupted(kept):
        assert not document.exists()
        raise Interrupted(signal.SIGINT)

    with pytest.raises(Interrupted):
        run(How(lambda asked: FakeCards()), request(tmp_path, resume=True), Note(), interrupted)
    stored = load(document)
    assert (len(stored["cells"]), stored["interrupted"]) == (2 * len(BACKENDS), True)


def test_a_dry_run_tells_of_a_lost_card_as_of_a_loss(tmp_path):
    told = []
    cards = FakeCards(unopened={0: "out of memory"})
    fleet.dry_run(How(lambda asked: cards), request(tmp_path), Notes(lambda text, *, error=False: told.append((text, error))))
    assert told == [("cuda:0 is lost: out of memory", True)]


def test_a_full_disk_ends_every_card(tmp_path, monkeypatch):
    added = []

    def full(self, process, records):
        added.append(records)
        if len(added) == 3:
            raise StorageError("--output: the disk is full")
        return before(self, process, records)

    before = writer.Run.add
    monkeypatch.setattr(writer.Run, "add", full)
    cards = FakeCards()
    with pytest.raises(StorageError):
        measured(cards, request(tmp_path))
    assert cards.closed
    monkeypatch.undo()
    kept = measured(FakeCards(), request(tmp_path, resume=True))
    assert cells(kept) == {(name, n): 1 for name in BACKENDS for n in N}


def test_other_versions_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"cuda:1 has torch 2\.9, and cuda:0 has 2\.13: install one version on all hosts"):
        measured(FakeCards(torch={1: "2.9"}), request(tmp_path))


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_cell_is_measured_once_whatever_fails(tmp_path_factory, data):
    """Any number of cards, process sets and losses: with one card left, each cell is there once, from one card a case."""
    count = data.draw(st.integers(2, 4))
    fails = {
        number: (data.draw(st.integers(0, 4)), data.draw(st.sampled_from(["dies", "copy fails", "forgets"])))
        for number in data.draw(st.sets(st.integers(0, count - 2)))
    }
    kept = measured(
        FakeCards(("H200",) * count, fails=fails), request(tmp_path_factory.mktemp("run"), processes=data.draw(st.integers(1, 2)))
    )
    assert cells(kept) == {(name, n): 1 for name in BACKENDS for n in N}
    assert len({(record.case, record.unit) for record in kept.records()}) == len(N)


ARGUMENTS = ("run", "--devices", "cpu:0,cpu:1", "--force", "--backends", "torch,naive", "--M", 64, "--N", "8:96:8", "--rounds", 2)
needs_two = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two cards of the CPU need two processors")


def card_processes(cli):
    """The numbers of the processes of the cards."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            ours = entry.name.isdigit() and cli.mark.encode() in (entry / "environ").read_bytes()
            if ours and b"fleet.card import main" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return sorted(found)


@pytest.mark.slow
@needs_two
def test_an_interrupted_fleet_is_resumed_and_loses_a_card(cli):
    """Two real cards in parallel; one of the resumed run is killed. Every cell is measured once, and no process is left."""
    process = cli.start(*ARGUMENTS)
    wait_for(lambda: len({row["unit"] for row in cli.rows("run-*.csv")}) == 2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted; what was measured is in" in err and "Traceback" not in err
    assert cli.left_behind() == []
    before = cli.rows("run-*.csv")
    process = cli.start(*ARGUMENTS, "--resume")
    wait_for(lambda: len(cli.rows("run-*.csv")) > len(before))  # both cards have cases now, and most are left
    os.kill(card_processes(cli)[1], signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode in (0, NotMeasurableError.exit_code), err  # the latter on a busy host
    assert f"{len(before)} cells are there already" in err
    assert "cpu:1 is lost: its process was killed (SIGKILL)" in err
    after = cli.rows("run-*.csv")
    assert Counter((row["backend"], row["N"]) for row in after) == {(b, str(n)): 1 for b in BACKENDS for n in range(8, 97, 8)}
    assert {row["status"] for row in after} == {"ok"}
    document = cli.document()
    assert {cell["unit"] for cell in document["cells"]} == {one["unit"] for one in document["units"]}
    key = ("backend", "N", "unit", "median_us")
    assert {tuple(row[k] for k in key) for row in before} <= {tuple(row[k] for k in key) for row in after}
    assert cli.left_behind() == []


@pytest.mark.slow
def test_the_fleet_ends_with_its_parent(cli):
    """A fleet that is killed leaves no card behind."""
    process = cli.start("run", "--devices", "cpu:0", "--backends", "torch", "--M", 8, "--N", "8:800:8")
    wait_for(lambda: len(cli.rows("run-*.csv")) >= 2)
    process.kill()
    process.communicate(timeout=30)
    wait_for(lambda: cli.left_behind() == [], 30)


def test_the_pace_names_two_cards_at_most():
    busy = [members.Member(number, f"cuda:{number}", working=True, doing="time of torch") for number in range(3)]
    assert fleet.FleetPace(busy[:2], 9, 3).doing() == "cuda:0: time of torch; cuda:1: time of torch"
    assert fleet.FleetPace(busy, 9, 3).doing() == "cuda:0: time of torch; 2 more cards"


def test_the_estimate_is_told_from_the_first_line_on(tmp_path):
    told = []

    class Seen(Note):
        def begin(self, plan, pace, name):
            told.append((pace.seconds_left(), pace))

    measured(FakeCards(), request(tmp_path), observer=Seen())
    measured(FakeCards(("H200",)), request(tmp_path / "one"), observer=Seen())
    (shared, over), (alone, _) = told
    assert 0 < shared < alone
    assert over.seconds_left() == 0
    plan = over.members[0].known
    assert alone == pytest.approx(run_seconds(plan) - sum(load_seconds(plan, BACKENDS, later=False).values()))  # they are loaded
