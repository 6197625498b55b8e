"""Results of several cards: each is judged against its own baseline."""

import json
from pathlib import Path

import pytest
from synthetic import Change, several, write

ROOT = Path(__file__).parents[2]
A, B, C = "node1/0/0000000a", "node1/1/0000000b", "node2/0/0000000c"
SLOWER = Change(slower=frozenset(range(10)), factor=1.3)


@pytest.fixture
def document():
    return json.loads((ROOT / "results" / "h200" / "odd.json").read_text())


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def of_unit(document, unit, **about):
    return {**document, "units": [{"unit": unit}], **about}


def together(run, **parts):
    """One document of several units, from a document for each."""
    first = next(iter(parts.values()))
    cells = [{**cell, "unit": unit} for unit, part in zip((A, B), parts.values(), strict=True) for cell in part["cells"]]
    return {**first, "run": run, "units": [{"unit": A}, {"unit": B}], "cells": cells}


def judged(main, *arguments):
    code, out, err = main("gate", *arguments, "--json", "-")
    return code, json.loads(out)["verdicts"] if out else [], err


def test_a_baseline_of_another_card_is_refused_or_widened(main, here, document):
    base = write(of_unit(several(document, 10, seed=1), A), "base.json")
    other = write(of_unit(several(document, 3, seed=2), B), "other.json")
    code, _, err = judged(main, other, "--baseline", base)
    assert code == 3 and f"unit was {A}, now it is {B}" in err and "--allow-env-mismatch unit" in err
    code, verdicts, _ = judged(main, other, "--baseline", base, "--allow-env-mismatch", "unit")
    assert code == 0 and verdicts


def test_the_same_card_in_another_host_is_judged(main, here, document):
    base = write(of_unit(several(document, 10, seed=1), A), "base.json")
    moved = write(of_unit(several(document, 3, seed=2), "node9/5/0000000a"), "moved.json")
    assert judged(main, moved, "--baseline", base)[0] == 0


def test_older_files_without_a_unit_are_judged(main, here, document):
    base = write(several(document, 10, seed=1), "base.json")
    assert judged(main, write(of_unit(several(document, 3, seed=2), B), "new.json"), "--baseline", base)[0] == 0


def test_each_card_is_judged_against_its_own(main, here, document):
    """Card B has always been slower than A by 30 %, which is no regression."""
    base = together("run-1", a=several(document, 10, seed=1), b=several(document, 10, seed=2, change=SLOWER))
    new = together("run-2", a=several(document, 3, seed=3), b=several(document, 3, seed=4, change=SLOWER))
    worse = together("run-3", a=several(document, 3, seed=3, change=SLOWER), b=several(document, 3, seed=4, change=SLOWER))
    code, verdicts, _ = judged(main, write(new, "new.json"), "--baseline", write(base, "base.json"))
    assert code == 0
    assert {verdict["unit"] for verdict in verdicts} == {A, B}
    code, verdicts, _ = judged(main, write(worse, "worse.json"), "--baseline", "base.json")
    assert code == 1
    assert {verdict["unit"] for verdict in verdicts if verdict["state"] == "slower"} == {A}


def test_a_saved_baseline_keeps_the_units(main, here, document):
    base = write(together("run-1", a=several(document, 10, seed=1), b=several(document, 10, seed=2, change=SLOWER)), "base.json")
    assert main("baseline", "save", base, "--name", "two")[0] == 0
    assert A in main("baseline", "show", "two")[1]
    alone = write(of_unit(several(document, 3, seed=4, change=SLOWER), B), "alone.json")
    assert judged(main, alone, "--baseline", "two")[0] == 0  # against the part of card B
    stranger = write(of_unit(several(document, 3, seed=4), C), "stranger.json")
    code, _, err = judged(main, stranger, "--baseline", "two")
    assert code == 3 and f"the baseline is of {A}, {B}" in err
