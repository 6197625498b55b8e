"""torch.compile in its ways, Dynamo's backends by name, and the backends: on the CPU, without Inductor where that will do."""

import pytest
import torch
from compiling import case

from softbench.backends import dynamo_backends, torch_compile
from softbench.backends.torch_compile import Compiled
from softbench.core.case import Case, Direction
from softbench.core.outcome import Accuracy, Batch, Build, Grade, Measured, Profile, Record, Timing
from softbench.plugins.info import BackendInfo
from softbench.plugins.load import load
from softbench.plugins.source import PluginSource, origins
from softbench.report import listing, tables
from softbench.results import labels
from softbench.worker.compile_stats import Graphs
from softbench.worker.server import Server


@pytest.fixture(scope="module")
def by_name():
    return {backend.name: backend for backend in dynamo_backends.backends}


def test_one_entry_point_offers_every_variant(by_name):
    source = next(source for source in origins([]) if source.label == "compile")
    assert {backend.name for backend in load(source)} == set(by_name)
    for family in ("compile", "compile-torch"):
        for way in ("plain", "fullgraph", "dynamic", "max-autotune", "max-autotune-no-cudagraphs", "reduce-overhead"):
            assert by_name[f"{family}:{way}"].extra
    assert [name for name, backend in by_name.items() if not backend.extra] == ["compile"]
    assert all(backend.summary and backend.advice for backend in torch_compile.inductor)


def test_each_variant_passes_its_options_to_torch_compile(monkeypatch, by_name):
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


def test_reset_compiles_each_shape_and_automatic_shapes_compile_twice():
    torch._dynamo.reset()
    assert graphs_of(Compiled("compile:x", "", "", backend="eager", dynamic=False), [16, 32, 64]) == [1, 1, 1]
    automatic = Compiled("compile:x", "", "", backend="eager", reset=False)
    assert graphs_of(automatic, [16, 32, 64]) == [1, 1, 0]
    automatic.prepare(case(16, "bf16"))  # another dtype starts again, so that Dynamo's limit of recompilations stays out of reach
    assert graphs_of(automatic, [16]) == [1]


def test_cuda_graphs_are_recorded_before_the_first_call(by_name):
    calls = []
    torch_compile._record(
        lambda *given: calls.append([(tensor.shape, tensor.requires_grad) for tensor in given]), case(direction=Direction.BOTH)
    )
    assert calls == [[((8, 32), True), ((8, 32), False)]] * torch_compile.GRAPH_CALLS
    reusing = {name for name, backend in by_name.items() if backend.reuses_output}
    families = ("compile", "compile-torch")
    assert reusing == {f"{family}:{way}" for family in families for way in ("max-autotune", "reduce-overhead")} | {"compile:cudagraphs"}
    for name in reusing:
        assert "CUDA graphs need a GPU" in by_name[name].supports(case())
        assert by_name[name].supports(case(device="cuda")) is None or name == "compile:cudagraphs"


def test_the_list_shows_a_reused_output_and_labels_what_dynamo_did():
    info = BackendInfo("graphs", PluginSource("file", "g", "/g.py", "g.py"), summary="s", reuses_output=True, extra=True)
    assert tables.info(info)[2] == "s; reuses its output [g.py]"
    timing = Timing((Batch(0, 0, 0, (1.0, 1.0, 1.0)),), "do_bench")
    outcome = Measured(Build(0.5, "cold", 0.4, 2, True), Accuracy(Grade.PASS, 0.1, ""), timing, Profile(recompiles=1))
    found = labels.of(Record("graphs", case(), outcome, ""), {})
    assert found == ("recompiled", "graph-breaks")
    assert "1 extra that --backends all leaves out" in listing.extras([info])


def test_threads_that_stay_pass_and_late_outputs_are_wrong(monkeypatch):
    """The late thread writes between the two readings, however busy the machine is: when the watch gives threads their time."""
    import threading
    from types import SimpleNamespace

    from softbench.worker.checking.check_case import CheckCaseRunner
    from softbench.worker.guarding import async_work

    class Threaded:
        def __init__(self, work):
            self.work = work

        def available(self):
            return None

        def supports(self, wanted):
            return None

        def prepare(self, wanted):
            return self.call

        def call(self, x):
            y = torch.softmax(x, -1)
            threading.Thread(target=self.work, args=(y,), daemon=True).start()
            return y

    def stays(y):
        written.set()  # nothing
        done.wait(60)

    def late(y):
        given_time.wait(60)
        y.zero_()
        written.set()

    def sleep(seconds):
        assert seconds == async_work.SETTLE_SECONDS
        given_time.set()
        assert written.wait(60)

    name, (done, given_time, written) = "shape 37x256", (threading.Event() for _ in range(3))
    monkeypatch.setattr(async_work, "time", SimpleNamespace(sleep=sleep))
    try:
        for work, grade, detail in ((stays, Grade.PASS, ""), (late, Grade.WRONG, "wrote its output after its call")):
            given_time.clear(), written.clear()
            found = CheckCaseRunner(Threaded(work), "cpu").run(name, Direction.FORWARD, "fp32", 0)
            assert (found.grade, found.detail[: len(detail)]) == (grade, detail)
    finally:
        done.set()


def test_only_a_declared_backend_may_reuse_its_output():
    from softbench.worker.checking.check_case import CheckCaseRunner

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
    assert CheckCaseRunner(honest, "cpu").run(name, Direction.FORWARD, "fp32", 0).grade is Grade.PASS
    honest.reuses_output = False
    assert CheckCaseRunner(honest, "cpu").run(name, Direction.FORWARD, "fp32", 0).detail.startswith("two outputs that are both alive share")


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
    server = Server()
    source = PluginSource("file", "breaks", str(tmp_path / "breaks.py"), "breaks.py")
    [info] = server.load(source, "cpu").infos
    assert (info["extra"], info["reuses_output"]) == (False, False)
    build = server.build(Case(4, 8, "fp32", Direction.FORWARD, "cpu"), 0).build
    assert build.graph_breaks == 1
    torch._dynamo.reset()


def test_any_dimension_is_compiled(by_name):
    x, dy = torch.randn(2, 3, 5, 4).unbind()
    with torch.compiler.set_stance("force_eager"):  # what is compiled is a matter of torch
        for name in ("compile", "compile-torch", "compile:plain", "compile:reduce-overhead"):
            y = by_name[name].over_dim(Direction.FORWARD)(x, 1)
            dx = by_name[name].over_dim(Direction.BACKWARD, "log_softmax")(dy, y, 0)
            assert torch.allclose(y, x.softmax(1))
            assert torch.allclose(dx, dy - y.exp() * dy.sum(0), atol=1e-6)
