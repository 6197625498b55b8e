"""Records from JSON: what does not fit is refused."""

import math

import pytest

from softbench.results.records import record_from_json, record_to_json


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
