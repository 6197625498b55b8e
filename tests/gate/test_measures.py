"""Measures beside the time: counts are compared, times of process pairs are tested, and ambiguous ones fail nothing."""

import pytest

from softbench.core.case import Case, Direction
from softbench.core.errors import UsageError
from softbench.core.outcome import Accuracy, Build, Grade, Measured, Profile, Record, Timing
from softbench.gate import measures
from softbench.gate.verdicts import GateReport, Rules

CASE = Case(4, 8, "fp32", Direction.FORWARD, "cuda")


class Run:
    """A run of `new` and `old` with a profile for each process."""

    def __init__(self, new, old, processes=6):
        self.profiles = {"new": new, "old": old}
        self.processes = processes

    def by_process(self):
        for process in range(self.processes):
            for name, of in self.profiles.items():
                outcome = Measured(Build(1.0, ""), Accuracy(Grade.PASS, 0.0, ""), Timing("queued", 1.0, (), ""), of(process))
                yield process, Record(name, CASE, outcome, "", "")


def states(run, *chosen):
    report = measures.judged(GateReport("", (), Rules(0.03)), run, measures.parse(chosen), "new", "old")
    return {one.cell.measure: (one.state.value, one.gated) for one in report.verdicts}, report


def test_counts_are_worse_beyond_their_margin():
    new = Profile(kernels=("a", "b"), peak_bytes=1040, recompiles=0)
    old = Profile(kernels=("a",), peak_bytes=1000, recompiles=0)
    found, report = states(Run(lambda _: new, lambda _: old), "memory=5", "kernels", "recompiles")
    assert found == {"memory": ("same", True), "kernels": ("slower", True), "recompiles": ("same", True)}
    assert report.exit_code == 1
    assert report.verdicts[0].reason == "2 kernels now, 1 kernel in the reference; the margin is 0%"


def test_times_of_process_pairs_are_tested_and_noise_changes_no_exit_code():
    def times(us, noise):
        return lambda process: Profile(device_us=(us * (1 + noise * (process % 3 - 1)),), host_us=(us,))

    assert states(Run(times(110, 0.001), times(100, 0.001)), "device", "host=15")[0] == {"device": ("slower", True), "host": ("same", True)}
    found, report = states(Run(times(106, 0.3), times(100, 0)), "device")
    assert found == {"device": ("ambiguous", False)}
    assert report.exit_code != 1


def test_a_measure_that_nothing_took_is_a_note():
    _, report = states(Run(lambda _: Profile(), lambda _: Profile()), "device", "compile")
    assert [note.partition(" ")[0] for note in report.notes] == ["device", "compile"]


@pytest.mark.parametrize("text", ["size", "host=x", "host=0", "memory=-1"])
def test_an_unknown_measure_and_a_wrong_margin_are_refused(text):
    with pytest.raises(UsageError, match="--measure"):
        measures.parse([text])
