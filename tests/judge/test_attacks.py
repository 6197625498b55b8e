"""Known tricks, and attacks by host code on the judge, each in a process of its own."""

import os

import pytest
import torch
from problem_files import cases, problem
from sampled import sampled
from shared_harness import MOST, SECRET, measured
from wrongs import CASE, PLUGINS, confined, judged, load

from softbench.core.case import Case, Direction
from softbench.plugins.source import FILE, PluginSource, origins

ATTACKS = load(PLUGINS / "wrong" / "judge_attacks.py")
PORTS = [attack for attack in load(PLUGINS / "wrong" / "harness_attacks.py") if not attack.cuda]
FOUND = (
    *("cached-by-version", "skips-when-unwatched", "normal-rows-only", "by-a-pool-of-threads", "by-and-by"),
    *("stale-memory", "damages-when-unwatched", "patches-the-reference"),
)
"""Tricks without a time, one of each kind."""
HARMLESS = ("patches-the-judge",)
"""Tricks that compute every call, so that their time is honest."""
ON_CPU = {
    file: [one.name for one in load(PLUGINS / "wrong" / f"{file}.py") if not getattr(one, "cuda", False)]
    for file in ("tricks", "batch_tricks")
}
TRICKS = [(file, name) for file, names in ON_CPU.items() for name in names]
LARGE = Case(256, 1024, "fp32", Direction.FORWARD, "cpu")
NOISE = 0.3
"""Of a CPU's times."""
SLOW_US = 1000
TRIES = 5
"""Measurements of which one must be undisturbed by other programs."""


def undisturbed(make, is_so):
    """A measurement of the shared harness for which this holds, else the last one of TRIES."""
    return next((found for found in (measured(make) for _ in range(TRIES - 1)) if is_so(found)), None) or measured(make)


@pytest.mark.parametrize("name", FOUND)
def test_a_known_trick_gets_no_time(judge, name):
    found = judged(judge, "wrong/tricks.py", name)
    assert found.status in ("wrong", "failed"), found
    assert found.document(CASE)["us"] is None


@pytest.fixture(scope="module")
def honest_us(judge):
    """Times of torch, which a test adds to: while other programs use the processors, one time is several times as long as another."""
    torchs = next(source for source in origins(()) if source.label == "torch")
    found = []

    def least(times):
        while len(found) < times:
            found.append(judge.judge(torchs, LARGE, "torch").document(LARGE)["at_most_us"])
        return min(found)

    return least


@pytest.mark.slow
@pytest.mark.parametrize(("file", "name"), TRICKS)
def test_every_trick_computes_or_gets_no_time(judge, honest_us, file, name):
    found = judged(judge, f"wrong/{file}.py", name, LARGE).document(LARGE)
    assert found["status"] != "ok" or any(found["at_most_us"] >= (1 - NOISE) * honest_us(times) for times in range(1, TRIES + 1)), found


@pytest.mark.parametrize("name", HARMLESS)
def test_a_patch_of_its_own_process_changes_nothing(judge, name):
    assert judged(judge, "wrong/tricks.py", name).status == "ok"


@confined
@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if not attack.cuda], ids=lambda attack: attack.name)
def test_an_attack_reaches_nothing_that_counts(judge, attack):
    found = judged(judge, "wrong/judge_attacks.py", attack.name)
    assert (found.status, attack.rule in found.reason) == (attack.ends, True), found
    if attack.name in ("without-clocks", "detours-a-clock"):
        assert found.document(CASE)["at_most_us"] > SLOW_US


@confined
@pytest.mark.parametrize("attack", sampled(PORTS, lambda attack: PORTS.index(attack) % 2 == 0), ids=lambda attack: attack.name)
def test_an_attack_on_a_shared_process_gains_nothing(judge, attack):
    """This process has the secret, and the plugin's process has not. A slow call stays slow, and no call is left out."""
    found = judged(judge, "wrong/harness_attacks.py", attack.name)
    assert (found.status, attack.rule in found.reason, found.calls) == (attack.ends, True, 64), (found, SECRET[:9])
    if attack.name in ("rewrites-its-replies", "patches-the-table"):
        assert found.document(CASE)["at_most_us"] > SLOW_US
    assert found.status == "ok" or found.document(CASE)["us"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack", [*PORTS, *(attack for attack in ATTACKS if attack.name == "detours-a-clock")], ids=lambda attack: attack.name
)
def test_the_same_attack_fools_a_harness_in_its_process(judge, attack):
    if attack.name in ("patches-the-table", "detours-a-clock") and os.uname().machine != "x86_64":
        pytest.skip("its code is x86-64's")
    fools = getattr(attack, "fools", "time")
    found = undisturbed(attack.make, lambda found: fools != "time" or found["us"] < SLOW_US / 10)
    if fools == "error":
        if "error" not in found:
            pytest.skip("this machine forbids ptrace to all")
        assert found["error"].startswith("reached ")
        return
    assert found["right"]
    assert fools != "time" or found["us"] < SLOW_US / 10
    assert fools != "calls" or found["calls"] < MOST / 2


def test_a_shared_harness_is_right_about_honest_code():
    honest = {"right": True, "us": pytest.approx(500, abs=500), "calls": MOST}
    assert undisturbed(lambda: lambda x: torch.softmax(x, dim=-1), honest.__eq__) == honest
    assert not measured(lambda: torch.zeros_like)["right"]


LATE = """
import torch
from softbench.worker.judged import calls
later = []
calls.synchronize = lambda device: [later.pop()() for _ in later.copy()]

def solution(x):
    later.append(lambda: x.mul_(2))
"""


def test_work_for_which_the_caller_does_not_wait_is_wrong(judge, tmp_path):
    """It plays a stream of a GPU: its work is done when the device is waited for. Challenges that are read later are right."""
    operation = problem(tmp_path, "def inputs(M=16, N=96):\n return torch.randn(M, N)\n\ndef reference(x):\n x.mul_(2)\n")
    (file := tmp_path / "solution" / "late.py").parent.mkdir()
    file.write_text(LATE)
    files = [str(tmp_path / f"{operation.name}.py")]
    found = judge.judge(PluginSource(FILE, "late", str(file), "late.py"), *cases(operation), None, files)
    assert (found.status, "read right after its call" in found.reason, found.grade) == ("wrong", True, "wrong"), found


def test_a_left_process_ends_with_its_judgement(judge, forked):
    before = set(forked())
    assert judged(judge, "wrong/judge_attacks.py", "leaves-a-process").status == "ok"
    assert not [line for line in set(forked()) - before if "sleep" in line]
