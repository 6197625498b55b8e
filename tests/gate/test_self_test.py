"""The gate's self-test: false alarms, power, and injected slowdowns."""

import json
import time
from dataclasses import replace

import pytest
import torch
from gating import GPU, Answers, cell_samples, dice, key, run_samples, self_test_run as self_test_samples, write_run
from pretended import make

from softbench.backends import injected_slowdown
from softbench.core.case import Case, Direction
from softbench.core.errors import UsageError
from softbench.gate import ab_run, paired, self_test, self_test_run as measuring
from softbench.gate.verdicts import Rules
from softbench.ops.registry import operation
from softbench.plan import sweep
from softbench.plan.config_file import load as load_config
from softbench.plan.settings import Settings
from softbench.plan.sweep import Sweep
from softbench.plugins.load import load
from softbench.plugins.source import origins
from softbench.report.gate_report import self_test_summary
from softbench.run import run as runner
from softbench.run.request import RunRequest

RULES = Rules(margin=paired.MARGIN)


@pytest.fixture(scope="module")
def quiet():
    return self_test.analyse(self_test_samples(dice(1), 12, 8), "torch", RULES)


def test_quiet_copies_raise_no_alarm_and_every_repetition_passes(quiet):
    assert (quiet.repetitions, quiet.cells) == (12, 8)
    assert (quiet.alarms, quiet.passed, quiet.bystanders, quiet.exit_code) == (0, 12, 0, 0)
    assert self_test_summary(quiet) == "PASS: 12 of 12 repetitions ended with exit 0"
    assert quiet.ratios == 96
    assert quiet.within_1_percent >= 0.99 * 96
    assert 0.985 < quiet.furthest < 1.015
    assert quiet.document()["false_alarm_rate_at_most"] == pytest.approx(1 - 0.05 ** (1 / 2))  # two repetitions share nothing


def test_power_is_counted_per_injected_cell_and_measured_slowdown(quiet):
    assert [level.injected for level in quiet.power] == list(self_test.SLOWDOWNS)
    assert [level.trials for level in quiet.power] == [96] * 3
    margin, five, eight = quiet.power
    assert margin.measured == pytest.approx(0.03, abs=0.002)
    assert margin.share <= 0.05
    assert five.share >= 0.8
    assert eight.share >= 0.95
    assert eight.bounds[0] < eight.share
    assert len(quiet.points) == 24


def test_a_larger_measured_slowdown_is_reported_as_measured():
    found = self_test.analyse(self_test_samples(dice(2), 8, 4, realised={0.05: 0.12}), "torch", RULES)
    (level,) = found.power
    assert (level.injected, level.share) == (0.05, 1)
    assert level.measured == pytest.approx(0.12, abs=0.01)


def test_only_a_copy_slower_in_all_processes_is_an_alarm():
    once = self_test.analyse(self_test_samples(dice(3), 12, 8, realised={}, alarm={2}), "torch", RULES)
    assert (once.flagged, once.alarms) == (6, 0)  # six repetitions have this set in their first look
    always = self_test.analyse(self_test_samples(dice(3), 6, 8, realised={}, alarm=set(range(6))), "torch", RULES)
    assert (always.flagged, always.alarms, always.passed, always.exit_code) == (6, 6, 0, 1)
    assert self_test_summary(always) == "FAIL: 6 false alarms"


def test_an_always_inconclusive_gate_fails_its_self_test():
    noisy = self_test.analyse(self_test_samples(dice(4), 8, 8, realised={}, sigma=0.5), "torch", RULES)
    assert (noisy.alarms, noisy.exit_code) == (0, 1)
    assert self_test_summary(noisy) == "FAIL: 0 of 8 repetitions ended with exit 0, and 95 % must: measure again when nothing else runs"


def test_other_runs_are_no_self_test():
    with pytest.raises(UsageError, match="3 A/A repetitions are too few"):
        self_test.analyse(self_test_samples(dice(5), 3, 1), "torch", RULES)
    with pytest.raises(UsageError, match="is not a self-test of torch"):
        self_test.analyse(run_samples({key("torch"): cell_samples((1.0,))}), "torch", RULES)


def test_stored_self_tests_add_up(main, tmp_path):
    files = [write_run(tmp_path, self_test_samples(dice(i), 3, 4), name=f"s{i}") for i in (6, 7)]
    code, out, err = main("gate", "--self-test", *files, "--plot", "power.png")
    assert code == 0, err
    assert "0 of 6 A/A repetitions (at most 95.00%" in out
    assert "8%" in out
    assert (tmp_path / "power.png").read_bytes().startswith(b"\x89PNG")
    other = write_run(tmp_path, self_test_samples(dice(8), 3, 4), environment={**GPU, "power_limit_w": 600.0}, name="other")
    assert main("gate", "--self-test", *files, other)[0] == 3
    assert main("gate", "--self-test", *files, other, "--allow-env-mismatch", "power_limit_w")[0] == 0
    assert main("gate", "--self-test", *files, "--max-ambiguous", "101")[0] == 2
    code, out, _ = main("gate", "--self-test", *files, "--json", "-")
    assert json.loads(out)["families"] == 6


def looked(request):
    """The plan of a dry run on a CPU."""
    assert request.flags["backends"] == ("torch",)
    return replace(make(("torch",), free=2**40), device="cpu")


def test_the_expected_time_counts_sizes_and_injected_cases():
    case = Case(1, 10_000_000, "fp32", Direction.FORWARD, "cpu")

    def seconds(case, injected=()):
        plan = replace(looked(RunRequest({}, {"backends": ("torch",)}, False, None, False, "", "")), cases=(case,))
        words = measuring.plan_text(plan, [case.key for case in injected], "torch").rpartition("about ")[2]
        minutes, _, rest = words.rpartition(" min ")
        return 60 * int(minutes or 0) + int(rest.removesuffix(" s"))

    assert seconds(case) > 10 * seconds(replace(case, N=256))
    assert seconds(case, injected=[case]) > 1.5 * seconds(case)


def test_the_plan_is_announced_before_the_measurement(tmp_path, monkeypatch):
    """With a fake runner: repetitions are process sets, the sweep is the device's, and a written plugin makes the copies."""
    monkeypatch.setattr(runner, "dry_run", looked)
    measure = Answers(tmp_path, self_test_samples(dice(8), 6, 4))
    given = RunRequest({}, {}, False, tmp_path / "out", False, "", "")
    run = measuring.measure_repetitions(measure, given, "torch", 6, measure.asked.append)
    plan, asked = measure.asked
    assert "6 A/A repetitions of 20 cases, each in fresh processes" in plan
    assert "in the 5 cases of most bytes beside injected slowdowns of 3%, 5%, 8%; 8 rounds" in plan
    assert (asked.config["rounds"], asked.config["max_rounds"], asked.config["yardstick"]) == (8, 8, False)
    assert "about " in plan
    assert asked.flags["backends"] == ("torch", "torch+0", "torch+0.03", "torch+0.05", "torch+0.08")
    assert self_test.analyse(run, "torch", RULES).repetitions == 6
    (source,) = [source for source in origins(asked.flags["plugins"]) if source.kind == "file"]
    backends = load(source)
    assert [backend.name for backend in backends] == list(asked.flags["backends"][1:])
    small, large = (Case(256, N, "fp32", Direction.FORWARD, "cpu") for N in (256, 1206))
    assert [backend.supports(large) for backend in backends] == [None] * 4
    assert [bool(backend.supports(small)) for backend in backends] == [False, True, True, True]


def test_a_configurations_fixed_rounds_count_and_a_range_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "dry_run", looked)
    measure = Answers(tmp_path, *[self_test_samples(dice(8), 4, 4)] * 2)
    shapes = (Sweep((4096,), (256, 512, 1024, 2048)),)
    for file in ({"sweep": shapes, "rounds": 13, "max_rounds": 13}, {"sweep": shapes, "rounds": 3, "max_rounds": 6}):
        request = RunRequest(file, {}, False, tmp_path / "out", True, "", "")
        measuring.measure_repetitions(measure, request, "torch", 3, measure.asked.append)
    assert [asked.config["rounds"] for asked in measure.asked[1::2]] == [13, 8]
    assert all(asked.resume and asked.config["sweep"] == shapes for asked in measure.asked[1::2])
    (note,) = ab_run.rounds_notes(request)
    assert note.startswith("8 rounds, which all backends share, instead of the configuration's 3 to 6")
    assert ab_run.rounds_notes(replace(request, flags={"rounds": 30, "max_rounds": 30})) == []
    assert ab_run.rounds_notes(replace(request, config={})) == []


def test_the_gate_configuration_injects_into_its_largest_calls(plugins):
    layer = load_config("gate")
    cases = sweep.cases(Settings.from_sources(layer, {}).sweep, "cuda")
    injected = measuring.injected_cases(cases)
    assert (len(cases), len(injected), {"rounds", "max_rounds"} & layer.keys()) == (20, 5, set())
    assert (
        min(map(operation("softmax").bytes_moved, injected))
        > 2e8
        > 1.4e8
        > max(operation("softmax").bytes_moved(c) for c in cases if c not in injected)
    )


def test_calibrations_are_stored_and_a_damaged_file_is_ignored(tmp_path):
    memory = injected_slowdown.CalibrationFile(str(tmp_path / "planted.json"))
    assert memory.read() == {}
    memory.write("a", 100)
    memory.write("b", 200)
    assert memory.read() == {"a": 100, "b": 200}
    memory.file.write_text('{"a": "much"')
    assert memory.read() == {}
    assert injected_slowdown.CalibrationFile("").read() == {}


def test_injected_slowdowns_take_time_and_the_copy_takes_none(tmp_path):
    aa_copy, slow = injected_slowdown.inject("torch", (0.0, 3.0))
    case, x = Case(512, 2048, "fp32", Direction.FORWARD, "cpu"), torch.randn(512, 2048)
    assert (aa_copy.name, slow.name, slow.available(), slow.supports(case)) == ("torch+0", "torch+3", None, None)
    shaped = replace(case, shape=f"{case.N}x{case.M}@dim0")
    assert (aa_copy.supports(shaped), slow.supports(shaped)) == (None, "no slowdown is injected in an N-D case")
    assert torch.equal(aa_copy.prepare(case)(x), slow.prepare(case)(x))

    def spin(x):
        end = time.perf_counter() + 2e-4
        while time.perf_counter() < end:
            pass

    begin = time.perf_counter()
    injected_slowdown._spinning(spin, 3.0)(x)
    assert time.perf_counter() - begin >= 8e-4
    with pytest.raises(UsageError, match="no backend 'troch'"):
        injected_slowdown.inject("troch", (0.0,))
