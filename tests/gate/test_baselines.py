"""Baselines: saved, listed, shown; errors are one line."""

import json
import math
from dataclasses import replace

import pytest
from documents import undigested
from gating import GPU, cell_samples, clocked, dice, stored, write_run
from hypothesis import HealthCheck, given, settings, strategies as st
from sampled import sampled

from softbench.core.errors import SoftbenchError
from softbench.gate import baselines, run_files, unpaired
from softbench.gate.verdicts import Rules, State


@pytest.fixture
def run(tmp_path):
    """`run(seed, processes, ...)` writes a run and returns its CSV."""

    def write(seed, processes, *, name="latest", environment=GPU, **options):
        return write_run(tmp_path, stored(dice(seed), processes, cells=4, **options), name=name, environment=environment)

    return write


def test_a_saved_baseline_has_the_process_medians_of_its_runs(main, run):
    a, b = run(1, 6, name="a"), run(2, 5, name="b")
    code, out, _ = main("baseline", "save", a, b, "--name", "h200")
    assert (code, out.strip()) == (0, "results/baselines/h200.json")
    lines = baselines.path_of("h200").read_text().splitlines()
    assert sum('"backend"' in line for line in lines) == 8  # a line a cell
    found, first, second = baselines.open_baseline("h200"), run_files.read(a), run_files.read(b)
    assert found.processes == 11
    assert found.environment == GPU
    for key, cell in found.cells.items():
        assert list(cell.medians_us().values()) == pytest.approx(
            [*first.cells[key].medians_us().values(), *second.cells[key].medians_us().values()], rel=1e-4
        )
    code, out, _ = main("baseline", "list")
    assert "8 cells, 11 processes, 1 sitting on NVIDIA H200" in out
    code, out, _ = main("baseline", "show", "h200")
    assert code == 0
    assert "power_limit_w" in out
    assert "forward-bf16-4096x4" in out


def test_a_baseline_keeps_the_clock_that_explains_a_slowdown(main, tmp_path):
    base, new = clocked(stored(dice(1), 10), {"ours": 1980}), stored(dice(2), 6, slowdown=lambda i: 0.2)
    for mhz, state in ((1980, State.SLOWER), (1980 / 1.2, State.CLOCK)):
        report = unpaired.compare(clocked(new, {"ours": mhz}), base, Rules(margin=0.05))
        assert {one.state for one in report.verdicts} == {state}
    assert main("baseline", "save", write_run(tmp_path, base), "--name", "h200")[0] == 0
    clocks = {cell.backend: samples.log_mhz() for cell, samples in baselines.open_baseline("h200").cells.items()}
    assert clocks == {"ours": pytest.approx(math.log(1980)), "copy": None}


def test_a_baseline_keeps_the_operation_of_its_cells(main, run, pick):
    """The same file without operations, as of an earlier version, is of softmax."""
    assert main("baseline", "save", run(1, 10), "--name", "x")[0] == 0
    file = baselines.path_of("x")
    text = undigested(file.read_text())
    file.write_text(text.replace('"op": "softmax"', '"op": "pick"'))
    assert {str(key.identity)[:5] for key in baselines.open_baseline("x").cells} == {"pick-"}
    file.write_text(text.replace(', "op": "softmax"', ""))
    assert {key.op for key in baselines.open_baseline("x").cells} == {"softmax"}


def test_too_few_processes_end_with_3_and_a_command(main, run):
    code, out, err = main("baseline", "save", run(1, 3), "--name", "h200")
    assert (code, out) == (3, "")
    assert err.endswith("needs 5 processes (10 recommended), it has 3; measure with: softbench run --M 4096 --processes 10\n")
    code, _, err = main("baseline", "save", run(1, 7), "--name", "h200")
    assert code == 0
    assert "10 are recommended" in err


def test_a_run_of_a_busy_device_is_saved_only_on_request(main, run):
    disturbed = run(1, 10, slowdown=lambda i: -0.6)  # copy takes twice as long as what it judges
    for file in (disturbed, disturbed.with_suffix(".json.gz")):
        code, out, err = main("baseline", "save", file, "--name", "h200")
        assert (code, out, len(err.splitlines())) == (3, "", 1)
        assert f"{file}: not measurable now: copy was slower than what it judges in 4 of 4 cases" in err
    assert main("baseline", "save", disturbed, "--name", "h200", "--allow-busy")[:2] == (0, "results/baselines/h200.json\n")


def test_a_replaced_baseline_of_another_card_is_told(main, run):
    runs = {unit: run(seed, 10, name=unit, environment={**GPU, "unit": f"host/0/{unit}"}) for seed, unit in enumerate("ab")}

    def told(unit, *more):
        code, _, err = main("baseline", "save", runs[unit], "--name", "one", *more)
        assert code == 0
        return [line for line in err.splitlines() if "to have both, give each its own name" in line]

    assert told("a") == told("a", "--force") == []
    (line,) = told("b", "--force")
    assert "one.json: it replaces the baseline of NVIDIA H200 host/0/a; to have both" in line
    baselines.path_of("one").write_text("{")
    assert told("a", "--force") == []


def test_runs_of_two_machines_and_one_run_twice_are_refused(main, run):
    a, b = run(1, 5, name="a"), run(2, 5, name="b", environment={**GPU, "gpu": "NVIDIA B200"})
    code, _, err = main("baseline", "save", a, b, "--name", "both")
    assert code == 3
    assert "gpu was NVIDIA H200, now it is NVIDIA B200" in err
    assert main("baseline", "save", a, a, "--name", "both")[0] == 2


def test_runs_of_two_sweeps_do_not_make_a_baseline(main, run, tmp_path):
    a = run(1, 6, name="a")
    other = stored(dice(2), 6, cells=4, source="b")
    moved = {k._replace(M=1): s for k, s in other.cells.items()}
    b = write_run(tmp_path, replace(other, cells={**moved, **{k: s for k, s in other.cells.items() if k.N == 1}}), name="b")
    code, out, err = main("baseline", "save", a, b, "--name", "two")
    assert (code, err.splitlines()[0]) == (0, "softbench: 14 of 16 cells were not measured in all 12 processes")
    c = write_run(tmp_path, replace(other, cells={k: cell_samples(*[(9.0,)] * 3) for k in moved}), name="c")
    code, out, err = main("baseline", "save", a, c, "--name", "three")
    assert (code, out) == (3, "")
    assert "8 of 16 cells have fewer than 5 processes (copy forward-bf16-1x1 has 3); a baseline takes runs of one sweep" in err


def test_a_baseline_keeps_the_timer_and_why_a_cell_is_host_bound(run, main):
    found = run_files.read(run(1, 10))
    ours = next(k for k in found.cells if k.backend == "ours")
    found.cells[ours] = replace(found.cells[ours], host_bound="do_bench measured 70 us", timer="do_bench")
    baselines.save([found], "h200")
    kept = baselines.open_baseline("h200").cells
    assert {k: (one.timer, one.host_bound) for k, one in kept.items()} == {k: (one.timer, one.host_bound) for k, one in found.cells.items()}


def test_a_name_is_taken_once_unless_it_is_forced(main, run):
    old, new = run(1, 10, name="old"), run(2, 10, name="new")
    assert main("baseline", "save", old, "--name", "main")[0] == 0
    code, _, err = main("baseline", "save", new, "--name", "main")
    assert code == 2
    assert "exists already" in err
    assert main("baseline", "save", new, "--name", "after")[0] == 0
    assert main("baseline", "save", "after", "--name", "main", "--force")[:2] == (0, "results/baselines/main.json\n")
    assert baselines.open_baseline("main").runs == baselines.open_baseline("after").runs


DAMAGE = {
    "torn": (lambda text: text[: len(text) // 2], "is damaged or not JSON"),
    "empty": (lambda text: "", "is damaged or not JSON"),
    "a list": (lambda text: "[1]", "its JSON is not an object"),
    "of another program": (lambda text: '{"benchmarks": []}', "is not a softbench run"),
    "NaN": (lambda text: text.replace('"0": [', '"0": [NaN, ', 1), "is damaged or not JSON: cell 1: JSON is malformed"),
    "a negative latency": (lambda text: text.replace('"0": [', '"0": [-1, ', 1), "copy forward-bf16-4096x1 is damaged"),
    "an endless number": (lambda text: text.replace('"0": [', '"0": [1e999, ', 1), "is damaged or not JSON: cell 1: Number out of range"),
    "a huge whole number": (lambda text: text.replace('"0": [', f'"0": [1{"0" * 4000}, ', 1), "is damaged"),
    "a text": (lambda text: text.replace('"0": [', '"0": ["x", ', 1), "copy forward-bf16-4096x1 is damaged"),
    "another version": (lambda text: text.replace('"version": 1', '"version": 2'), "is a baseline of version 2"),
    "a lost process": (lambda text: text.replace('"processes": 10', '"processes": 11'), "says 11 processes and has 10"),
    "a cell twice": (lambda text: text.replace('"N": 2,', '"N": 1,'), "occurs twice"),
    "an unknown dtype": (lambda text: text.replace('"bf16"', '"fp8"', 1), "its case is invalid"),
    "a shape of other sizes": (lambda text: text.replace('"shape": ""', '"shape": "2x3x4"', 1), "its shape is invalid"),
    "no environment": (lambda text: text.replace('"environment"', '"environs"'), "its header is damaged: KeyError"),
    "deep": (lambda text: "[" * 100_000, "is damaged or not JSON"),
}


@pytest.mark.parametrize("what", sampled(DAMAGE, lambda what: [*DAMAGE].index(what) % 2 == 0))
def test_a_damaged_or_foreign_baseline_is_one_line(main, run, what):
    change, message = DAMAGE[what]
    assert main("baseline", "save", run(1, 10), "--name", "h200")[0] == 0
    file = baselines.path_of("h200")
    file.write_text(change(undigested(file.read_text())))
    code, out, err = main("baseline", "show", "h200")
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert "broken" in main("baseline", "list")[1]


@pytest.mark.parametrize("name", ["../x", "", "a b", "x.json", "-x"])
def test_invalid_names_are_refused(main, run, name):
    code, _, err = main("baseline", "save", run(1, 10), f"--name={name}")
    assert code == 2
    assert "is not a valid name for a baseline" in err


def test_a_list_without_a_baseline_says_how_to_save_one(main):
    code, out, err = main("baseline", "list")
    assert (code, out) == (0, "")
    save = "softbench run --processes 10 && softbench baseline save results/latest.csv --name NAME"
    assert err == f"softbench: no baselines in results/baselines; measure and save one with: {save}\n"
    assert main("baseline", "list", "--folder", "my own")[2].endswith(" --name NAME --folder 'my own'\n")


def test_an_unknown_baseline_names_the_known_ones(main, run):
    assert "there is none" in main("baseline", "show", "h20")[2]
    main("baseline", "save", run(1, 10), "--name", "h200")
    assert "did you mean 'h200'?" in main("baseline", "show", "h20")[2]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_change_of_a_baselines_values_causes_a_traceback(tmp_path, data):
    """With one value of the document replaced, reading succeeds or ends with an error message."""
    document = json.loads(_text())
    place, at = document, []
    while isinstance(place, dict | list) and place and (not at or data.draw(st.booleans())):
        step = data.draw(st.sampled_from(list(place) if isinstance(place, dict) else range(len(place))))
        at.append((place, step))
        place = place[step]
    holder, step = at[-1]
    holder[step] = data.draw(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.just([]), st.just({})))
    file = tmp_path / "hostile.json"
    file.write_text(json.dumps(document))
    try:
        found = baselines.open_baseline(str(file))
        replace(found, source="").more_processes(3)
    except SoftbenchError as error:
        assert "\n" not in str(error)


def _text(cache=[]):  # noqa: B006 - written once
    if not cache:
        from pathlib import Path
        from tempfile import TemporaryDirectory

        with TemporaryDirectory() as folder:
            baselines.save([stored(dice(1), 10, cells=2)], "x", Path(folder))
            cache.append(undigested(Path(folder, "x.json").read_text()))
    return cache[0]
