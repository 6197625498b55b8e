"""A kernel that Triton's interpreter runs is checked and never timed, also if the plugin itself selects the interpreter."""

import pytest
from wrongs import PLUGINS

from softbench.core.case import Case, Direction
from softbench.core.messages import BuildCase, CheckOutputs
from softbench.core.outcome import Grade
from softbench.plugins.source import PluginSource
from softbench.processes.slot import load_request
from softbench.processes.worker_pool import Pool


def test_a_plugin_that_selects_the_interpreter_is_not_timed():
    pytest.importorskip("triton")
    path = PLUGINS / "wrong" / "interpreted.py"
    with Pool() as pool:
        worker = pool.spawn("plugin")
        for request in (
            load_request(PluginSource("file", path.stem, str(path), path.name), "cpu", "interpreted-by-itself"),
            BuildCase(Case(2, 32, "fp32", Direction.FORWARD, "cpu"), 0),
            CheckOutputs(),
        ):
            reply = pool.ask(worker, request, 60, request.op)
    assert reply.accuracy.grade is Grade.PASS
    assert "Triton's interpreter" in reply.untimed
