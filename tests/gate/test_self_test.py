"""The gate's measurement of itself: what it counts, what it concludes, and the slowdowns it plants."""

import json
import sys
import time
from dataclasses import replace

import pytest
import torch
from gating import GPU, cell_samples, dice, key, run_samples, self_test_run, stored_run, write_run

from softbench.backends import injected_slowdown
from softbench.core.case import Case, Direction
from softbench.core.errors import UsageError
from softbench.gate import ab_run, paired
from softbench.gate.self_test import analysis, measure as families
from softbench.gate.verdicts import Rules
from softbench.ops.softmax import spec
from softbench.plan import sweep
from softbench.plan.config_file import load as load_config
from softbench.plan.settings import Settings
from softbench.plan.sweep import Sweep
from softbench.plugins.load import load
from softbench.plugins.source import origins
from softbench.run import run as runner
from softbench.run.request import Request

RULES = Rules(margin=paired.MARGIN)


@pytest.fixture(scope="module")
def quiet():
    return analysis.analyse(self_test_run(dice(1), 12, 20), "torch", RULES)


def test_quiet_twins_raise_no_alarm_and_every_family_passes(quiet):
    assert (quiet.families, quiet.cells) == (12, 20)
    assert (quiet.alarms, quiet.passed, quiet.beside, quiet.exit_code) == (0, 12, 0, 0)
    assert quiet.ratios == 240
    assert quiet.alike >= 0.99 * 240
    assert 0.985 < quiet.furthest < 1.015
    assert quiet.document()["false_alarm_rate_at_most"] == pytest.approx(1 - 0.05 ** (1 / 12))


def test_power_is_counted_by_planted_cell_against_what_was_realised(quiet):
    assert [level.planted for level in quiet.power] == list(analysis.SLOWDOWNS)
    assert [level.trials for level in quiet.power] == [240] * 3
    margin, five, eight = quiet.power
    assert margin.realised == pytest.approx(0.03, abs=0.002)
    assert margin.share <= 0.05
    assert five.share >= 0.8
    assert eight.share >= 0.95
    assert eight.bounds[0] < eight.share
    assert len(quiet.points) == 60


def test_a_slowdown_that_came_out_larger_is_told_as_what_it_was():
    found = analysis.analyse(self_test_run(dice(2), 3, 4, realised={0.05: 0.12}), "torch", RULES)
    (level,) = found.power
    assert (level.planted, level.share) == (0.05, 1)
    assert level.realised == pytest.approx(0.12, abs=0.01)


def test_a_twin_that_is_slower_in_all_processes_is_an_alarm_and_in_one_only_a_flag():
    once = analysis.analyse(self_test_run(dice(3), 6, 8, realised={}, alarm={2}), "torch", RULES)
    assert (once.flagged, once.alarms) == (1, 0)
    always = analysis.analyse(self_test_run(dice(3), 6, 8, realised={}, alarm=set(range(6))), "torch", RULES)
    assert (always.alarms, always.passed, always.exit_code) == (6, 0, 1)


def test_a_gate_that_is_always_inconclusive_fails_its_own_test():
    noisy = analysis.analyse(self_test_run(dice(4), 3, 8, realised={}, sigma=0.3), "torch", RULES)
    assert (noisy.alarms, noisy.exit_code) == (0, 1)


def test_what_is_no_self_test_is_refused():
    with pytest.raises(UsageError, match="2 families are too few"):
        analysis.analyse(self_test_run(dice(5), 2, 1), "torch", RULES)
    with pytest.raises(UsageError, match="is no self-test of torch"):
        analysis.analyse(run_samples({key("torch"): cell_samples((1.0,))}), "torch", RULES)


def test_stored_self_tests_add_up_and_are_shown_as_table_json_and_plot(main, tmp_path):
    files = [write_run(tmp_path, self_test_run(dice(i), 3, 4), name=f"s{i}") for i in (6, 7)]
    code, out, err = main("gate", "--self-test", *files, "--plot", "power.png")
    assert code == 0, err
    assert "0 of 6 families (at most 39.30% of families" in out
    assert "8%" in out
    assert (tmp_path / "power.png").read_bytes().startswith(b"\x89PNG")
    other = write_run(tmp_path, self_test_run(dice(8), 3, 4), environment={**GPU, "power_limit_w": 600.0}, name="other")
    assert main("gate", "--self-test", *files, other)[0] == 3
    assert main("gate", "--self-test", *files, other, "--allow-env-mismatch", "power_limit_w")[0] == 0
    assert main("gate", "--self-test", *files, "--max-ambiguous", "101")[0] == 2
    code, out, _ = main("gate", "--self-test", *files, "--json", "-")
    assert json.loads(out)["families"] == 6


BAD = {
    "families without a self-test": (("--families", "5"), "--families goes with --self-test"),
    "too few families": (("--self-test", "--families", "2"), "--families 2: must be from 3"),
    "a candidate": (("--self-test", "--candidate", "torch"), "leave out the others"),
    "an unknown backend": (("--self-test", "--reference", "troch", "--device", "cpu", "--N", "8", "--M", "4"), "troch"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_flags_are_one_line_and_exit_2(main, what):
    arguments, told = BAD[what]
    code, out, err = main("gate", *arguments)
    assert (code, out) == (2, "")
    assert told in err
    assert len(err.splitlines()) == 1


def test_the_plan_is_told_before_anything_is_measured(tmp_path, monkeypatch):
    """With a fake runner: the families are sets of processes, the sweep is the device's, and the twins come from a written plugin."""
    from softbench.plan.plan import Plan
    from softbench.plan.settings import Settings

    log = []

    def dry_run(request):
        return Plan(Settings(), (), (), "cpu", "a CPU", 0, (), {}, ())

    def measure(request):
        log.append(request)
        return stored_run(tmp_path, self_test_run(dice(8), 3, 4))

    monkeypatch.setattr(runner, "dry_run", dry_run)
    run = families.measure_families(measure, Request({}, {}, False, tmp_path / "out", False, "", ""), "torch", 3, log.append)
    told, asked = log
    assert "3 families of 20 cases, each in fresh processes" in told
    assert "in the 5 that move most beside 3%, 5%, 8% planted, 20 rounds" in told
    assert (asked.config["rounds"], asked.config["max_rounds"], asked.config["yardstick"]) == (20, 20, False)
    assert "about " in told
    assert asked.flags["backends"] == ("torch", "torch+0", "torch+0.03", "torch+0.05", "torch+0.08")
    assert analysis.analyse(run, "torch", RULES).families == 3
    (source,) = [source for source in origins(asked.flags["plugins"]) if source.kind == "file"]
    backends = load(source)
    assert [backend.name for backend in backends] == list(asked.flags["backends"][1:])
    small, large = (Case(256, N, "fp32", Direction.FORWARD, "cpu") for N in (256, 1206))
    assert [backend.supports(large) for backend in backends] == [None] * 4
    assert [bool(backend.supports(small)) for backend in backends] == [False, True, True, True]


def test_a_configurations_sweep_and_rounds_are_taken_and_a_limit_of_rounds_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "dry_run", lambda request: pytest.fail("the cases are known without looking at the machine"))
    log = []

    def measure(request):
        log.append(request)
        return stored_run(tmp_path, self_test_run(dice(8), 3, 4))

    shapes = (Sweep((4096,), (256, 512, 1024, 2048)),)
    for file in ({"sweep": shapes, "rounds": 13, "max_rounds": 13}, {"sweep": shapes, "rounds": 3, "max_rounds": 6}):
        request = Request(file, {}, False, tmp_path / "out", True, "", "")
        families.measure_families(measure, request, "torch", 3, log.append)
    assert [asked.config["rounds"] for asked in log[1::2]] == [13, 20]
    assert all(asked.resume and asked.config["sweep"] == shapes for asked in log[1::2])
    (told,) = ab_run.notes_on_rounds(request)
    assert told.startswith("20 rounds, which all backends share, instead of the configuration's 3 to 6")
    assert ab_run.notes_on_rounds(replace(request, flags={"rounds": 30, "max_rounds": 30})) == []
    assert ab_run.notes_on_rounds(replace(request, config={})) == []


def test_the_shipped_sweep_of_the_gate_plants_in_its_largest_calls(plugins):
    settings = Settings.from_sources(load_config("gate"), {})
    cases = sweep.cases(settings.sweep, "cuda")
    able = families.planted(cases)
    assert (len(cases), len(able), settings.rounds, settings.max_rounds) == (20, 5, 20, 20)
    assert min(spec.bytes_moved(case) for case in able) > 2e8 > 1.4e8 > max(spec.bytes_moved(c) for c in cases if c not in able)
    (source,) = [source for source in origins([plugins.parents[1] / "tools" / "guarded_slower.py"]) if source.kind == "file"]
    (changed,) = load(source)
    assert set(sys.modules[type(changed).__module__].SLOWER) <= {case.key for case in cases}
    x = torch.randn(4, 8)
    assert torch.equal(changed.prepare(Case(4, 8, "fp32", Direction.FORWARD, "cpu"))(x), torch.softmax(x, -1))


def test_calibrations_are_remembered_and_a_damaged_memory_is_none(tmp_path):
    memory = injected_slowdown.CalibrationFile(str(tmp_path / "planted.json"))
    assert memory.read() == {}
    memory.write("a", 100)
    memory.write("b", 200)
    assert memory.read() == {"a": 100, "b": 200}
    memory.file.write_text('{"a": "much"')
    assert memory.read() == {}
    assert injected_slowdown.CalibrationFile("").read() == {}


def test_planted_slowdowns_are_real_and_the_twin_is_the_very_callable(tmp_path):
    twin, slow = injected_slowdown.inject("torch", (0.0, 3.0))
    case, x = Case(512, 2048, "fp32", Direction.FORWARD, "cpu"), torch.randn(512, 2048)
    assert (twin.name, slow.name, slow.available(), slow.supports(case)) == ("torch+0", "torch+3", None, None)
    assert torch.equal(twin.prepare(case)(x), slow.prepare(case)(x))

    def spin(x):
        end = time.perf_counter() + 2e-4
        while time.perf_counter() < end:
            pass

    begin = time.perf_counter()
    injected_slowdown._spinning(spin, 3.0)(x)
    assert time.perf_counter() - begin >= 8e-4
    with pytest.raises(UsageError, match="no backend 'troch'"):
        injected_slowdown.inject("troch", (0.0,))
