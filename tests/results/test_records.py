"""Records from JSON: what does not fit is refused."""

import json
import math
from dataclasses import replace

import pytest

from softbench.core.outcome import Judged
from softbench.results.records import merge, record_from_json, record_to_json


@pytest.mark.parametrize("samples", [[], ["5"], [True], [1.0, math.nan], [None], [0], [-1.0], [math.inf], [math.nan], "123", 5])
def test_samples_are_positive_numbers_and_nothing_else(make_record, samples):
    data = record_to_json(make_record("ours", [10.0]))
    assert record_from_json(data) == make_record("ours", [10.0])
    data["outcome"]["timing"]["batches"][0]["samples_us"] = samples
    with pytest.raises((TypeError, ValueError)):
        record_from_json(data)


@pytest.mark.parametrize("change", [{"kind": "nonsense"}, {"profile": None}, {"timing": {"batches": []}}, {"build": None}])
def test_a_damaged_outcome_is_refused(make_record, change):
    data = record_to_json(make_record("ours", [10.0]))
    data["outcome"].update(change)
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        record_from_json(data)


def test_the_times_of_the_judge_stay_in_the_file(make_record):
    plain = make_record("ours", [10.0])
    record = replace(plain, outcome=replace(plain.outcome, judged=Judged(2, 9.5, 9.25, 10.0, 11.0)))
    data = record_to_json(record)
    assert data["outcome"]["judged"] == {"judgements": 2, "us": 9.5, "low_us": 9.25, "high_us": 10.0, "at_most_us": 11.0}
    assert record_from_json(json.loads(json.dumps(data))) == record
    assert merge([record, plain]).outcome.judged == record.outcome.judged
    assert "judged" not in record_to_json(plain)["outcome"]


@pytest.mark.parametrize(
    "judged", [{}, {"judgements": 0}, {"judgements": 1, "us": -1.0}, {"judgements": 1, "us": "5"}, {"judgements": True}, [], 5]
)
def test_an_invalid_judgement_is_refused(make_record, judged):
    data = record_to_json(make_record("ours", [10.0]))
    data["outcome"]["judged"] = judged
    with pytest.raises((TypeError, ValueError)):
        record_from_json(data)
