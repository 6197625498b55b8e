"""The data that the page's script reads."""

from dataclasses import replace

import pytest

from softbench.core.outcome import Profile
from softbench.report.page import data
from softbench.report.page.source import Source
from softbench.results import rows as results


@pytest.fixture
def made(make_record):
    record = make_record("ours", [20.0] * 4)
    row = results.row(record, None, None, device="H200", run="r")
    return record, row


def source(record, row, **header):
    return Source("a.csv", [row], header, {(row.backend, row.case): record})


def mixed(record):
    """The record with three rounds of three samples and one of a hundred."""
    long = replace(record.outcome.timing.batches[0], samples_us=tuple(map(float, range(1, 101))))
    timing = replace(record.outcome.timing, batches=(*record.outcome.timing.batches[1:], long))
    return replace(record, outcome=replace(record.outcome, timing=timing))


def test_samples_share_the_room_and_small_rounds_keep_all(made, monkeypatch):
    record, row = mixed(made[0]), made[1]
    assert data.samples_of_a_round([record]) == 100
    monkeypatch.setattr(data, "SAMPLES", 59)
    found = data.data([source(record, row)])
    assert (found["rounds"]["shown"], found["rounds"]["count"]) == ([3, 3, 3, 50], [3, 3, 3, 100])
    assert found["samples"][9:12] == [1, 3, 5]
    assert found["quantiles"] == 0


def test_without_room_for_rounds_a_cell_has_quantiles(made, monkeypatch):
    monkeypatch.setattr(data, "SAMPLES", 12)
    found = data.data([source(mixed(made[0]), made[1])])
    assert (found["quantiles"], found["rounds"]["round"], found["rounds"]["count"]) == (9, [None], [109])
    assert (found["samples"][0], found["samples"][-1], len(found["samples"])) == (1, 100, 9)
    assert found["samples"] == sorted(found["samples"])


def test_data_have_no_endless_text(made):
    record, row = made
    outcome = replace(record.outcome, profile=Profile(kernels=("k" * 9000, "f")))
    found = data.data([source(replace(record, outcome=outcome), replace(row, reason="x" * 9000))])
    for text in (found["kernels"][0], found["cells"]["reason"]["words"][0]):
        assert len(text) < data.MAX_TEXT + 100
        assert text.endswith(f"({data.MAX_TEXT} of 9000 characters; the run's JSON has all)")
    assert found["more"]["kernels"]["words"] == ["0 1"]


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
        (
            {"op": "rms"},
            {"command": "softbench run --problem kernelbench:rms.py,k.py --M 8", "problems": {"rms": {}}},
            "--M 4096 --dtype fp32 --direction forward --problem kernelbench:rms.py,k.py",
        ),
        ({"relative_to": "torch"}, {}, "--backends copy,torch,ours "),
    ],
)
def test_command_measures_the_cell_again(made, changes, header, expected):
    assert expected in " ".join(data.command(replace(made[1], **changes), header))
