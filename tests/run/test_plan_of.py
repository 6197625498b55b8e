"""The plan of a request: notes before the run starts."""

from types import SimpleNamespace

import pytest

from softbench.plan.settings import Settings, from_flags
from softbench.plan.sweep import Sweep
from softbench.plugins.info import BackendInfo
from softbench.plugins.source import PluginSource
from softbench.run.plan_of import plan_of

SOURCE = PluginSource("entry point", "copy", "mypack:copy", "mypack 1.0")
NOTE = "no backend but copy has softmax; give its backends with --plugin FILE"


@pytest.mark.parametrize(
    ("names", "flags", "told"), [(["copy"], {}, True), (["copy", "mine"], {}, False), (["copy"], {"backends": "copy"}, False)]
)
def test_an_operation_without_backends_is_told(names, flags, told):
    settings = Settings.from_sources({"sweep": (Sweep((8,), (8,)),)}, from_flags({**flags, "device": "cpu"}))
    request = SimpleNamespace(settings=lambda *_: settings, gives=lambda *_: False, shard=None)
    machine = SimpleNamespace(cpu_free_bytes=2**33, software={}, cpu="a CPU", host="host", cpus=(0,))
    plan = plan_of(request, machine, "cpu", None, [BackendInfo(name, SOURCE) for name in names])
    assert (NOTE in plan.notes) is told
