"""Results of several cards: each is judged against its own baseline."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from gating import cell_samples, key, run_samples
from synthetic import Change, several, write

from softbench.gate import units
from softbench.results.document import load

ROOT = Path(__file__).parents[2]
A, B, C = "node1/0/0000000a", "node1/1/0000000b", "node2/0/0000000c"
SLOWER = Change(slower=frozenset(range(10)), factor=1.3)


@pytest.fixture
def document():
    """A run of few shapes."""
    whole = load(ROOT / "results" / "h200" / "odd.json.gz")
    sizes = sorted({cell["case"]["N"] for cell in whole["cells"]})[::3]
    return {**whole, "cells": [cell for cell in whole["cells"] if cell["case"]["N"] in sizes]}


def of_unit(document, unit, **about):
    return {**document, "units": [{"unit": unit}], **about}


def together(run, **parts):
    """One document of several units, from a document for each."""
    first = next(iter(parts.values()))
    cells = [{**cell, "unit": unit} for unit, part in zip((A, B), parts.values(), strict=True) for cell in part["cells"]]
    return {**first, "run": run, "units": [{"unit": A}, {"unit": B}], "cells": cells}


def shared(run, *, a, b, first=True):
    """One document in which card A measured every second case, and card B the others; with `first=False` the other way round."""
    cases = list(dict.fromkeys(json.dumps(cell["case"]) for cell in a["cells"]))
    of_a = set(cases[::2] if first else cases[1::2])
    parts = [[cell for cell in part["cells"] if (json.dumps(cell["case"]) in of_a) is mine] for part, mine in ((a, True), (b, False))]
    return together(run, a={**a, "cells": parts[0]}, b={**b, "cells": parts[1]})


def judged(main, *arguments):
    code, out, err = main("gate", *arguments, "--json", "-")
    return code, json.loads(out)["verdicts"] if out else [], err


def test_a_baseline_of_another_card_is_refused_or_widened(main, document):
    base = write(of_unit(several(document, 10, seed=1), A), "base.json")
    other = write(of_unit(several(document, 3, seed=2), B), "other.json")
    code, _, err = judged(main, other, "--baseline", base)
    assert code == 3 and f"unit was {A}, now it is {B}" in err and "--allow-env-mismatch unit" in err
    code, verdicts, _ = judged(main, other, "--baseline", base, "--allow-env-mismatch", "unit")
    assert code == 0 and verdicts


def test_the_same_card_in_another_host_is_judged(main, document):
    base = write(of_unit(several(document, 10, seed=1), A), "base.json")
    moved = write(of_unit(several(document, 3, seed=2), "node9/5/0000000a"), "moved.json")
    assert judged(main, moved, "--baseline", base)[0] == 0


def test_older_files_without_a_unit_are_judged(main, document):
    older = {**document, "units": [], "cells": [{**cell, "unit": ""} for cell in document["cells"]]}
    base = write(several(older, 10, seed=1), "base.json")
    assert judged(main, write(of_unit(several(document, 3, seed=2), B), "new.json"), "--baseline", base)[0] == 0


def test_each_card_is_judged_against_its_own(main, document):
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


def test_a_part_has_its_own_sittings():
    samples = cell_samples(*[(20.0,)] * 10)
    first, second = (replace(samples, processes={i: samples.processes[i] for i in some}) for some in (range(5), range(5, 10)))
    run = run_samples({key("ours")._replace(unit=A): first, key("ours")._replace(unit=B): second}, processes=10)
    parts = units.split(replace(run, units={A: {}, B: {}, C: {}}))  # no cell is of C
    assert [one.processes for part in parts for one in part.sittings] == [tuple(range(5)), tuple(range(5, 10))] and len(parts) == 2


def test_a_saved_baseline_keeps_the_units(main, document):
    base = write(together("run-1", a=several(document, 10, seed=1), b=several(document, 10, seed=2, change=SLOWER)), "base.json")
    assert main("baseline", "save", base, "--name", "two")[0] == 0
    assert A in main("baseline", "show", "two")[1]
    alone = write(of_unit(several(document, 3, seed=4, change=SLOWER), B), "alone.json")
    assert judged(main, alone, "--baseline", "two")[0] == 0  # against the part of card B
    stranger = write(of_unit(several(document, 3, seed=4), C), "stranger.json")
    code, _, err = judged(main, stranger, "--baseline", "two")
    assert code == 3 and f"the baseline is of {A}, {B}" in err and "--allow-env-mismatch unit" in err


def test_a_card_that_a_baseline_lacks_is_judged_if_asked(main, document):
    """The stranger is judged against one card of its model: B has been slower by 30 %, and is of another model."""
    base = together("run-1", a=several(document, 10, seed=1), b=several(document, 10, seed=2, change=SLOWER))
    base["units"] = [{"unit": B, "gpu": "another GPU"}, {"unit": A}]
    write(base, "base.json")
    allowed = ("--baseline", "base.json", "--allow-env-mismatch", "unit")
    code, verdicts, err = judged(main, write(of_unit(several(document, 3, seed=4), C), "same.json"), *allowed)
    assert code == 0 and {verdict["state"] for verdict in verdicts} == {"same"}, err
    slow = write(of_unit(several(document, 3, seed=4, change=SLOWER), C), "slow.json")
    code, verdicts, _ = judged(main, slow, *allowed)
    assert code == 1 and len([verdict for verdict in verdicts if verdict["state"] == "slower"]) == 10
    notes = json.loads(main("gate", slow, *allowed, "--json", "-")[1])["notes"]
    assert f"compared although different: unit was {A}, now it is {C}" in notes


def test_cells_dealt_to_other_cards_are_inconclusive(main, document):
    base = shared("run-1", a=several(document, 10, seed=1), b=several(document, 10, seed=2))
    base["command"] = "softbench run --config odd --devices 0,1"
    same = shared("run-2", a=several(document, 3, seed=3), b=several(document, 3, seed=4))
    swapped = shared("run-3", a=several(document, 3, seed=3), b=several(document, 3, seed=4), first=False)
    main("baseline", "save", write(base, "base.json"), "--name", "two")
    assert judged(main, write(same, "same.json"), "--baseline", "two")[0] == 0
    code, verdicts, _ = judged(main, write(swapped, "swapped.json"), "--baseline", "two")
    assert code == 3
    cells = {(cell["backend"], json.dumps(cell["case"]), cell["unit"]) for cell in swapped["cells"] if cell["backend"] != "copy"}
    assert len(verdicts) == len(cells)  # each cell once, on the card that measured it now
    assert {verdict["state"] for verdict in verdicts} == {"ambiguous"}
    other = {A: B, B: A}
    assert all(f"which was {other[verdict['unit']]}" in verdict["reason"] for verdict in verdicts)
    _, out, _ = main("gate", "swapped.json", "--baseline", "two")
    assert "measured on another card than in the baseline; measure a baseline that has every cell of each card" in " ".join(out.split())
    assert "softbench run --config odd --devices 0,1 --processes 10 --spread replicate" in " ".join(out.split())


def test_cells_that_only_another_model_measured_are_missing(main, document):
    base = shared("run-1", a=several(document, 5, seed=1), b=several(document, 5, seed=2))
    swapped = shared("run-2", a=several(document, 3, seed=3), b=several(document, 3, seed=4), first=False)
    for part in (base, swapped):
        part["units"][1]["gpu"] = "another GPU"
    code, verdicts, _ = judged(main, write(swapped, "swapped.json"), "--baseline", write(base, "base.json"))
    assert code == 1 and {verdict["state"] for verdict in verdicts} == {"missing", "new"}


def test_a_cell_that_breaks_on_another_card_is_broken(main, document):
    base = shared("run-1", a=several(document, 10, seed=1), b=several(document, 10, seed=2))
    broken = Change(failed=frozenset({0}))
    new = shared("run-2", a=several(document, 3, seed=3, change=broken), b=several(document, 3, seed=4, change=broken), first=False)
    code, verdicts, _ = judged(main, write(new, "new.json"), "--baseline", write(base, "base.json"))
    assert code == 1
    assert ["broken", "was correct in the baseline, is failed: it broke"] in [[one["state"], one["reason"]] for one in verdicts]


@pytest.mark.parametrize("status", ["skipped", "unavailable"])
def test_a_cell_that_another_card_cannot_measure_is_missing(main, document, status):
    base = shared("run-1", a=several(document, 10, seed=1), b=several(document, 10, seed=2))
    new = shared("run-2", a=several(document, 3, seed=3), b=several(document, 3, seed=4), first=False)
    cell = next(cell for cell in new["cells"] if cell["backend"] != "copy")
    cell["outcome"] = {"kind": "skipped", "reason": "not on this card", "unavailable": status == "unavailable"}
    code, verdicts, _ = judged(main, write(new, "new.json"), "--baseline", write(base, "base.json"))
    assert (code, [verdict["state"] for verdict in verdicts].count("missing")) == (1, 1)


@pytest.mark.slow
def test_a_baseline_of_every_card_judges_any_shared_sweep(main, document):
    """Card B is slower by 30 %. A cell that no card measured now is missing."""
    base = together("run-1", a=several(document, 10, seed=1), b=several(document, 10, seed=2, change=SLOWER))
    write(base, "base.json")
    for seed, first in ((3, True), (5, False)):
        new = shared(f"run-{seed}", a=several(document, 3, seed=seed), b=several(document, 3, seed=seed + 1, change=SLOWER), first=first)
        code, verdicts, _ = judged(main, write(new, f"{seed}.json"), "--baseline", "base.json")
        assert code == 0 and {verdict["state"] for verdict in verdicts} == {"same"}
    lost = next(cell for cell in new["cells"] if cell["backend"] != "copy")
    new["cells"].remove(lost)
    code, verdicts, _ = judged(main, write(new, "lost.json"), "--baseline", "base.json")
    missing = {(one["backend"], one["N"], one["unit"]) for one in verdicts if one["state"] == "missing"}
    assert code == 1 and (lost["backend"], lost["case"]["N"], lost["unit"]) in missing


def test_a_shared_baseline_judges_a_replicated_run(main, document):
    base = shared("run-1", a=several(document, 10, seed=1), b=several(document, 10, seed=2))
    new = together("run-2", a=several(document, 3, seed=3), b=several(document, 3, seed=4))
    code, verdicts, _ = judged(main, write(new, "new.json"), "--baseline", write(base, "base.json"))
    assert code == 0 and {verdict["state"] for verdict in verdicts} == {"same", "new"}
