"""The order of things over sets of processes, and what is planned, with workers that only pretend."""

import signal
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from pretended import FakePool, info, make

from softbench.core.case import Case, Direction
from softbench.core.errors import Interrupted, UsageError
from softbench.core.machine import Gpu, Machine
from softbench.core.messages import Graded
from softbench.core.outcome import Accuracy, Failed, Record, Skipped, Status
from softbench.plan import plan as planning
from softbench.plan.settings import Settings
from softbench.processes.activity import Activity
from softbench.processes.session import choose_device
from softbench.processes.slot import WorkerSlot
from softbench.run import run
from softbench.run.cpu_load import CpuLoad
from softbench.run.pace import Pace


class Kept:
    """A run that has the cells of some sets of processes."""

    def __init__(self, sets):
        self.sets, self.added, self.names = sets, [], []

    def keep_log(self, label, text):
        """Nothing fails here that has a log."""

    def has(self, process, names, case):
        return process in self.sets

    def add(self, process, records):
        self.added.append(process)
        self.names.append([record.backend for record in records])


def test_a_run_that_is_interrupted_before_its_first_case_writes_its_files(monkeypatch, tmp_path):
    """If it continues an interrupted run, the document of that is gone by then."""
    ended = []
    kept = SimpleNamespace(name="run-1", interrupt=lambda: ended.append("written"))
    place = SimpleNamespace(tell=lambda name: None)
    for name, made in {
        **{"in_turn": (SimpleNamespace(), place), "prepare": run.Prepared(make(), [], frozenset())},
        **{"header": {}, "stored": kept, "CpuLoad": SimpleNamespace(look=lambda: None)},
    }.items():
        monkeypatch.setattr(run, name, lambda *given, made=made: made)

    def interrupted(begun):
        raise Interrupted(signal.SIGINT)

    observer = SimpleNamespace(watch=lambda doing: None, note=lambda text, **how: None)
    with pytest.raises(Interrupted):
        run.run(SimpleNamespace(output=tmp_path), observer, interrupted)
    assert ended == ["written"]


@pytest.mark.parametrize(("device", "order"), [("cuda", ["open 1", "open 2", "close 1", "close 2"]), ("cpu", ["open 1", "close 1"] * 2)])
def test_on_a_gpu_the_next_forkserver_starts_early(monkeypatch, device, order):
    """Sets 0, 1 and 3 of four are left; the pool of the first is the caller's. The CPU's next pool opens after the one before has ended."""
    log = []

    class Opened(FakePool):
        def __init__(self, activity=None, threads=None, pythons=()):
            super().__init__()
            self.number, self.closed = len([line for line in log if line.startswith("open")]) + 1, False

        def __enter__(self):
            log.append(f"open {self.number}")
            return self

        def close(self):
            if not self.closed:
                log.append(f"close {self.number}")
            self.closed = True

        def __exit__(self, *_):
            self.close()

    monkeypatch.setattr(run, "Pool", Opened)
    plan, kept = replace(make(processes=4), device=device), Kept({2})
    caller = FakePool()
    caller.activity, caller.threads, caller.pythons = Activity(), None, ()
    pace = Pace(plan, caller.activity, kept.has)
    run.execute(
        plan,
        kept,
        run.Watch(SimpleNamespace(note=log.append, advance=lambda case: None), pace, CpuLoad(log.append)),
        caller,
        [WorkerSlot(o) for o in plan.infos],
        {},
    )
    assert kept.added == [0, 1, 3]
    assert kept.names == [["copy", "a", "b"], ["b", "a", "copy"], ["b", "a", "copy"]]  # no backend always starts first
    assert (pace.done, pace.cells) == (4 * 3, 4 * 3)
    assert [line.split()[0] for line in log] == [line.split()[0] for line in order]


@pytest.mark.parametrize(("done", "added"), [(0, (2, 1, 1)), (1, (0, 1, 1)), (2, (0, 0, 1))])
@pytest.mark.parametrize("groups", [(("new", "old"),), (("new",), ("old",))])
def test_a_case_of_a_comparison_in_which_one_failed_is_not_measured_again(groups, done, added):
    """Nor by a run that continues one with `done` sets. If the device cannot hold both workers, the other one follows in the first set."""
    plan = replace(make(("new", "old"), cases=2, processes=3, yardstick=False), groups=groups)
    kept, pool = Kept(range(done)), FakePool()
    pool.activity, pool.threads, pool.pythons = Activity(), None, ()
    pool.script["new", "check"] = [] if done else [Graded(Accuracy.wrong("it is")), None]
    pace = Pace(plan, pool.activity, kept.has)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "Pool", lambda **_: nullcontext(pool))
        pool.close = lambda: None
        watch = run.Watch(SimpleNamespace(note=print, advance=lambda case: None), pace, CpuLoad(print))
        run.execute(plan, kept, watch, pool, [WorkerSlot(o) for o in plan.infos], {}, {plan.cases[0]: 0} if done else {})
    assert kept.added == [number for number, cases in enumerate(added) for _ in range(cases * len(groups))]
    assert pace.done == pace.cells


CASE = Case(8, 8, "fp32", Direction.FORWARD)


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ({"copy": "ok", "a": "ok"}, 0),
        ({"copy": "ok", "a": "ok", "b": "unavailable"}, 0),
        ({"copy": "ok", "a": "ok", "b": "wrong"}, 1),
        ({"copy": "ok", "a": "ok", "b": "timeout"}, 1),
        ({"copy": "ok", "a": "skipped"}, 1),
        ({"copy": "ok"}, 0),
        ({}, 1),
    ],
)
def test_the_exit_code_follows_from_the_statuses(make_record, statuses, code):
    def record(name, status):
        if status == "ok":
            return make_record(name, [1.0])
        if status in ("skipped", "unavailable"):
            return Record(name, CASE, Skipped("why", unavailable=status == "unavailable"))
        return Record(name, CASE, Failed(Status(status), "check", "why"))

    assert run.exit_code([record(name, status) for name, status in statuses.items()]) == code


def gpu(name="H200", mode="default", free=2**37):
    return Gpu(name, "GPU-" + name, free, free, mode, {})


def test_the_device_is_chosen_by_what_the_probe_saw():
    nothing = Machine("2.13", "torch is built without CUDA", (), "EPYC", 2**34, {})
    two = Machine("2.13", "", (gpu("A"), gpu("B")), "EPYC", 2**34, {})
    assert choose_device("auto", nothing) == ("cpu", None)
    assert choose_device("cuda:1", two) == ("cuda", gpu("B"))
    assert choose_device("cpu", two) == ("cpu", None)
    with pytest.raises(UsageError, match="built without CUDA; use --device cpu"):
        choose_device("cuda", nothing)
    with pytest.raises(UsageError, match="there are cuda:0 A, cuda:1 B"):
        choose_device("cuda:2", two)


def test_other_processes_on_the_gpu_are_noted():
    for others, note in ((1, "1 other process is"), (2, "2 other processes are")):
        busy = replace(gpu(), facts={"gpu_other_processes": others})
        machine = Machine("2.13", "", (busy,), "EPYC", 2**34, {})
        plan = planning.make(Settings(relative_to="copy"), [], machine, busy, [info("copy")])
        assert plan.notes == (f"{note} using this GPU; results may be disturbed",)


def test_workers_that_cannot_be_alive_together_are_grouped():
    assert planning.in_groups(["a", "b", "c"], 2) == (("a", "b"), ("c",))
    assert planning.in_groups(["a", "b"], 2, ["has-no-worker"]) == (("a", "b", "has-no-worker"),)
    assert planning.in_groups([], 2, ["has-no-worker"]) == (("has-no-worker",),)
    big = [Case(2**15, 2**15, "fp32", Direction.FORWARD)]
    assert planning.most_alive(big, "cuda", 52 * 2**30) == 4
    assert planning.most_alive(big, "cuda", 2**30) == 1


@pytest.mark.slow
def test_workers_say_which_cases_they_do_not_support(cli, tmp_path):
    """One worker replies for all backends of a source. What raises is asked again in its build; what exits gets a new worker."""
    text = (
        "import os\nfrom softbench.plugins.backend import Backend\nimport torch\n"
        "class B(Backend):\n"
        "    def __init__(self, name): self.name = name\n"
        "    def supports(self, case):\n"
        "        if self.name == 'even': return None if case.N % 2 == 0 else 'odd'\n"
        "        if self.name == 'raises': raise ValueError('no idea')\n"
        "        if self.name == 'odd': return None if case.N % 2 else 'even'\n"
        "        if self.name == 'exits': os._exit(3)\n"
        "    def prepare(self, case): return lambda x: torch.softmax(x, -1)\n"
    )
    (tmp_path / "plug.py").write_text(text + "backends = [B('unused'), B('raises'), B('even'), B('odd')]\n")
    (tmp_path / "exits.py").write_text(text + "backends = [B('exits')]\n")
    plugins = ("--plugin", "plug.py", "--plugin", "exits.py", "--backends", "even,odd,raises,exits")
    done = cli("run", *plugins, "--M", 8, "--N", "7,8", "--device", "cpu", "--quick")
    assert "; 8 cells, about" in done.stderr  # two each of copy, raises and exits
    outcomes = {(cell["backend"], cell["case"]["N"]): cell["outcome"]["kind"] for cell in cli.document()["cells"]}
    assert [outcomes["even", N] for N in (7, 8)] == ["skipped", "measured"]
    assert [outcomes["odd", N] for N in (7, 8)] == ["measured", "skipped"]
    assert {outcomes[name, 8] for name in ("raises", "exits")} == {"failed"}
