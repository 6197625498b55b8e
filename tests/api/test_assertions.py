"""What the fixture asserts: messages, skips, and how often it is wrong on simulated noise. The plugin of pytest that has it."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch
from gating import SyntheticRuns
from sampled import sampled

from softbench.api.assertions import Softbench
from softbench.core.errors import UsageError
from softbench.run import doctor, run

pytest_plugins = ["pytester"]

ARGUMENTS = {"M": 4096, "N": 1, "dtype": "bf16", "device": "cuda"}


def right(x):
    return torch.softmax(x, -1)


def wrong(x):
    return torch.softmax(x, 0)


@pytest.fixture
def softbench(tmp_path):
    notes = []
    fixture = Softbench(tmp_path, notes.append)
    fixture.notes = notes
    return fixture


def outcomes(softbench, monkeypatch, count, **noise):
    """How many of the assertions pass, fail and are skipped."""
    found = {"pass": 0, "fail": 0, "skip": 0}
    for seed in range(count):
        monkeypatch.setattr(run, "run", SyntheticRuns(softbench.folder, seed, **noise))
        try:
            softbench.assert_not_slower("new", "old", **ARGUMENTS)
        except AssertionError:
            found["fail"] += 1
        except pytest.skip.Exception:
            found["skip"] += 1
        else:
            found["pass"] += 1
    return found


@pytest.mark.parametrize("process_sd", sampled([0.002, 0.005], lambda sd: sd == 0.005))
def test_unchanged_code_fails_at_most_one_in_twenty(softbench, monkeypatch, process_sd):
    found = outcomes(softbench, monkeypatch, 20, process_sd=process_sd)
    assert found["fail"] <= 1, found
    assert found["pass"] >= 18, found


@pytest.mark.parametrize("process_sd", sampled([0.002, 0.005], lambda sd: sd == 0.005))
def test_eight_percent_slower_is_found(softbench, monkeypatch, process_sd):
    found = outcomes(softbench, monkeypatch, 20, slowdown=0.08, process_sd=process_sd)
    assert found["fail"] >= 19, found


def test_a_slower_one_is_told_with_its_numbers(softbench, monkeypatch):
    monkeypatch.setattr(run, "run", SyntheticRuns(softbench.folder, 1, slowdown=0.2))
    with pytest.raises(AssertionError) as raised:
        softbench.assert_not_slower("new", "old", 0.05, **ARGUMENTS)
    first, numbers, command, folder = str(raised.value).splitlines()
    assert first == "FAIL: 1 cell slower"
    assert numbers.startswith("forward-bf16-4096x1: slower, new/old 1.")
    assert all(part in numbers for part in (" to 1.", ", p ", ", margin 5.0%"))
    flags = "--candidate new --reference old --M 4096 --N 1 --dtype bf16 --device cuda --margin 5"
    assert command == f"repeat it: softbench gate {flags}"
    assert folder == f"results: {softbench.folder}"
    assert softbench.notes == [f"new against old: {numbers}"]


def test_an_inconclusive_measurement_is_skipped(softbench, monkeypatch):
    monkeypatch.setattr(run, "run", SyntheticRuns(softbench.folder, 2, slowdown=0.06, process_sd=0.2))
    with pytest.raises(pytest.skip.Exception, match=r"softbench: INCONCLUSIVE: 1 ambiguous cell .*repeat it: softbench gate"):
        softbench.assert_not_slower("new", "old", **ARGUMENTS)


def test_correct_and_wrong_functions_are_told_apart(softbench, forked):
    softbench.assert_correct(right, dtype="fp32", case="shape 37x*", device="cpu")
    with pytest.raises(
        AssertionError, match=r"(?s)wrong wrong in 'shape 37x1' forward fp32: .*repeat it: softbench check .*and \d+ others"
    ):
        softbench.assert_correct(wrong, dtype="fp32", case="shape 37x*", device="cpu")
    assert softbench.notes[0].startswith("right: ")
    assert softbench.notes[0].endswith(" check cases, 0 wrong or failed")
    assert forked() == []


@pytest.mark.slow
def test_bandwidth_is_compared_with_copy(softbench, forked):
    given = {"device": "cpu", "M": 8, "N": 64, "quick": True}
    softbench.assert_bandwidth(right, 1e-9, **given)
    with pytest.raises(
        AssertionError, match=r"(?s)1 cell below 1000% of copy.*forward-fp32-8x64: .* of copy.*repeat it: softbench run .*right"
    ):
        softbench.assert_bandwidth(right, 10, **given)
    with pytest.raises(AssertionError, match="--N 32,64 "):
        softbench.assert_bandwidth(right, 10, **{**given, "N": (N for N in (32, 64))})
    assert softbench.notes[0].startswith("right: forward-fp32-8x64: ")


def test_an_error_of_use_shows_the_tests_line_only(softbench):
    for assertion, given in ((softbench.assert_correct, {"case": "nope"}), (softbench.assert_bandwidth, {"dtype": "f32", "device": "cpu"})):
        with pytest.raises(UsageError) as found:
            assertion(right, **given)
        assert [Path(entry.path).name for entry in found.traceback][1:] in (["assertions.py"], ["assertions.py"] * 2)


def test_a_percentage_of_copy_is_refused(softbench):
    with pytest.raises(UsageError, match=r"at_least_of_copy: must be a fraction above 0, such as \.9 for 90 %, not 90"):
        softbench.assert_bandwidth(right, 90, device="cpu")


def test_without_a_gpu_only_cases_of_the_pattern_are_checked(softbench, monkeypatch):
    monkeypatch.setattr(doctor, "no_gpu", lambda: "none is here")
    patterns = []
    monkeypatch.setattr(softbench, "_check", lambda *given: patterns.append(given[4]))
    for assertion, given in ((softbench.assert_not_slower, (right, "torch")), (softbench.assert_bandwidth, (right,))):
        with pytest.raises(pytest.skip.Exception):
            assertion(*given, case="!shape 16x0")
        with pytest.raises(TypeError, match="unknown argument 'confg'; did you mean 'config'"):
            assertion(*given, confg="powers")
    assert patterns == ["!shape 16x0"] * 2


@pytest.mark.parametrize("assertion", [pytest.param("assert_not_slower", marks=pytest.mark.slow), "assert_bandwidth"])
def test_without_a_gpu_it_checks_and_skips(softbench, monkeypatch, forked, assertion):
    monkeypatch.setattr(doctor, "no_gpu", lambda: "none is here")
    monkeypatch.setattr("softbench.api.assertions.ALL", "shape 37x33")
    given = {"assert_not_slower": (right, "torch"), "assert_bandwidth": (right,)}[assertion]
    with pytest.raises(pytest.skip.Exception, match=r"checked, and not timed: no GPU \(none is here\); device='cpu' times it"):
        getattr(softbench, assertion)(*given)
    if assertion == "assert_not_slower":
        with pytest.raises(AssertionError, match="wrong wrong in"):
            softbench.assert_not_slower(right, wrong)


SUITE = """
def test_quick(request):
    request.node.user_properties.append(("softbench", "f against g: same"))

def test_with_the_fixture(softbench):
    softbench._note("a line")
    assert softbench.folder.name == "softbench"

def test_plain():
    pass
"""


@pytest.fixture
def suite(pytester):
    pytester.makepyfile(test_suite=SUITE)
    return pytester


def test_the_entry_point_names_the_plugin():
    (point,) = [point for point in metadata.entry_points(group="pytest11") if point.name == "softbench"]
    assert point.value == "softbench.api.pytest_plugin"


def test_a_summary_has_a_line_per_assertion(suite):
    result = suite.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        ["*= softbench =*", "test_suite.py::test_quick: f against g: same", "test_suite.py::test_with_the_fixture: a line"]
    )


def test_without_assertions_there_is_no_summary(suite):
    result = suite.runpytest_inprocess("-p", "no:cacheprovider", "-k", "plain")
    assert "= softbench =" not in result.stdout.str()


def test_the_option_skips_tests_with_the_fixture(suite):
    result = suite.runpytest_inprocess("-p", "no:cacheprovider", "--softbench-skip", "-rs")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["*--softbench-skip*"])


def test_the_summary_passes_through_xdist(suite):
    result = suite.runpytest_inprocess("-p", "no:cacheprovider", "-n", "1")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["test_suite.py::test_quick: f against g: same"])


def test_importing_the_plugin_is_light():
    code = (
        "import sys; before = set(sys.modules); import pytest; loaded = set(sys.modules); import softbench.api.pytest_plugin;"
        "new = set(sys.modules) - loaded; print(sorted(new & {'torch', 'numpy', 'pandas', 'rich', 'typer', 'softbench.run.run'}))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
