"""`softbench check` runs the check cases on real backends. The printed command repeats a finding."""

import json
import shlex
import shutil
from importlib import metadata
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch
from pretended import PASS, FakePool, make
from rich.console import Console

from softbench.core.case import Direction
from softbench.core.messages import CheckCaseGraded, RunCheckCase
from softbench.core.outcome import Grade
from softbench.plan.settings import Settings
from softbench.processes.slot import MAX_DEATHS, WorkerSlot, revive
from softbench.report import check_report
from softbench.run.check import CheckReport, Finding, _Checker
from softbench.worker.checking.check_case import CheckCaseRunner

NUMPY, TRITON = (tuple(int(part) for part in metadata.version(name).split(".")[:2]) for name in ("numpy", "triton"))

LONGEST = "shape 1x524294"
"""Its check takes a third of the time of all check cases."""
LONG = "*x[1-9][0-9][0-9][0-9]*"
QUICK = Path(__file__).parents[1] / "support" / "quick_interpreter.py"


def test_a_failure_is_told_once():
    def report(verdict, *names):
        findings = [Finding(name, "case", "forward", "fp32", verdict, None, "no memory") for name in names or ["a"]]
        return CheckReport(tuple(findings), (), (), "cpu", 0)

    assert report("failed").nothing == "no output was compared"  # the line with the command has the reason
    assert report("skipped").nothing == "no output was compared: a: skipped: no memory"
    assert report("skipped", "a", "b").nothing == "no output was compared: a: skipped: no memory; b: skipped: no memory"


@pytest.mark.parametrize(("verdict", "ulp"), [("pass", "9e+06 ULP, 0.5 in the row sum, "), ("sampled", "")])
def test_a_problem_has_the_frobenius_norm_alone(verdict, ulp):
    (line,) = check_report._counts([Finding("a", "case", "forward", "fp32", verdict, 0.25, "", 9e6, 0.5, 1e-7)], ["a"])
    assert str(line) == f"a: 1 {verdict}; passes have at most 0.25 of the bound (medians: {ulp}1e-07 in the Frobenius norm)"


def test_a_case_that_passes_or_is_skipped_throughout_has_no_row():
    def finding(name, item, direction, verdict):
        return Finding(name, item, direction, "fp32", verdict, None, "no GPU" if verdict == "skipped" else "")

    def printed(*given):
        out = StringIO()
        Console(file=out, width=200).print(check_report.table([finding(*one) for one in given]))
        return out.getvalue()

    given = [
        ("a", "one", "forward", "wrong"),
        ("b", "one", "forward", "skipped"),
        ("a", "two", "forward", "skipped"),
        ("b", "two", "forward", "pass"),
    ]
    text = printed(*given, ("a", "one", "backward", "skipped"))
    assert "forward: fp32" in text and "backward" not in text and "two" not in text
    assert [line.split() for line in text.splitlines() if line.startswith("one")] == [["one", "│", "X", "│", "-"]]
    assert "- skipped; not shown: 2 rows of . and - alone, which --long lists\n" in text and "skipped: no GPU (3 cases of b, a)" in text
    assert printed(*given[1:]).startswith("every case passes or is skipped: --long lists them\nb: 1 pass, 1 skipped\na: 1 skipped\n")


def findings(done, code=0):
    assert done.returncode == code, done.stdout[-3000:] + done.stderr
    return json.loads(done.stdout)["findings"]


needs_interpreter = pytest.mark.skipif(
    NUMPY >= (2, 5) and TRITON < (3, 9), reason=f"the interpreter of Triton {metadata.version('triton')} does not run with this numpy"
)


@needs_interpreter
@pytest.mark.slow
def test_triton_kernels_pass_a_check_case_under_tritons_own_interpreter(cli):
    done = cli("check", "--backends", "triton", "--case", "shape 37x33", "--dtype", "bf16", "--device", "cpu", "--json", "-")
    passed = {(finding["backend"], finding["direction"]) for finding in findings(done) if finding["verdict"] == "pass"}
    assert passed == {("triton", "forward"), ("triton", "backward")}


@pytest.mark.slow
@needs_interpreter
@pytest.mark.parametrize(
    ("backends", "given", "passes"),
    [
        ("quick", ("--direction", "forward", "--case", f"!{LONG}"), 40),
        ("quick", ("--direction", "backward", "--case", f"!{LONG}"), 20),
        ("quick", ("--case", f"!{LONGEST}"), 95),
    ],
)
def test_our_triton_kernels_pass_check_cases_under_the_interpreter(cli, backends, given, passes):
    """The rows of at least 1000 columns that are left out take most of the time."""
    # bf16 is the longer way; fp32 is examined whole on a GPU, where it takes seconds, and here by test_tiers.py
    done = cli("check", "--plugin", f"quick={QUICK}", *given, "--backends", backends, "--dtype", "bf16", "--device", "cpu", "--json", "-")
    found = findings(done)
    assert {finding["verdict"] for finding in found} == {"pass", "skipped"}
    assert {finding["reason"] for finding in found if finding["verdict"] == "skipped"} == {
        "needs a GPU: gigabytes of memory",
        "needs a GPU: streams",
        "needs a GPU: millions of rows",
        "takes more calls than an interpreter can run",
    }
    assert len([finding for finding in found if finding["verdict"] == "pass"]) > passes
    names, passed = {finding["item"] for finding in found}, {finding["direction"] for finding in found}
    assert {"shape 1823x781", "shape 0x16"} <= names
    of_forward = {"a row of -inf", "layout channels-last"} <= names
    assert (of_forward, "dy = 1" in names) == ("forward" in passed, "backward" in passed)


@needs_interpreter
@pytest.mark.slow
def test_our_triton_kernels_pass_the_longest_row_under_the_interpreter(cli):
    given = ("--plugin", f"quick={QUICK}", "--backends", "quick", "--dtype", "bf16", "--device", "cpu")
    done = cli("check", *given, "--case", LONGEST, "--json", "-")
    assert [(finding["direction"], finding["verdict"]) for finding in findings(done)] == [("forward", "pass"), ("backward", "pass")]


@pytest.mark.slow
def test_eager_backends_land_in_the_classes_that_are_predicted(cli):
    done = cli("check", "--backends", "torch,naive", "--dtype", "fp16", "--case", "shape *", "--device", "cpu", "--json", "-")
    classes = {(f["backend"], f["dtype"]): set() for f in findings(done)}
    for finding in findings(done):
        classes[finding["backend"], finding["dtype"]].add(finding["verdict"])
    assert classes["torch", "fp16"] == {"pass", "skipped"}
    done = cli("check", "--backends", "torch,naive", "--dtype", "fp32", "--case", "shape 37x*", "--device", "cpu", "--json", "-")
    assert {(f["backend"], f["verdict"]) for f in findings(done)} == {("torch", "pass"), ("naive", "pass")}
    assert classes["naive", "fp16"] == {"pass", "low-precision", "skipped"}


class ForwardOnly:
    """An honest backend without gradients."""

    name = "forward-only"

    def supports(self, case):
        return None if case.direction is Direction.FORWARD else "it has no gradient"

    def prepare(self, case):
        assert case.direction is Direction.FORWARD
        return lambda x: torch.softmax(x, -1)

    def over_dim(self, direction):
        assert direction is Direction.FORWARD
        return torch.softmax


def test_a_refused_direction_is_skipped_over_other_dims_too():
    runner = CheckCaseRunner(ForwardOnly(), "cpu")
    over_dims = [key for key, item in runner.items.items() if item.dim is not None and not item.gpu_only]
    backward = [runner.run(name, direction, "fp32", 0) for name, direction in over_dims if direction is Direction.BACKWARD]
    assert len(backward) > 5
    assert set(backward) == {"it has no gradient"}
    forward = [runner.run(name, direction, "fp32", 0) for name, direction in over_dims if direction is Direction.FORWARD]
    assert {found.grade for found in forward} <= {Grade.PASS, Grade.LOW_PRECISION}


@pytest.mark.slow
def test_a_pattern_with_an_exclamation_mark_leaves_cases_out(cli):
    asked = ("check", "--backends", "torch", "--dtype", "fp32", "--direction", "forward", "--device", "cpu", "--json", "-")
    names = {finding["item"] for finding in findings(cli(*asked, "--case", "!shape*"))}
    assert names
    assert not any(name.startswith("shape") for name in names)
    assert names < {finding["item"] for finding in findings(cli(*asked))}
    several = findings(cli(*asked, "--case", "shape 37x1", "--case", "one NaN", "--case", "scale*", "--case", "!scale 10"))
    assert {finding["item"] for finding in several} == {"shape 37x1", "one NaN", "scale 0.1", "scale 100"}


@pytest.mark.slow
def test_a_function_of_a_file_is_checked_on_rows_only(cli):
    (cli.folder / "mine.py").write_text("import torch\ndef softmax(x):\n    return torch.softmax(x, -1)\n")
    given = ("check", "--plugin", "mine.py", "--backends", "mine", "--dtype", "fp32", "--direction", "forward", "--device", "cpu")
    done = cli(*given, "--case", "*1*D*", "--json", "-")
    assert {finding["reason"] for finding in findings(done, 1)} == {"it takes (M, N) rows only"}
    assert done.returncode == 1
    assert "no output was compared: mine: skipped: it takes (M, N) rows only" in done.stderr
    done = cli(*given, "--case", "one NaN", "--json", "-")
    assert [finding["verdict"] for finding in findings(done)] == ["pass"]


def test_the_printed_command_repeats_a_wrong_finding(cli, plugins):
    given = ("--plugin", plugins / "wrong" / "zeros.py", "--device", "cpu", "--dtype", "fp32", "--direction", "forward")
    done = cli("check", "--backends", "zeros", "--case", "shape 37x2*", *given)
    assert done.returncode == 1
    assert "X" in done.stdout
    lines = [line.strip() for line in done.stderr.splitlines() if line.startswith("  softbench check")]
    assert len(lines) == 4  # 37x2, 37x255, 37x256, 37x257
    again = cli(*shlex.split(lines[0])[1:])
    assert again.returncode == 1
    assert "zeros is wrong" in again.stderr


def test_a_crash_in_a_check_case_is_a_finding(cli, plugins):
    done = cli(
        *("check", "--plugin", plugins / "faulty" / "faults.py", "--backends", "dies-by-sigsegv,torch", "--dtype", "fp32"),
        *("--case", "scale*", "--device", "cpu", "--json", "-"),
    )
    found = {(f["backend"], f["item"]): (f["verdict"], f["reason"]) for f in findings(done, 1)}
    assert found["dies-by-sigsegv", "scale 10"][0] == "failed"
    assert "SIGSEGV" in found["dies-by-sigsegv", "scale 10"][1]
    assert found["torch", "scale 100"] == ("pass", "")


def test_findings_have_diagnostics_a_junit_file_and_a_command(cli, plugins):
    shutil.copy(plugins / "wrong" / "bugs.py", cli.folder / "own bugs.py")
    names = "leading-tile-of-inf,online-without-rescaling"
    given = ("--plugin", "own bugs.py", "--device", "cpu", "--dtype", "fp32", "--direction", "forward", "--seed", "7")
    done = cli("check", "--backends", f"torch,{names}", "--case", "long, [r-]*", *given, "--junit", "out.xml", "--json", "out.json")
    assert done.returncode == 1, done.stderr
    found = {(f["backend"], f["item"]): f for f in json.loads((cli.folder / "out.json").read_text())["findings"]}
    right = found["torch", "long, -inf first"]
    assert (right["verdict"], right["reason"]) == ("pass", "")
    assert 0 < right["worst"] <= 1
    assert 0 < right["ulp"] < 100
    assert 0 <= right["row_sum"] < 1e-5
    assert 0 < right["frobenius"] < 1e-5
    for name, item in (("leading-tile-of-inf", "long, -inf first"), ("online-without-rescaling", "long, rising")):
        assert found[name, item]["verdict"] == "wrong"
    assert found["leading-tile-of-inf", "long, -inf first"]["worst"] == "inf"

    suite = ElementTree.parse(cli.folder / "out.xml").getroot()
    wrong = [f for f in found.values() if f["verdict"] == "wrong"]
    assert suite.get("tests") == str(len(found))
    assert suite.get("failures") == str(len(wrong)) == str(len(suite.findall("testcase/failure")))
    case = suite.find("testcase[@classname='softbench.torch'][@name='forward fp32 long, -inf first']")
    assert "ULP" in case.find("system-out").text

    lines = [line.strip() for line in done.stderr.splitlines() if line.startswith("  softbench check")]
    assert sorted(lines) == sorted(failure.text for failure in suite.findall("testcase/failure"))


TRAITS = """
import resource
from pathlib import Path
import torch

class Reusing:
    name = "reusing"
    reuses_output = True
    def __init__(self): self.buffer = None
    def available(self): return None
    def supports(self, case): return None
    def prepare(self, case):
        buffer = torch.empty(case.M, case.N)
        return lambda x: buffer.copy_(torch.softmax(x, -1))

class Starving(Reusing):
    name = "starving"
    def prepare(self, case):
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + 2**27, resource.RLIM_INFINITY))
        def call(x):
            self.kept = []  # all memory but for three tensors of float64
            y = torch.softmax(x, -1)
            try:
                while True:
                    self.kept.append(torch.empty(2**15, dtype=torch.float64))
            except RuntimeError:
                del self.kept[-12:]
            return y
        return call

backends = [Reusing(), Starving()]
"""


def test_declared_traits_are_shown_and_uncompared_cases_are_unverified(cli):
    (cli.folder / "traits.py").write_text(TRAITS)
    given = ("--plugin", "traits.py", "--device", "cpu", "--dtype", "fp32", "--direction", "forward")
    done = cli("check", "--backends", "reusing", "--case", "twice*", *given)
    assert done.returncode == 0, done.stderr
    assert "pass: the next call overwrites its output, as it declares (1 case of reusing)" in done.stdout
    done = cli("check", "--backends", "starving", "--case", "shape 1x131072", *given, "--long", "--junit", "x.xml")
    assert done.returncode == 1  # nothing was compared
    assert "unverified" in done.stdout
    assert "the float64 reference needs more memory" in done.stdout
    assert ElementTree.parse(cli.folder / "x.xml").getroot().get("skipped") == "1"


def test_cases_after_invalid_replies_are_still_tried():
    (slot,) = (WorkerSlot(info) for info in make(("a",)).infos)
    pool = FakePool({("a", "run_check_case"): [{"x": 1}] * MAX_DEATHS + [CheckCaseGraded(PASS)]})
    session = SimpleNamespace(pool=pool, exclusive=False, revive=lambda slots: revive(pool, slots, "cpu", {}, 60.0))
    request = RunCheckCase("softmax", "shape 1x1", Direction.FORWARD, "fp32", 0)
    findings = [_Checker(session, Settings()).run([slot], request, alone=False)[0] for _ in range(MAX_DEATHS + 1)]
    assert [finding.verdict for finding in findings] == ["failed"] * MAX_DEATHS + ["pass"]
    assert findings[0].reason == "check: the worker sent an invalid reply"
