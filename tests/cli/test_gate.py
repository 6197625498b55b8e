"""`softbench gate` on stored files: verdicts, outputs, refusals, time and imports."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

import pytest
from documents import packed
from gating import GPU, cell_samples, dice, key, stored, write_run
from hypothesis import given, settings, strategies as st
from sampled import sampled

from softbench.core.errors import SoftbenchError
from softbench.gate import environment_match, run_files, unpaired
from softbench.gate.verdicts import Rules
from softbench.report import gate_report
from softbench.results.document import beside, load


@pytest.fixture(scope="module")
def saved():
    """The files of baselines, by their number of cells."""
    return {}


@pytest.fixture
def files(tmp_path, main, saved):
    """`files(new)`: a baseline h200 of ten processes, and the CSV of a run."""

    def write(new, *, environment=GPU, cells=40):
        if cells not in saved:
            base = write_run(tmp_path, stored(dice(2), 10, cells=cells), name="base")
            assert main("baseline", "save", base, "--name", "h200")[0] == 0
            names = ("base*", "*.jsonl", "results/baselines/*")  # the second: a run of the same second gets another name
            written = [file for name in names for file in tmp_path.glob(name)]
            saved[cells] = {file.relative_to(tmp_path): file.read_bytes() for file in written}
        for name, content in saved[cells].items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(content)
        return write_run(tmp_path, new, environment=environment)

    return write


INJECTED = {3, 17}


def slower(seed=1, **options):
    return stored(dice(seed), 3, slowdown=lambda i: 0.1 if i in INJECTED else 0, **options)


def test_a_fresh_run_passes(main, files):
    code, out, err = main("gate", files(stored(dice(1), 3)), "--baseline", "h200")
    assert code == 0, out + err
    assert out.splitlines()[-1] == "PASS: 40 cells same"
    assert "same: 40 cells within the margin" in out
    assert err == ""


def test_an_injected_slowdown_is_exit_1_in_every_output(main, files, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    (tmp_path / "summary.md").write_text("before\n")
    outputs = ("--json", "gate.json", "--junit", "gate.xml", "--markdown", "gate.md", "--plot", "forest.png")
    code, out, err = main("gate", files(slower()), "--baseline", "results/baselines/h200.json", *outputs)
    assert code == 1, err
    names = {f"forward-bf16-4096x{i + 1}" for i in INJECTED}
    slower_lines = [line for line in out.splitlines() if line.startswith("slower")]
    assert {line.split()[4] for line in slower_lines} == names
    document = json.loads((tmp_path / "gate.json").read_text())
    assert document["exit_code"] == 1
    assert {v["case"] for v in document["verdicts"] if v["state"] == "slower"} == names
    assert {"ratio", "interval", "covers", "n", "reason", "p", "margin"} <= document["verdicts"][0].keys()
    suite = ElementTree.parse(tmp_path / "gate.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("41", "2")
    assert {case.get("name") for case in suite if case.find("failure") is not None} == names
    markdown = (tmp_path / "gate.md").read_text()
    assert markdown.startswith("### ❌ softbench gate: FAIL: 2 cells slower, 38 cells same")
    assert (tmp_path / "summary.md").read_text() == "before\n" + markdown
    assert (tmp_path / "forest.png").read_bytes().startswith(b"\x89PNG")


def test_a_quiet_report_names_the_worst_cell(main, files):
    code, out, _ = main("gate", files(slower()), "--baseline", "h200", "-q")
    summary, worst, step = out.splitlines()
    assert (code, summary) == (1, "FAIL: 2 cells slower, 38 cells same")
    assert re.match(r"worst: ours forward-bf16-4096x\d+: slower, new/old 1\.\d\d\d: slower by more than the margin of 5\.0%", worst), worst
    assert step.startswith("next: ")


def test_the_next_command_repeats_the_options_that_were_given(main, files):
    given = ("--margin", "4", "--max-ambiguous=20", "--allow-env-mismatch", "gpu")
    out = main("gate", files(slower()), *given, "--baseline", "h200")[1]
    assert out.splitlines()[-1].endswith(f": softbench gate {' '.join(given)} --baseline h200")


def test_exit_codes_of_mismatch_missing_cell_and_few_processes(main, files, tmp_path):
    run = files(stored(dice(1), 3), environment={**GPU, "gpu": "NVIDIA B200"})
    code, out, err = main("gate", run, "--baseline", "h200")
    assert (code, out) == (3, "")
    assert "gpu was NVIDIA H200, now it is NVIDIA B200; measure both on one machine, or: --allow-env-mismatch gpu" in err
    code, _, err = main("gate", run, "--baseline", "h200", "--allow-env-mismatch", "gpu")
    assert code == 0
    assert "compared although different: gpu was" in err
    new = stored(dice(1), 3)
    del new.cells[key("ours", 7)]
    code, out, _ = main("gate", write_run(tmp_path, new), "--baseline", "h200")
    assert code == 1
    assert "forward-bf16-4096x7" in out
    assert "is in the baseline and was not measured" in out
    code, _, err = main("gate", write_run(tmp_path, stored(dice(1), 2)), "--baseline", "h200")
    assert code == 3
    assert "softbench run --M 4096 --processes 3" in err


MODES = {
    "two versions": (
        ("--candidate", "new", "--reference", "old"),
        {"--M", "--processes", "--junit", "--output"},
        {"--families", "--resume"},
    ),
    "a baseline": (("--baseline", "h200"), {"--M", "--processes", "--junit"}, {"--families", "--candidate"}),
    "results files": (
        ("run.csv", "--baseline", "h200"),
        {"--junit", "--margin"},
        {"--M", "--processes", "--plugin", "--output", "--rounds", "--resume"},
    ),
    "a self-test": (("--self-test",), {"--M", "--families", "--resume", "--plot"}, {"--processes", "--markdown"}),
    "stored self-tests": (("--self-test", "run.csv"), {"--plot", "--margin"}, {"--M", "--families", "--junit"}),
}


@pytest.mark.parametrize("name", MODES)
def test_help_shows_the_options_of_the_mode(main, name):
    words, own, others = MODES[name]
    code, out, _ = main("gate", *words, "--help")
    shown = {
        word for line in out.splitlines() for word in line.replace(",", " ").split() if line.startswith("  -") and word.startswith("--")
    }
    assert code == 0
    assert own <= shown
    assert not others & shown


def test_help_without_a_mode_is_one_screen_with_an_example_of_each(main):
    code, out, _ = main("gate", "--help")
    assert code == 0
    assert len(out.splitlines()) < 80
    for example in ("--candidate new --reference old", "--baseline h200", "results/latest.csv --baseline", "--self-test --reference"):
        assert f"softbench gate {example}" in out
    assert "--rounds" not in out
    assert main("gate", "--candidate", "--help")[1].index("--rounds")


@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name, (_, _, others) in MODES.items() for option in sorted(others) if option != "--candidate"]
)
def test_an_option_of_another_mode_is_one_line(main, name, option):
    code, out, err = main("gate", *MODES[name][0], option if option == "--resume" else f"{option}=4")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"softbench: gate: {option} does not go with {name}, only with ".replace("--output", "-o"))


@pytest.mark.parametrize(
    "field", sampled(["gpu_memory_bytes", "ecc", "mig", "power_limit_w", "device"], lambda field: field in ("ecc", "device"))
)
def test_absent_metadata_counts_as_different(main, files, field):
    run = files(stored(dice(1), 3), environment={name: value for name, value in GPU.items() if name != field})
    code, _, err = main("gate", run, "--baseline", "h200")
    assert code == 3
    assert f"{field} was " in err
    assert "now it is not recorded" in err


def test_two_files_of_one_operation_are_not_compared(main, tmp_path):
    def written(name, count, **hashes):
        return write_run(tmp_path, stored(dice(count), count, source=name), name=name, environment={**GPU, "operations": hashes})

    base, new = written("base", 10, rms="0123abcd", other="0"), written("new", 3, rms="4567abcd", third="1")
    code, out, err = main("gate", new, "--baseline", base)
    text = "two files define the operation rms: their hashes are 0123abcd and 4567abcd"
    assert (code, out) == (3, "")
    assert err.endswith(f"cannot be compared with {base}: {text}; measure both with one file, or: --allow-env-mismatch operations\n")
    assert err.count("\n") == 1
    code, _, err = main("gate", new, "--baseline", base, "--allow-env-mismatch", "operations")
    assert (code, err) == (0, f"softbench: compared although different: {text}\n")
    assert main("gate", written("same", 3, rms="0123abcd"), "--baseline", base)[::2] == (0, "")
    assert main("gate", written("none", 3), "--baseline", base)[::2] == (0, "")


@pytest.mark.parametrize(
    ("fact", "value", "text"),
    [
        ("driver", "590", "driver was 580, now it is 590"),
        ("overrides", {"flag_gems": ["_softmax"]}, "overrides was not recorded, now it is {'flag_gems': ['_softmax']}"),
    ],
)
def test_other_environment_differences_are_warnings(main, files, fact, value, text):
    code, _, err = main("gate", files(stored(dice(1), 3), environment={**GPU, fact: value}), "--baseline", "h200")
    assert code == 0
    assert err == f"softbench: differs: {text}\n"


def test_runs_add_up_and_a_run_can_be_a_baseline(main, tmp_path):
    runs = [write_run(tmp_path, stored(dice(i), 1, source=str(i)), name=f"r{i}") for i in range(8)]
    assert main("gate", *runs[5:], "--baseline", write_run(tmp_path, stored(dice(9), 10), name="b"))[0] == 0
    code, _, err = main("gate", runs[0], runs[0], runs[1], "--baseline", tmp_path / "b.csv")
    assert code == 2
    assert "is given twice" in err


def test_json_to_stdout_can_be_piped(main, files):
    code, out, _ = main("gate", files(slower()), "--baseline", "h200", "--json", "-")
    assert code == 1
    assert json.loads(out)["summary"].startswith("FAIL")


def test_hostile_texts_stay_texts_in_every_output(main, files, tmp_path):
    new = stored(dice(1), 3)
    evil = "</testcase>|<script>[x](http://y) `a` @team \x1b[31m \uffff ::error::"
    new.cells[key("ours", 7)] = cell_samples(status="failed", reason=evil)
    assert main("gate", files(new), "--baseline", "h200", "--junit", "gate.xml", "--markdown", "gate.md")[0] == 1
    ElementTree.parse(tmp_path / "gate.xml")
    markdown = (tmp_path / "gate.md").read_text()
    assert "<script>" not in markdown
    assert "[x](" not in markdown
    assert "@team" not in markdown


def test_cards_without_ecc_or_mig_are_compared(main, tmp_path):
    plain = {name: value for name, value in GPU.items() if name not in ("ecc", "mig")}
    base = write_run(tmp_path, stored(dice(2), 10), environment=plain, name="base")
    assert main("gate", write_run(tmp_path, stored(dice(1), 3), environment=plain), "--baseline", base)[0] == 0
    code, _, err = main("gate", write_run(tmp_path, stored(dice(1), 3), name="now"), "--baseline", base)
    assert code == 3
    assert "ecc was not recorded, now it is True; mig was not recorded, now it is False" in err


def test_a_profile_shows_if_do_bench_measured_the_host(tmp_path):
    document = load(beside(write_run(tmp_path, stored(dice(1), 3, cells=1))))
    outcome = document["cells"][1]["outcome"]
    outcome["profile"] = {"device_us": [3.2, 3.3], "host_us": [71.0], "kernels": ["k"], "note": ""}
    k = key("ours", 1)
    assert run_files.from_document(document, "x").cells[k].host_bound.startswith("do_bench measured 23.9 us, device time is 3.25 us")
    outcome["timing"]["kind"] = "queued"
    assert run_files.from_document(document, "x").cells[k].host_bound == ""
    outcome["timing"]["kind"] = "do_bench"
    outcome["profile"]["device_us"] = [23.0]
    assert run_files.from_document(document, "x").cells[k].host_bound == ""


SMALL = ("--device", "cpu", "--M", "4", "--N", "8")
BAD = {
    "no baseline": (("gate", "run.csv"), "--baseline NAME|FILE"),
    "nothing to judge": (("gate", "--margin", "5"), "give --candidate and --reference, or --baseline"),
    "an unknown baseline to measure": (("gate", "--baseline", "h200"), "unknown baseline 'h200'"),
    "stored self-tests with a baseline": (
        ("gate", "--self-test", "--baseline", "run.csv", "run.csv"),
        "--baseline does not go with stored self-tests",
    ),
    "a self-test with a baseline": (("gate", "--self-test", "--baseline", "run.csv"), "--baseline does not go with a self-test"),
    "too few processes against a baseline": (("gate", "--baseline", "run.csv", "--processes", "2"), "can never show a regression"),
    "a results file that is not there": (("gate", "none.csv", "--baseline", "run.csv"), "none.csv: No such file"),
    "a baseline that is not there": (("gate", "run.csv", "--baseline", "none"), "there is none; save one: softbench baseline save"),
    "a CSV without its JSON": (("gate", "lone.csv", "--baseline", "run.csv"), "lone.json.gz is not in its folder"),
    "a CSV beside another run's JSON": (("gate", "other.csv", "--baseline", "run.csv"), "take both files of one run"),
    "a binary baseline": (("gate", "run.csv", "--baseline", "binary.json"), "is damaged or not JSON"),
    "a damaged run": (("gate", "run.csv", "--baseline", "nan.json"), "is damaged"),
    "a torn gzip file": (("gate", "run.csv", "--baseline", "torn.json.gz"), "torn.json.gz: is a damaged gzip file: "),
    "a gzip file without JSON": (("gate", "run.csv", "--baseline", "text.json.gz"), "text.json.gz: is damaged or not JSON: "),
    "a folder": (("gate", ".", "--baseline", "run.csv"), ".: is a folder; name a file in it: softbench runs . lists them"),
    "another ending": (("gate", "run.csv", "--baseline", "./x.yaml"), "ends in .json or .csv"),
    "a margin of zero": (("gate", "run.csv", "--baseline", "run.csv", "--margin", "0"), "give the percentage"),
    "a negative margin": (("gate", "run.csv", "--baseline", "run.csv", "--margin=-3"), "must be a percentage"),
    "an unknown field before measuring": (
        ("gate", "--candidate", "torch", "--reference", "naive", "--allow-env-mismatch", "gpus"),
        "did you mean 'gpu'?",
    ),
    "rounds of nothing": (("gate", "--candidate", "torch", "--reference", "naive", "--rounds", "0"), "whole number from 1"),
    "one version": (("gate", "--candidate", "torch"), "give both --candidate and --reference"),
    "one version twice": (("gate", "--candidate", "torch", "--reference", "torch"), "is also the reference"),
    "functions and a file": (("gate", "main", "--candidate", "torch:relu", "--changed"), "gate: main: two environments take no results"),
    "versions and a file": (("gate", "run.csv", "--candidate", "torch", "--reference", "naive"), "give both --candidate and --reference"),
    "no columns": (("gate", "--candidate", "torch", "--reference", "naive", "--N", "0"), "--N: 0 is out of range"),
    "families without a self-test": (("gate", "--families", "5"), "--families goes with --self-test"),
    "too few families": (("gate", "--self-test", "--families", "3"), "--families 3: must be from 6"),
    "a candidate of a self-test": (("gate", "--self-test", "--candidate", "torch"), "--candidate does not go with a self-test"),
    "an unknown backend to test": (("gate", "--self-test", "--reference", "troch", *SMALL), "troch"),
    "an unknown field": (("gate", "run.csv", "--baseline", "run.csv", "--allow-env-mismatch", "gpus"), "did you mean 'gpu'?"),
    "a figure of another format": (("gate", "run.csv", "--baseline", "run.csv", "--plot", "x.jpeg"), "must end in .png, .svg, .pdf, .webp"),
    "a file in no folder": (("gate", "run.csv", "--baseline", "run.csv", "--junit", "no/x.xml"), "--junit no/x.xml: cannot be written"),
}


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    run = write_run(folder, stored(dice(1), 10, cells=2), name="run")
    write_run(folder, stored(dice(1), 10, cells=2), name="second")
    (folder / "lone.csv").write_text(run.read_text())
    (folder / "other.csv").write_text(run.read_text())
    second, whole = load(folder / "second.json.gz"), gzip.decompress((folder / "run.json.gz").read_bytes())
    (folder / "other.json.gz").write_bytes(packed({**second, "run": "run-x"}))
    (folder / "binary.json").write_bytes(os.urandom(64) + b"\xff")
    (folder / "nan.json").write_bytes(whole.replace(b'"samples_us":[', b'"samples_us":[NaN,', 1))
    (folder / "torn.json.gz").write_bytes((folder / "run.json.gz").read_bytes()[:-20])
    (folder / "text.json.gz").write_bytes(gzip.compress(b"no JSON"))
    return folder


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_clear_line_and_exit_2(main, tmp_path, bad_files, what):
    shutil.copytree(bad_files, tmp_path, dirs_exist_ok=True)
    arguments, message = BAD[what]
    code, out, err = main(*arguments)
    assert code == 2, err
    assert out == ""
    assert message in err
    assert len([line for line in err.splitlines() if "import of" not in line]) == 1  # progress, on a busy machine


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_no_change_of_a_runs_values_causes_a_traceback(data):
    """With one value of a run's JSON replaced, the gate judges the run or ends with an error message."""
    document = json.loads(run_text())
    place, at = document, []
    while isinstance(place, dict | list) and place and (not at or data.draw(st.integers(0, 4))):
        step = data.draw(st.sampled_from(list(place) if isinstance(place, dict) else range(len(place))))
        at.append((place, step))
        place = place[step]
    holder, step = at[-1]
    holder[step] = data.draw(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.just([]), st.just({})))
    base = stored(dice(2), 10, cells=3)
    try:
        new = run_files.from_document(document, "hostile.json")
        environment_match.check(new, base, environment_match.strict_fields())
        report = unpaired.compare(new, base, Rules(margin=0.05))
    except SoftbenchError as error:
        assert "\n" not in str(error)
    else:
        json.dumps(report.document(), allow_nan=False)
        ElementTree.fromstring(gate_report.junit(report))
        gate_report.markdown(report)


@cache
def run_text():
    with TemporaryDirectory() as folder:
        return gzip.decompress(beside(write_run(Path(folder), stored(dice(1), 3, cells=3))).read_bytes()).decode()


def test_the_gate_on_stored_files_imports_little(files, tmp_path):
    run = files(stored(dice(1), 3, cells=3))
    code = (
        "import sys, atexit;"
        "atexit.register(lambda: print('HEAVY', sorted({'torch', 'pandas', 'matplotlib', 'scipy.stats'} & set(sys.modules))));"
        f"sys.argv = ['softbench', 'gate', {str(run)!r}, '--baseline', 'h200']; from softbench.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "HEAVY []" in done.stdout, done.stderr
