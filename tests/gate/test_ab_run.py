"""The A/B run: two versions of one file on the CPU, and confirmation with synthetic runs."""

import json
import shlex
from dataclasses import replace

import pytest
from gating import Answers, dice, interleaved
from pretended import make
from simulate_gate import MUST_NOT_PASS, NOISES, families

from softbench.core.errors import InconclusiveError, UsageError
from softbench.core.text import duration
from softbench.gate import ab_run, next_step, paired, power
from softbench.gate.samples import CellKey
from softbench.gate.verdicts import Rules, State
from softbench.plan import estimate
from softbench.report import gate_report
from softbench.run.request import RunRequest

RULES = Rules(margin=paired.MARGIN)

STEADY = """
import time
import torch

def softmax(x):
    end = time.perf_counter() + {us} / 1e6
    y = torch.softmax(x, -1)
    while time.perf_counter() < end:
        pass
    return y
"""
"""A softmax that spins until a fixed time, so that its latency is known."""
SMALL = ("--device", "cpu", "--M", "4", "--rounds", "12")


@pytest.fixture
def versions(tmp_path):
    """`versions(old_us, new_us)`: the same file in two checkouts, as --plugin takes them."""

    def write(old, new):
        flags = []
        for name, us in (("old", old), ("new", new)):
            (tmp_path / name).mkdir()
            (tmp_path / name / "steady.py").write_text(STEADY.replace("{us}", str(us)))
            flags += ["--plugin", f"{name}={name}/steady.py"]
        return flags

    return write


@pytest.mark.slow
def test_two_versions_of_one_file_are_measured_side_by_side(cli, versions):
    """The verdict depends on the load of this machine, so only its cell and its plan are tested."""
    plugins = versions(300, 1200)
    done = cli("gate", "--candidate", "new", "--reference", "old", *plugins, *SMALL, "--N", "8", "--json", "-")
    assert done.returncode in (0, 1, 3), done.stderr
    report = json.loads(done.stdout)
    assert [(verdict["backend"], verdict["case"]) for verdict in report["verdicts"]] == [("new", "forward-fp32-4x8")]
    assert "process pairs" in report["verdicts"][0]["n"]
    assert done.stderr.count("plan: all cells in 6 process pairs of 12 rounds") == 1
    assert done.stderr.index("plan: ") < done.stderr.index("over 1 case")
    assert not (cli.folder / "results" / "latest.csv").exists()
    assert (cli.folder / "results" / "gate" / "latest.csv").exists()


@pytest.mark.slow
def test_a_wrong_candidate_is_checked_with_the_printed_command(cli):
    (cli.folder / "my own").mkdir()
    file = cli.folder / "my own" / "twice.py"  # a table would break so long a line
    file.write_text("import torch\ndef softmax(x):\n    return 2 * torch.softmax(x, -1)\n")
    done = cli("gate", "--candidate", "twice", "--reference", "torch", "--plugin", file, *SMALL, "--N", "8")
    assert done.returncode == 1, done.stderr
    words = shlex.split(done.stdout.splitlines()[-1].partition("measure again: ")[2].partition(";")[0])
    assert words[:5] == ["python", "-m", "softbench", "check", "--backends"]
    checked = cli(*words[3:], "--case", "structured 37x1002")
    assert (checked.returncode, "twice is wrong" in checked.stderr) == (1, True)


def asked_for(tmp_path, **flags):
    request = RunRequest({}, {"M": (4096,), **flags}, False, tmp_path, False, "", "")
    return ab_run.ab_request(request, "new", "old")


def compare(tmp_path, *runs, base=None, **flags):
    """The report over synthetic runs, and the requests of its measurements."""
    measure = Answers(tmp_path, *runs)
    return ab_run.compare(measure, asked_for(tmp_path, **flags), "new", "old", RULES, base), measure.asked


@pytest.mark.parametrize(("sd", "told"), [(0.01, 0), (0.1, 1)])
def test_noise_in_which_equal_code_ends_inconclusive_is_told_before_the_second_look(tmp_path, sd, told):
    texts, at = [], []
    measure = Answers(tmp_path, *(interleaved(dice(i), 10, processes=p, process_sd=sd) for i, p in enumerate((6, 6, 12))))

    def tell(text):
        texts.append(text)
        at.append(len(measure.asked))

    report = ab_run.compare(measure, asked_for(tmp_path), "new", "old", RULES, tell=tell)
    assert (len(texts), at) == (told, [1] * told)
    assert report.exit_code == (3 if told else 0)
    assert all("after 24 pairs" in text and "--wait 10m" in text for text in texts)


def slow(i):
    return 0.08 if i in (2, 5) else 0


def test_a_regression_stands_if_fresh_processes_agree(tmp_path):
    report, asked = compare(
        tmp_path, *[interleaved(dice(i), 10, processes=p, process_sd=0.02, slowdown=slow) for i, p in enumerate((6, 6, 12))]
    )
    assert report.exit_code == 1
    fails = [v.cell.N for v in report.verdicts if v.fails]
    assert set(fails) == {3, 6}
    assert asked[1].flags["processes"] == 6
    assert f"{len(asked[1].config['sweep'])} cells measured again in 6 fresh process pairs" in report.notes[1]
    step = next_step.after_pairs(report, "softbench gate --candidate new --N=3:4:1 --N 9 --processes=2", 2)
    worst = f"softbench gate --candidate new --M 4096 --N {fails[0]} --dtype bf16 --direction forward --processes 10"
    assert step == f"if the change is not intended, look at its worst cell alone: {worst}"
    assert step in gate_report.markdown(replace(report, next_step=step))


def half_faster(seed, *, processes, slower=()):
    """200 cells as of tools/use_ab.py: every second one is 1.5 times faster."""
    return interleaved(
        dice(seed),
        200,
        processes=processes,
        rounds=8,
        process_sd=0.005,
        slowdown=lambda i: 0.08 if i in slower else (i % 2) * (1 / 1.5 - 1),
    )


def test_half_of_the_cells_may_be_much_faster(tmp_path):
    report, asked = compare(tmp_path, half_faster(2, processes=6, slower=(10,)), processes=6, rounds=8)
    assert (report.exit_code, len(asked)) == (1, 1)
    assert {v.cell.N for v in report.verdicts if v.fails} == {11}
    assert sum(v.state is State.FASTER for v in report.verdicts) == 100


def test_an_inconclusive_report_names_the_next_command(tmp_path):
    report, asked = compare(tmp_path, *[interleaved(dice(i), 10, processes=p, process_sd=0.04) for i, p in enumerate((6, 6, 12))])
    assert (report.exit_code, [request.settings().processes for request in asked]) == (3, [6, 6, 12])
    step = next_step.after_pairs(report, "softbench gate --candidate new --processes=2", 2)
    assert step.endswith(": softbench gate --candidate new --processes 10")


def test_a_baseline_shows_how_much_processes_differ(tmp_path):
    base = interleaved(dice(4), 10, processes=10, process_sd=0.03)
    answers = [interleaved(dice(i), 10, processes=p) for i, p in enumerate((6, 6, 12))]
    report, asked = compare(tmp_path, *answers, base=base)
    assert (report.exit_code, len(asked)) == (0, 2)  # without the baseline one measurement is enough
    with pytest.raises(InconclusiveError, match="gpu was"):
        compare(tmp_path, interleaved(dice(3), 10), base=replace(base, environment={**base.environment, "gpu": "another"}))


def test_without_undecided_cells_there_is_one_measurement(tmp_path):
    report, asked = compare(tmp_path, interleaved(dice(3), 10, processes=6))
    assert (report.exit_code, len(asked), next_step.after_pairs(report, "", 1)) == (0, 1, "")


def test_the_plan_says_what_it_finds_and_its_time():
    first = make(("new", "old"), cases=300, rounds=8, processes=6)
    plan, seconds = ab_run.plan_text(first, RULES), estimate.run_seconds(first)
    assert "all cells in 6 process pairs of 8 rounds, then undecided ones again until they have 12 and 24 pairs; " in plan
    assert f"; about {duration(seconds)}, and up to {duration(4 * seconds)} if all cells are undecided; margin 3%; finds a slow" in plan
    assert "finds a slowdown of 3.5% if" in plan
    assert "; margin 0.5%; " in ab_run.plan_text(first, Rules(margin=0.005))
    found = power.found_in_pairs(RULES, 24, 0.02)
    assert f"{found:.1%} if processes differ by 2.0%" in plan
    result = families(20, NOISES["tau 2 %"], 20, found + 0.003, 6, RULES.margin, seed=1)
    assert result.found >= 0.9 * result.slow


def test_a_dry_run_shows_the_plan_and_measures_nothing(main, monkeypatch):
    monkeypatch.setattr("softbench.run.run.run", lambda request, progress, on_start, on_plan: on_plan(make(("new", "old"), cases=3)))
    code, out, err = main("gate", "--candidate", "new", "--reference", "old", "--dry-run")
    assert (code, "3 cases x 2 backends (new, old) = 6 cells, " in out) == (0, True), err
    assert err.startswith("softbench: plan: ") and err.count("\n") == 1
    assert json.loads(main("gate", "--candidate", "new", "--reference", "old", "--dry-run", "--json", "-")[1])["cells_left"] == 6


@pytest.mark.parametrize("arguments", [("--config", "strategies"), ("--M", "4", "--N", "8", "--rounds", "5")])
def test_a_plan_that_cannot_reject_is_refused_before_measuring(main, monkeypatch, arguments):
    monkeypatch.setattr("softbench.run.run.run", lambda *_: pytest.fail("it was measured"))
    for mode in (("--candidate", "naive", "--reference", "torch"), ("--self-test",)):
        code, out, err = main("gate", *mode, *arguments)
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert "rounds can never show a regression, at least 6 are needed; use --rounds 8" in err


def test_fresh_pairs_measure_only_their_cases():
    flags = {"M": (4,), "N": (8, 16), "processes": 1, "rounds": 8, "device": "cpu", "wait": 60.0}
    asked = ab_run.ab_request(RunRequest({}, flags, False, None, False, "", ""), "new", "old")
    assert asked.flags["backends"] == ("new", "old")
    assert asked.config["batch_ms"] == ab_run.DEFAULTS["batch_ms"]
    again = ab_run.confirmation(asked, [CellKey("new", "forward", "fp32", 4, 16)], 3)
    assert [(sweep.M, sweep.N) for sweep in again.config["sweep"]] == [((4,), (16,))]
    assert again.flags == {**{k: v for k, v in asked.flags.items() if k not in ("M", "N")}, "processes": 3, "wait": 0}
    configured = replace(asked, config={**asked.config, "wait": 60.0}, flags={"device": "cpu"})
    assert ab_run.confirmation(configured, [CellKey("new", "forward", "fp32", 4, 16)], 3).settings().wait == 0
    with pytest.raises(UsageError, match="self-test"):
        ab_run.ab_request(asked, "a", "a")


def test_a_family_with_a_cell_that_is_wrong_on_both_sides_never_passes():
    assert families(5, MUST_NOT_PASS["wrong twice"], 20, 0.0, 6, RULES.margin, seed=1).exits == {3: 5}
