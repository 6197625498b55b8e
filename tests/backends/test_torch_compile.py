"""torch.compile in its ways, Dynamo's backends by name, and the elders: on the CPU, without Inductor where that will do."""

import importlib.util
import json
import sys
import warnings
from types import ModuleType, SimpleNamespace

import pytest
import torch

from softbench.backends import dynamo_backends as dynamo, torch_compile as compiled, torchscript_fx as elders
from softbench.backends.torch_compile import Compiled
from softbench.core.case import Case, Direction
from softbench.core.outcome import Accuracy, Batch, Build, Grade, Measured, Profile, Record, Timing
from softbench.ops.softmax import inputs, tolerance as correctness
from softbench.plugins.info import BackendInfo
from softbench.plugins.load import load
from softbench.plugins.source import PluginSource, origins
from softbench.report import listing, tables
from softbench.results import labels
from softbench.worker.compile_stats import Graphs
from softbench.worker.server import Server


def case(N=32, dtype="fp32", direction=Direction.FORWARD, M=8, device="cpu"):
    return Case(M, N, dtype, direction, device)


def grade(backend, wanted):
    given = inputs.make(wanted, 0, torch.device("cpu"))
    out = backend.prepare(wanted)(*given)
    accuracy = correctness.check(wanted, given, out if wanted.direction is Direction.BOTH else (out,))
    return accuracy.grade, accuracy.detail


@pytest.fixture(scope="module")
def by_name():
    return {backend.name: backend for backend in compiled.backends}


def test_the_ways_come_through_one_door_and_only_one_is_in_all(by_name):
    door = next(door for door in origins([]) if door.label == "compile")
    assert {backend.name for backend in load(door)} == set(by_name)
    for family in ("compile", "compile-torch"):
        for way in ("plain", "fullgraph", "dynamic", "max-autotune", "max-autotune-no-cudagraphs", "reduce-overhead"):
            assert by_name[f"{family}:{way}"].extra
    assert [name for name, backend in by_name.items() if not backend.extra] == ["compile"]
    assert all(backend.summary and backend.advice for backend in compiled.inductor)


def test_each_way_calls_torch_compile_as_it_is_named(monkeypatch, by_name):
    called = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: called.append((function.__name__, options)) or function)
    expected = {
        "compile": {"dynamic": False, "fullgraph": True},
        "compile:plain": {},
        "compile:fullgraph": {"fullgraph": True},
        "compile:dynamic": {"dynamic": True, "fullgraph": True},
        "compile:max-autotune-no-cudagraphs": {"mode": "max-autotune-no-cudagraphs", "dynamic": False, "fullgraph": True},
        "compile:eager": {"backend": "eager"},
        "compile-torch:dynamic": {"dynamic": True, "fullgraph": True},
    }
    for name, options in expected.items():
        called.clear()
        by_name[name].prepare(case())
        functions = ("_forward", "_backward") if name.startswith("compile-torch") else ("naive_forward", "naive_backward")
        assert called == [(function, options) for function in functions], name


def graphs_of(backend, columns):
    made = []
    for N in columns:
        graphs = Graphs()
        backend.prepare(case(N))(torch.randn(8, N))
        made.append(graphs.count())
    return made


def test_what_is_compiled_anew_makes_a_graph_for_each_shape_and_automatic_shapes_make_two():
    torch._dynamo.reset()
    assert graphs_of(Compiled("compile:x", "", "", backend="eager", dynamic=False), [16, 32, 64]) == [1, 1, 1]
    automatic = Compiled("compile:x", "", "", backend="eager", anew=False)
    assert graphs_of(automatic, [16, 32, 64]) == [1, 1, 0]
    automatic.prepare(case(16, "bf16"))  # another dtype starts again, so that Dynamo's limit of recompilations stays out of reach
    assert graphs_of(automatic, [16]) == [1]


def test_cuda_graphs_are_recorded_before_the_first_timed_call_and_declared(by_name):
    calls = []
    compiled._record(
        lambda *given: calls.append([(tensor.shape, tensor.requires_grad) for tensor in given]), case(direction=Direction.BOTH)
    )
    assert calls == [[((8, 32), True), ((8, 32), False)]] * compiled.GRAPH_CALLS
    reusing = {name for name, backend in by_name.items() if backend.reuses_output}
    families = ("compile", "compile-torch")
    assert reusing == {f"{family}:{way}" for family in families for way in ("max-autotune", "reduce-overhead")} | {"compile:cudagraphs"}
    for name in reusing:
        assert "CUDA graphs need a GPU" in by_name[name].supports(case())
        assert by_name[name].supports(case(device="cuda")) is None or name == "compile:cudagraphs"


def test_a_reused_output_is_shown_in_list_and_table():
    offer = BackendInfo("graphs", PluginSource("file", "g", "/g.py", "g.py"), summary="s", reuses_output=True, extra=True)
    assert tables.offer(offer)[2] == "s; reuses its output [g.py]"
    timing = Timing((Batch(0, 0, 0, (1.0, 1.0, 1.0)),), "do_bench")
    outcome = Measured(Build(0.5, "cold", 0.4, 2, True), Accuracy(Grade.PASS, 0.1, ""), timing, Profile(recompiles=1))
    found = labels.of(Record("graphs", case(), outcome, ""), {})
    assert found == ("recompiled", "graph-breaks", "reuses-output")
    assert "the next call overwrites" in labels.MEANING["reuses-output"]
    assert "1 extra, which all leaves out" in listing.extras([offer])


def test_a_compilers_own_thread_is_started_once_and_a_thread_a_call_is_one_that_works_on():
    import threading

    from softbench.worker.check_case import CheckCaseRunner

    class Compiling:
        once, started, first, seconds = True, 0, torch.softmax, 60.0

        def available(self):
            return None

        def supports(self, wanted):
            return None

        def prepare(self, wanted):
            return self.call

        def call(self, x):
            if not (self.once and self.started):
                self.started += 1
                threading.Thread(target=done.wait, args=(self.seconds,), daemon=True).start()
                return type(self).first(x, -1)
            return torch.softmax(x, -1)

    name = next(name for (name, direction), item in CheckCaseRunner(Compiling(), "cpu").items.items() if direction is Direction.FORWARD)
    compiling, done = Compiling(), threading.Event()
    try:
        assert CheckCaseRunner(compiling, "cpu").examine(name, Direction.FORWARD, "fp32", 0).grade is Grade.PASS
        compiling.started, compiling.seconds = 0, 0.01  # that ends while the judge waits to see whether the output changes
        assert CheckCaseRunner(compiling, "cpu").examine(name, Direction.FORWARD, "fp32", 0).grade is Grade.PASS
        compiling.started, Compiling.first = 0, staticmethod(lambda x, dim: torch.zeros_like(x))  # the first output counts
        assert CheckCaseRunner(compiling, "cpu").examine(name, Direction.FORWARD, "fp32", 0).grade is Grade.WRONG
        Compiling.first, compiling.seconds = torch.softmax, 60.0
        compiling.once = False
        found = CheckCaseRunner(compiling, "cpu").examine(name, Direction.FORWARD, "fp32", 0)
        assert (found.grade, found.detail[:21]) == (Grade.WRONG, "left 1 thread running")
    finally:
        done.set()


def test_an_output_that_is_said_to_be_reused_may_be_and_another_may_not():
    from softbench.worker.check_case import CheckCaseRunner

    class Reusing:
        reuses_output = True

        def available(self):
            return None

        def supports(self, wanted):
            return None

        def prepare(self, wanted):
            out = torch.empty(wanted.M, wanted.N)
            return lambda x: out.copy_(torch.softmax(x, -1))

    name = next(name for (name, direction), item in CheckCaseRunner(Reusing(), "cpu").items.items() if item.repeat == "twice")
    honest = Reusing()
    assert CheckCaseRunner(honest, "cpu").examine(name, Direction.FORWARD, "fp32", 0).grade is Grade.PASS
    honest.reuses_output = False
    assert (
        CheckCaseRunner(honest, "cpu")
        .examine(name, Direction.FORWARD, "fp32", 0)
        .detail.startswith("two outputs that are both alive share")
    )


BREAKS = """
import torch
def broken(x):
    y = torch.softmax(x, -1)
    torch._dynamo.graph_break()
    return y * 1
class B:
    name, compiles = "breaks", True
    def available(self): pass
    def supports(self, case): pass
    def prepare(self, case):
        torch._dynamo.reset()
        return torch.compile(broken, backend="eager")
backend = B()
"""


def test_graph_breaks_are_counted_in_the_build(tmp_path):
    (tmp_path / "breaks.py").write_text(BREAKS)
    seat = Server()
    door = {"kind": "file", "label": "breaks", "target": str(tmp_path / "breaks.py"), "shown": "breaks.py", "alias": ""}
    [offer] = seat.do_load(door, "cpu")["offers"]
    assert (offer["extra"], offer["reuses_output"]) == (False, False)
    wanted = {"M": 4, "N": 8, "dtype": "fp32", "direction": "forward", "device": "cpu"}
    build = seat.do_build(wanted, 0)["build"]
    assert build["graph_breaks"] == 1
    assert json.loads(json.dumps(build)) == build
    torch._dynamo.reset()


def test_every_registered_dynamo_backend_is_there_and_what_it_cannot_do_is_a_reason(by_name):
    for name in torch._dynamo.list_backends(None):
        backend = by_name[f"compile:{name}"]
        why = backend.available() or backend.supports(case())
        if why is None and name not in ("inductor", "cudagraphs"):
            assert grade(backend, case()) == (Grade.PASS, ""), name
        else:
            assert why is None or len(why) > 10


def test_the_backends_that_are_gone_say_since_when_and_what_instead(by_name):
    assert {"nvfuser", "nvprims_nvfuser", "aot_ts_nvfuser", "onnxrt", "fx2trt"} <= set(dynamo.GONE)
    for name, (since, _) in dynamo.GONE.items():
        if not by_name[f"compile:{name}"].registered:
            assert f"gone from PyTorch since {since}; instead: " in by_name[f"compile:{name}"].available()
    assert "aot_ts_nvfuser, which is gone since 2.1" in by_name["compile:nvfuser"].available()


@pytest.mark.parametrize("name", sorted(dynamo.PACKAGES))
def test_a_backend_without_its_package_says_what_to_install(name, by_name, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    backend = dynamo.Other(name, registered=False)
    assert backend.available() == f"{dynamo.PACKAGES[name].module.partition('.')[0]} is not installed: {dynamo.PACKAGES[name].advice}"


def test_a_package_that_registers_its_backend_is_imported_before_it_compiles(monkeypatch):
    from torch._dynamo.backends import registry as theirs

    module = ModuleType("hidet")
    monkeypatch.setitem(sys.modules, "hidet", module)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace())
    monkeypatch.setitem(theirs._BACKENDS, "hidet", None)
    monkeypatch.setitem(theirs._COMPILER_FNS, "hidet", theirs._COMPILER_FNS["eager"])
    backend = dynamo.Other("hidet", registered=False)
    assert backend.available() is None
    assert grade(backend, case()) == (Grade.PASS, "")
    torch._dynamo.reset()


def test_a_package_that_does_not_import_is_one_line(monkeypatch, tmp_path):
    (tmp_path / "hidet.py").write_text("raise OSError('libhidet.so: not\\nfound')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "hidet", raising=False)
    reason = dynamo.Other("hidet", registered=False).available()
    assert reason == "hidet cannot be imported (OSError: libhidet.so: not found): pip install hidet"


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("elder", [elders.trace, elders.script, elders.fx], ids=lambda elder: elder.name)
def test_the_elders_are_right_and_silent_about_their_deprecation(elder, direction):
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        assert elder.available() is None
        assert grade(elder, case(direction=direction)) == (Grade.PASS, "")
    assert elder.extra
    assert elder.supports(case(0)) == "it takes no rows without elements"


def test_a_registered_backend_that_compiles_nothing_says_so_once_and_what_to_use_instead(monkeypatch):
    def compiled(function, backend):
        tried.append(backend)
        raise TypeError("it is not\nwhat it was")

    tried = []
    monkeypatch.setattr(torch, "compile", compiled)
    backend = dynamo.Other("ts", registered=True)
    for _ in range(2):
        assert backend.supports(case()) == (
            f"it fails in torch {torch.__version__} on any function; instead: jit-script, jit-trace or compile (it is not what it was)"
        )
    assert tried == ["ts"]
    assert "; instead: compile (" in dynamo.Other("aot_other", registered=True).supports(case())
