"""The lines of the table of cells, and the data that the page's script reads."""

from dataclasses import replace

import pytest

from softbench.core.outcome import Profile, Telemetry
from softbench.report.page import cells, details
from softbench.report.page.source import Source
from softbench.results import rows, rows as results


def test_each_column_of_a_line_is_that_of_the_head(make_record):
    """Of several files, the file stands behind the backend, where it is seen without scrolling."""
    row = rows.row(make_record("ours", [20.0]), None, None, device="H200", run="r")
    for names in (["a.csv"], ["a.csv", "b.csv"]):
        sources = [Source(name, [row]) for name in names]
        found = [dict(zip((column.name for column in cells.columns(sources)), line.texts, strict=True)) for line in cells.lines(sources)]
        assert [line.get("file") for line in found] == (names if len(names) > 1 else [None])
        assert {(line["backend"], line["pass"], line["median"]) for line in found} == {("ours", "forward", "20 us")}
        assert [*found[0]][:2] == (["backend", "file"] if len(names) > 1 else ["backend", "pass"])


@pytest.fixture
def made(make_record):
    record = make_record("ours", [20.0] * 4)
    row = results.row(record, None, None, device="H200", run="r")
    return record, row


def source(record, row, **header):
    return Source("a.csv", [row], header, {(row.backend, row.case): record})


def test_samples_share_the_room_and_small_rounds_keep_all(make_record, monkeypatch):
    record = make_record("ours", [20.0] * 4)  # four rounds of three samples
    long = replace(record.outcome.timing.batches[0], samples_us=tuple(map(float, range(1, 101))))
    timing = replace(record.outcome.timing, batches=(*record.outcome.timing.batches[1:], long))
    mixed = replace(record, outcome=replace(record.outcome, timing=timing))
    assert details.samples_of_a_round([mixed]) == 100
    monkeypatch.setattr(details, "SAMPLES", 59)
    assert details.samples_of_a_round([mixed]) == 50
    row = results.row(mixed, None, None, device="H200", run="r")
    rounds = details.data([source(mixed, row)])["more"][0]["rounds"]
    assert [(len(one[-1]), one[-2]) for one in rounds] == [(3, 3)] * 3 + [(50, 100)]
    assert rounds[-1][-1][:3] == [1.0, 3.0, 5.0]


def test_data_have_no_infinity_and_no_endless_text(made):
    record, row = made
    batches = tuple(
        replace(batch, telemetry=Telemetry(sm_clock_mhz=float("inf"), throttled="x" * 9000)) for batch in record.outcome.timing.batches
    )
    outcome = replace(record.outcome, timing=replace(record.outcome.timing, batches=batches), profile=Profile(kernels=("k" * 9000, "f")))
    found = details.data([source(replace(record, outcome=outcome), replace(row, error_over_bound=float("inf")))])
    assert found["more"][0]["rounds"][0][4] == "inf"
    assert found["cells"][0][found["columns"].index("error_over_bound")] == "inf"
    assert len(found["kernels"][0]) < details.MAX_TEXT + 100
    assert found["kernels"][0].endswith(f"({details.MAX_TEXT} of 9000 characters; the run's JSON has all)")
    assert found["more"][0]["kernels"] == [0, 1]


@pytest.mark.parametrize(
    ("changes", "header", "expected"),
    [
        ({}, {}, "softbench run --backends copy,ours --M 4096 --N 256 --dtype fp32 --direction forward"),
        ({"op": "softmax(scale=0.7)"}, {}, "--direction forward --op softmax --set scale=0.7"),
        ({"shape": "16x256x256@dim1", "M": 4096}, {}, "--shape 16x256x256 --dim 1 --dtype"),
        ({"timer": "graph", "l2": "warm"}, {}, "--timer graph --l2 warm"),
        ({}, {"command": "softbench run --plugin 'my k.py' --device=cpu --M 4"}, "--plugin 'my k.py' --device=cpu"),
        ({}, {"command": "softbench 'open"}, "--direction forward"),
        (
            {"op": "rms_norm"},
            {"command": "softbench run --op rms_norm.py --plugin k.py", "environment": {"operations": {"rms_norm": "1"}}},
            "--op rms_norm.py --plugin k.py",
        ),
        (
            {"op": "rms_norm"},
            {"command": "softbench run --op a.py,b.py", "environment": {"operations": {"rms_norm": "1"}}},
            "--op rms_norm",
        ),
        ({"relative_to": "torch"}, {}, "--backends copy,torch,ours "),
    ],
)
def test_command_measures_the_cell_again(made, changes, header, expected):
    assert expected in details.command(replace(made[1], **changes), header)
