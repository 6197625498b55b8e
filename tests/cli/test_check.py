"""`softbench check` on the command line: what it tells, and what an interruption leaves."""

import json
import re
import shlex
import signal
import time
from contextlib import nullcontext
from importlib import metadata
from xml.etree import ElementTree

import pytest
from timed import wait_for

from softbench.cli.check import TOLD, _first
from softbench.cli.output import AGAIN_SECONDS
from softbench.core.errors import Interrupted
from softbench.plugins.source import GROUP
from softbench.run.check import Finding

TWO = """
import torch


class Mine:
    def __init__(self, name, extra):
        self.name, self.extra = name, extra

    def available(self):
        return None

    def supports(self, case):
        return None

    def prepare(self, case):
        return lambda x: torch.softmax(x, -1)


backends = [Mine("mine", False), Mine("spare", True)]
"""


@pytest.mark.slow
def test_an_interrupted_check_ends_its_workers_with_the_signals_code(cli, plugins):
    process = cli.start("check", "--plugin", plugins / "faulty" / "faults.py", "--backends", "sleeps-for-ever", "--device", "cpu")
    wait_for(lambda: len(cli.left_behind()) >= 3)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 143
    assert stderr == "softbench: interrupted\n"


def test_an_interrupted_check_reports_what_it_found(main, plugins, tmp_path, monkeypatch):
    """In the table, in the JSON and in the JUnit file."""
    messages = []

    def stop(done, total, now):
        messages.append((done, total))
        if done == 2:
            raise Interrupted(signal.SIGINT)

    monkeypatch.setattr("softbench.cli.output.counter", lambda unit: nullcontext(stop))
    given = ("--backends", "torch,zeros", "--plugin", plugins / "wrong" / "zeros.py", "--device", "cpu", "--case", "shape 37x*")
    code, out, err = main("check", *given, "--json", "found.json", "--junit", "found.xml")
    assert (code, messages[-1][0]) == (130, 2)
    left = messages[-1][1] - 2
    assert f"softbench: interrupted; {left} cases left out" in err and "zeros is wrong" in err
    assert "torch: 2 pass" in out
    document = json.loads((tmp_path / "found.json").read_text())
    assert (len(document["findings"]), document["cases_left"]) == (4, left)
    assert ElementTree.parse(tmp_path / "found.xml").getroot().get("tests") == "5"  # one is the interruption


@pytest.mark.slow
def test_only_some_wrong_findings_of_a_backend_are_told(main, plugins):
    """Of each backend, and of each direction and dtype first: a backend that is wrong everywhere would hide the others."""
    file = plugins / "wrong" / "zeros.py"
    given = ("--plugin", file, "--plugin", f"other={file}", "--backends", "zeros,other", "--device", "cpu", "--case", "shape 37x*")
    told = main("check", *given)[2].splitlines()
    for name in ("zeros", "other"):
        own = [line for line in told if f"--backends {name} " in line]
        assert len(own) == TOLD and all(line.count("--plugin") == 1 for line in own)
        assert len({(re.search(r"--direction (\w+)", line)[1], re.search(r"--dtype (\w+)", line)[1]) for line in own}) == TOLD
        (left,) = (
            int(found[1]) for line in told if (found := re.match(rf"softbench: {name}: (\d+) more wrong or failed findings; ", line))
        )
    every = [line for line in main("check", *given, "--long")[2].splitlines() if "--backends other " in line]
    assert len(every) == TOLD + left


def test_another_reason_is_told_before_one_that_repeats():
    found = [Finding("a", str(i), "forward", ("fp32", "bf16")[i % 2], "wrong", None, "NaN" if i < 9 else "far off") for i in range(12)]
    told = _first([(finding, "") for finding in found])
    assert [finding.item for finding, _ in told] == ["0", "1", "2", "9", "10"]


@pytest.mark.parametrize("backends", [(), ("--backends", "all"), ("--backends", "torch")])
def test_without_backends_only_those_of_the_plugin_are_checked(main, tmp_path, backends, monkeypatch):
    """Also one that `all` leaves out, and one that is called as another plugin's file."""
    few = [point for point in metadata.entry_points(group=GROUP) if point.name in ("copy", "naive", "torch")]
    monkeypatch.setattr(metadata, "entry_points", lambda group: few)
    (tmp_path / "naive.py").write_text(TWO)
    asked = ("--case", "shape 37x2", "--dtype", "fp32", "--direction", "forward", "--device", "cpu", "--json", "-")
    code, out, err = main("check", "--plugin", "naive.py", *backends, *asked)
    found = {finding["backend"] for finding in json.loads(out)["findings"]}
    assert code == 0, err
    if not backends:
        assert found == {"mine", "spare"}
    else:
        assert found == ({"torch"} if backends[1] == "torch" else {"torch", "naive", "mine"})


@pytest.mark.parametrize("others", [(), ("--plugin", "other.py")])
def test_the_command_that_repeats_a_finding_takes_a_plugin_that_has_the_name_of_a_backend(main, tmp_path, others):
    (tmp_path / "naive.py").write_text("def softmax(x):\n    return x\n")
    (tmp_path / "other.py").write_text("def softmax(x):\n    return x.softmax(-1)\n")
    given = ("--plugin", "naive.py", "--case", "shape 37x2", "--dtype", "fp32", "--direction", "forward", "--device", "cpu")
    code, _, err = main("check", *given, *others)
    (line,) = (line for line in err.splitlines() if line.startswith("  softbench check"))
    assert (code, "naive is wrong" in err) == (1, True)
    code, _, again = main(*shlex.split(line)[1:])
    assert (code, again) == (1, err)


def test_a_plugin_whose_only_backend_is_called_copy_is_told_to_rename_it(main, tmp_path):
    """It names no --backends, and its `copy` is not the yardstick."""
    (tmp_path / "copy.py").write_text("def softmax(x):\n    return x\n")
    asked = ("--case", "shape 37x2", "--device", "cpu")
    assert main("check", "--plugin", "copy.py", *asked) == (
        2,
        "",
        "softbench: --plugin copy.py: copy is the name of the yardstick; rename it: --plugin NAME=FILE\n",
    )


def test_an_empty_pattern_prints_all_names(main):
    """One a line, and nothing passed."""
    code, out, err = main("check", "--case", "", "--junit", "none.xml", "--device", "cpu")
    names = out.splitlines()
    assert (code, err.count("\n")) == (2, 1) and "checked none" in err
    assert len(names) == len({*names}) > 100
    code, _, err = main("check", "--case", "no such", "--backends", "torch", "--device", "cpu")
    assert (code, f"prints the {len(names)} names" in err) == (2, True)


FOUND = ("--json", "found.json", "--junit", "found.xml")


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_check_writes_its_files_without_its_reader(cli, signum):
    """Ctrl-C of a terminal ends both sides of a pipe, and a program that passes it on sends it twice."""
    calls = cli.folder / "calls"
    (cli.folder / "mine.py").write_text(
        f"import torch\ndef mine(x):\n    open({str(calls)!r}, 'a').write('1')\n    return torch.softmax(x, -1)\n"
    )
    process = cli.start("check", "--plugin", "mine.py:mine", "--backends", "mine", "--device", "cpu", *FOUND)
    process.stdout.close()
    process.stderr.close()
    wait_for(lambda: calls.exists() and calls.stat().st_size >= 30)  # of several cases
    for _ in range(4):  # some of them while it writes
        process.send_signal(signum)
        time.sleep(AGAIN_SECONDS / 6)
    code = process.wait(timeout=30)
    assert code == 128 + signum
    document = json.loads((cli.folder / "found.json").read_text())
    assert document["findings"] and document["cases_left"] > 0
    (error,) = ElementTree.parse(cli.folder / "found.xml").getroot().iter("error")
    assert error.get("message") == f"an interruption left out {document['cases_left']} cases"
