"""The spread between processes of a card: measured by one run, read by the next, and part of every row's interval."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

from softbench.core.outcome import Batch, Timing
from softbench.core.statistics import SPREAD, SPREAD_FROM
from softbench.results.rows import row
from softbench.run import process_spread


@pytest.fixture
def plan(monkeypatch, tmp_path):
    monkeypatch.setenv("SOFTBENCH_CACHE", str(tmp_path))
    settings = SimpleNamespace(processes=3, timer="queued")
    return SimpleNamespace(settings=settings, device="cuda", unit="node1/0/0000000a")


@pytest.fixture
def measured(make_record):
    """Forty cells of 100 us in three processes, which spread by 2 %."""
    rng = random.Random(0)

    def cell(N):
        record = make_record("ours", [100.0], N=N)
        batches = [
            Batch(process, turn, 0, (us,) * 3) for process in range(3) for us in (100 * (1 + rng.gauss(0, 0.02)),) for turn in range(3)
        ]
        return replace(record, outcome=replace(record.outcome, timing=Timing(tuple(batches), "queued")))

    records = [cell(N) for N in range(256, 296)]
    return [(record, replace(row(record, None, None, device="H200", run="r"), labels="")) for record in records]


def test_a_run_of_several_processes_measures_its_card(plan, measured):
    assert process_spread.facts(plan) == {SPREAD: 0.003, SPREAD_FROM: "default"}
    found = process_spread.keep(plan, "run-1", measured)
    assert found[SPREAD] == pytest.approx(0.02, rel=0.25)
    assert found[SPREAD_FROM] == "measured by run-1: 40 cells of 3 processes"
    assert process_spread.facts(plan) == found
    [file] = process_spread._file(plan).parent.iterdir()
    text = file.read_text()
    file.write_text(text.replace(f'"sd":{found[SPREAD]}', '"sd":0.5').replace(f'"sd": {found[SPREAD]}', '"sd": 0.5'))
    assert file.read_text() != text
    assert process_spread.facts(plan)[SPREAD_FROM] == "default"  # a digit was changed
    file.write_text(text)
    plan.unit = "node2/5/0000000a"
    assert process_spread.facts(plan) == found  # the same card in another host
    plan.unit = "node1/0/0000000b"
    assert process_spread.facts(plan)[SPREAD_FROM] == "default"


def test_few_short_or_doubtful_cells_measure_nothing(plan, measured):
    doubtful = [(record, replace(one, labels="noisy")) for record, one in measured]
    short = [(record, replace(one, median_us=9.0)) for record, one in measured]
    for some in (measured[:5], doubtful, short):
        assert process_spread.keep(plan, "run-1", some) == {}
    plan.settings.processes = 2
    assert process_spread.keep(plan, "run-1", measured) == {}
    assert process_spread.facts(plan)[SPREAD_FROM] == "default"


@pytest.mark.parametrize("text", ["", "3", "{}", '{"sd": 7, "from": "x"}', '{"sd": "nan", "from": "x"}', '{"sd": 0.1, "from": 3}'])
def test_a_damaged_file_counts_as_none(plan, measured, tmp_path, text):
    process_spread.keep(plan, "run-1", measured)
    (file,) = tmp_path.glob("process-spread/*.json")
    file.write_text(text)
    assert process_spread.facts(plan)[SPREAD_FROM] == "default"


def test_a_host_time_has_the_spread_of_the_host(plan, measured):
    process_spread.keep(plan, "run-1", measured)
    plan.settings.timer = "host"
    assert process_spread.facts(plan) == {SPREAD: 0.01, SPREAD_FROM: "default"}


def test_rows_have_the_spread_of_their_document(make_record):
    record = make_record("ours", [1000.0] * 3)
    widths = [
        found.high_us - found.low_us
        for facts in ({}, {SPREAD: 0.003}, {SPREAD: 0.05})
        for found in (row(record, None, None, device="H200", run="r", facts=facts),)
    ]
    assert widths[0] == pytest.approx(widths[1])
    assert widths[2] > 2 * widths[1]
