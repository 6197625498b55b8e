"""The header of a run document: which commits were measured."""

import os
import subprocess
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from pretended import info, make

from softbench.core.errors import SoftbenchError
from softbench.ops import registry
from softbench.plan.settings import Settings, from_flags
from softbench.plan.sweep import Sweep
from softbench.plugins.info import BackendInfo
from softbench.plugins.source import PluginSource
from softbench.run.header import header
from softbench.run.plan_of import plan_of
from softbench.run.request import RunRequest

REQUEST = RunRequest({}, {}, False, Path("results"), False, "softbench run", "0")


@pytest.fixture
def plugin(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("x = 1\n")
    return replace(info("mine"), origin=PluginSource("file", "mine", str(file), "mine.py"))


def git(folder, *words):
    options = ["-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *options, *words], check=True, capture_output=True)


def test_the_commit_of_a_plugin_is_recorded_with_its_changes(plugin, tmp_path):
    plan = replace(make(), infos=(plugin,))
    assert header(plan, REQUEST)["commits"] == {"mine": None}
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "mine.py")
    git(tmp_path, "commit", "-q", "-m", "first")
    clean = header(plan, REQUEST)["commits"]["mine"]
    assert len(clean) == 12
    (tmp_path / "mine.py").write_text("x = 2\n")
    assert header(plan, REQUEST)["commits"] == {"mine": f"{clean}+"}


def test_the_index_of_the_checkout_is_not_written(plugin, tmp_path):
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "mine.py")
    git(tmp_path, "commit", "-q", "-m", "first")
    index = tmp_path / ".git" / "index"
    os.utime(tmp_path / "mine.py", (1e9, 1e9))  # git would note the new time in the index
    before = index.read_bytes()
    assert len(header(replace(make(), infos=(plugin,)), REQUEST)["commits"]["mine"]) == 12
    assert index.read_bytes() == before


def test_the_file_of_a_users_operation_is_recorded(tmp_path):
    file = tmp_path / "pick.py"
    file.write_text("x = 1\n")
    registry.add(replace(registry.operation("softmax"), name="pick"), str(file))
    plan = make()
    of_user = replace(plan, cases=tuple(replace(case, op="pick") for case in plan.cases))
    assert "operations" not in header(plan, REQUEST)["environment"]
    before = header(of_user, REQUEST)["environment"]["operations"]
    assert list(before) == ["pick"]
    file.write_text("x = 2\n")
    assert header(of_user, REQUEST)["environment"]["operations"]["pick"] != before["pick"]


SOURCE = PluginSource("entry point", "copy", "mypack:copy", "mypack 1.0")
NOTE = "^nothing is measured: no backend but copy has softmax; give its backends with --plugin FILE, or"


@pytest.mark.parametrize(
    ("names", "flags", "told"), [(["copy"], {}, True), (["copy", "mine"], {}, False), (["copy"], {"backends": "copy"}, False)]
)
def test_an_operation_without_backends_is_refused(names, flags, told):
    with pytest.raises(SoftbenchError, match=NOTE) if told else nullcontext():
        planned(flags, [BackendInfo(name, SOURCE) for name in names])


@pytest.mark.parametrize(("flags", "told"), [({}, True), ({"backends": "!mine"}, False), ({"backends": "copy"}, False)])
def test_a_plugin_without_the_operation_is_told(plugin, flags, told):
    infos = [BackendInfo(name, SOURCE) for name in ("copy", "torch")]
    installed = BackendInfo(
        "installed", PluginSource("entry point", "installed", "mypack:installed", "mypack 1.0"), operations=("rms_norm",)
    )
    lost = planned(flags, [*infos, installed, replace(plugin, operations=("rms_norm",))]).lost
    assert lost == (("mine is left out: it has no softmax, only rms_norm; see docs/plugins.md",) if told else ())


def planned(flags, infos):
    settings = Settings.from_sources({"sweep": (Sweep((8,), (8,)),)}, from_flags({**flags, "device": "cpu"}))
    request = SimpleNamespace(settings=lambda *_: settings, gives=lambda *_: False, shard=None)
    machine = SimpleNamespace(cpu_free_bytes=2**33, software={}, cpu="a CPU", host="host", cpus=(0,))
    return plan_of(request, machine, "cpu", None, infos)
