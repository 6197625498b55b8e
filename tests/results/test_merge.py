"""Merging: shards of a sweep come back as one run, and nothing is merged that does not fit."""

from dataclasses import replace
from pathlib import Path

import pytest
from documents import packed
from hypothesis import given, settings, strategies as st

from softbench.core.errors import ResultsError
from softbench.plan.deal import deal
from softbench.results.document import load
from softbench.results.merge import CellLine, Part, merged, notes, without_shard
from softbench.results.records import line_of_record, record_from_json, record_of_line
from softbench.results.rows import rows_of_run

ROOT = Path(__file__).parents[2]
A, B, C = "node1/0/0000000a", "node1/1/0000000b", "node2/0/0000000c"
DOCUMENT = load(ROOT / "results" / "h200" / "odd.json.gz")
RECORDS = [record_from_json({**cell, "unit": A}) for cell in DOCUMENT.pop("cells")]
CASES = list(dict.fromkeys(record.case for record in RECORDS))


def header(unit=A, run="run-1", **about):
    return {**DOCUMENT, "run": run, "units": [{"unit": unit}], **about}


def part(records, unit=A, number=1, **about):
    measured = [replace(record, unit=unit) for record in records]
    found = [CellLine(record.backend, record.case, unit, line_of_record(record)) for record in measured]
    return Part(f"{number}.csv", header(unit, f"run-{number}", **about), found)


def cells(records):
    return {(record.unit, record.backend, record.case): record for record in records}


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.integers(1, 7), st.randoms(use_true_random=False), st.sets(st.sampled_from(range(len(CASES))), min_size=7))
def test_shards_merge_to_what_was_sharded(count, random, chosen):
    """Whatever the number of shards and their order, and whichever cards measured them, every record with its samples is there once."""
    cases = [CASES[i] for i in sorted(chosen)]
    parts, expected = [], []
    for number, some in enumerate(deal(cases, count), 1):
        unit = random.choice([A, B, C])
        parts.append(part([record for record in RECORDS if record.case in some], unit, number, shard=f"{number}/{count}"))
        expected += parts[-1].cells
    random.shuffle(parts)
    head, found = merged(parts)
    assert cells(found) == cells(expected) and len(found) == len(expected)
    assert sum(one["cells"] for one in head["merged"]) == len(found)
    assert not any("without shard" in text for text in notes(parts))
    assert [row.unit for row in rows_of_run((record_of_line(one.line) for one in found), head)] == [record.unit for record in found]


@pytest.mark.parametrize("first", [True, False])
def test_a_merged_document_says_that_a_part_was_interrupted(first):
    parts = [part(RECORDS[:20]), part(RECORDS[20:], B, 2, interrupted=True)]
    parts = parts if first else parts[::-1]
    assert merged(parts)[0]["interrupted"] is True
    assert [text.endswith(", of an interrupted run") for text in notes(parts)] == [not first, first]


def test_a_merged_document_has_the_keys_of_a_run():
    head, _ = merged([part(RECORDS[:20]), part(RECORDS[20:], B, 2)])
    assert set(head) == {*header(), "merged"}
    assert [one["unit"] for one in head["units"]] == [A, B]
    assert head["backends"] == DOCUMENT["backends"]


def test_merging_in_stages_gives_what_merging_at_once_gives():
    """Shards that are there are not called missing, and the fingerprint is not that of the first shard."""
    prints = [{"cases": f"{number} (hash {number})", "torch": torch} for number, torch in ((0, "2.9"), (2, "2.8"), (1, "2.8"))]
    parts = [
        part(RECORDS[number * 20 :][:20], unit, number, shard=f"{number + 1}/4", fingerprint=prints[number])
        for number, unit in enumerate((A, B, C))
    ]
    at_once, _ = merged(parts)
    stages = [Part("m.csv", *merged(parts[:2])), parts[2]]
    assert "without shard 4/4" in notes(stages)
    assert at_once["fingerprint"] == {"cases": "0 (hash 0), 1 (hash 1), 2 (hash 2)", "torch": "2.8, 2.9"}
    assert merged(stages)[0] == at_once


def test_a_cell_twice_from_one_card_is_refused():
    with pytest.raises(ResultsError, match=f"1.csv and 2.csv cannot be merged: both have copy .* of unit {A}; .* leave one file out"):
        merged([part(RECORDS), part(RECORDS[:1], number=2)])
    moved = "node9/7/0000000a"
    with pytest.raises(ResultsError, match="a card measures a cell once"):
        merged([part(RECORDS), part(RECORDS[:1], moved, 2)])  # the same card in another host


def test_more_cells_than_a_file_may_have_are_not_merged(monkeypatch):
    monkeypatch.setattr("softbench.results.merge.MAX_CELLS", len(RECORDS))
    assert merged([part(RECORDS[:20]), part(RECORDS[20:], B, 2)])
    with pytest.raises(
        ResultsError, match=rf"the files have {len(RECORDS) + 1} cells together, and .* at most {len(RECORDS)}: merge fewer"
    ):
        merged([part(RECORDS), part(RECORDS[:1], B, 2)])


def test_a_cell_of_two_cards_is_kept_twice():
    assert len(merged([part(RECORDS), part(RECORDS, B, 2)])[1]) == 2 * len(RECORDS)


@pytest.mark.parametrize(
    ("about", "what"),
    [
        ({"settings": {**DOCUMENT["settings"], "l2": "warm"}}, "l2 is cold and warm"),
        ({"relative_to": "naive"}, "relative_to is torch and naive"),
        ({"sources": {**DOCUMENT["sources"], "torch": "other"}}, "the source of torch is .* and other"),
    ],
)
def test_runs_that_measure_otherwise_are_refused(about, what):
    with pytest.raises(ResultsError, match=f"1.csv and 2.csv cannot be merged: {what}"):
        merged([part(RECORDS[:20]), part(RECORDS[20:], B, 2, **about)])


def test_notes_name_missing_shards_and_other_versions():
    other = {**DOCUMENT["environment"], "torch": "9.9"}
    found = notes([part(RECORDS[:20], shard="1/4"), part(RECORDS[20:], B, 2, shard="3/4", environment=other)])
    assert found[0].startswith("1.csv: 20 cells of ") and found[0].endswith(f"measured by NVIDIA H200 {A}")
    assert "without shard 2/4, 4/4" in found
    assert any(text.startswith("torch differs: ") and text.endswith("9.9") for text in found)


def test_the_command_of_all_shards_has_no_shard():
    assert without_shard("softbench run --shard 2/8 --M 8 --shard=1/2") == "softbench run --M 8"


def test_files_of_earlier_versions_are_not_called_damaged(main):
    older = ROOT / "results" / "h200" / "operations.csv"
    code, _, err = main("merge", older, older, "-o", "all.csv")
    assert code == 2 and err.splitlines()[-1] == f"softbench: {older}: does not say which card measured its cells; measure it again"


@pytest.mark.slow
def test_shards_of_a_run_merge_to_a_single_runs_file(main, tmp_path):
    sweep = ("run", "--backends", "torch,naive", "--device", "cpu", "--M", 8, "--N", "8:40:8", "--quick", "--rounds", 1)
    assert main(*sweep, "--output", "one")[0] == 0
    for number in (1, 2):
        code, _, err = main(*sweep, "--shard", f"{number}/2", "--output", f"s{number}")
        assert code == 0, err
    code, out, err = main("merge", "s2/latest.csv", "s1/latest.csv", "-o", "all.csv")
    assert (code, out) == (0, "all.csv\n")
    assert "s1/latest.csv: 9 cells of 3 cases" in err or "s1/latest.csv: 6 cells of 2 cases" in err
    one, both = (load(tmp_path / name) for name in ("one/latest.json.gz", "all.json.gz"))
    assert set(both) == {*one, "merged"}
    identity = [(cell["backend"], cell["case"], cell["unit"]) for cell in one["cells"]]
    assert [(cell["backend"], cell["case"], cell["unit"]) for cell in both["cells"]] == identity
    lines = [(tmp_path / name).read_text().splitlines() for name in ("one/latest.csv", "all.csv")]
    assert lines[0][0] == lines[1][0] and len(lines[0]) == len(lines[1])
    assert main("show", "all.csv")[0] == 0
    code, _, err = main("merge", "all.csv", "s1/latest.csv", "-o", "more.csv")
    assert code == 2 and "leave one file out" in err
    whole = load(Path("s1/latest.json.gz"))
    damage = [
        {"shard": "x"},
        {"fingerprint": "abc"},
        *({"merged": found} for found in (3, ["x"], [{"shard": "a/b"}], [{"fingerprint": "abc"}])),
    ]
    for one in damage:
        Path("s1/latest.json.gz").write_bytes(packed(whole | one))
        code, _, err = main("merge", "s1/latest.csv", "s2/latest.csv", "-o", "more.csv")
        told = [line for line in err.splitlines() if "has no digest" not in line]
        assert code == 2 and len(told) == 1 and "header is damaged: " in told[0], err
    code, _, err = main("merge", "all.csv", "-o", "all.csv")
    assert code == 2 and "name another one" in err
