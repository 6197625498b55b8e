"""A package whose entry point has another name than its backend: `list` and `run` know both names."""

import csv
from pathlib import Path

import pytest
from sampled import sampled

from softbench.plugins import static_scan
from softbench.plugins.source import FILE, PluginSource

PACKAGE = '''
"""A package with a backend."""
print("its code runs")


class Mine:
    """The softmax of a package."""

    name = "my-softmax"

    def available(self):
        return None

    def supports(self, case):
        return None

    def prepare(self, case):
        import torch

        return lambda x: torch.softmax(x, -1)


{assigned}
'''
STATED = "offered = Mine()"
COMPUTED = "offered = [Mine(), *[]]"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder of packages for all tests, so that `list` asks workers about softbench's own backends once."""
    folder = tmp_path_factory.mktemp("site")
    info = folder / "mypack-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mypack\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[softbench.backends]\nmine = mypack.inner:offered\n")
    (folder / "mypack").mkdir()
    (folder / "mypack" / "__init__.py").write_text("print('its code runs')")
    return folder


@pytest.fixture
def package(cli, site):
    """Installs the package `mypack`, whose entry point `mine` is `mypack.inner:offered`; returns the command line that finds it."""

    def install(assigned):
        (site / "mypack" / "inner.py").write_text(PACKAGE.format(assigned=assigned))
        cli.env |= {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}  # inner.py may change within its time stamp's second
        return cli

    return install


def listed(done):
    assert done.returncode == 0, done.stderr
    assert "its code runs" not in done.stdout + done.stderr
    return [line.split()[0] for line in done.stdout.splitlines() if "[mypack 1.0]" in line]


@pytest.mark.slow
@pytest.mark.parametrize("assigned", [STATED, COMPUTED])
def test_list_and_run_take_the_same_names(package, assigned):
    """`list` named the backend by its entry point, and `run` refused that name."""
    softbench = package(assigned)
    names = listed(softbench("list", "m*")) + listed(softbench("list", "mine"))
    assert names == ["my-softmax"] * 2 if assigned == STATED else ["mine"] * 2
    done = softbench("run", "--device", "cpu", "--M", "4", "--N", "8", "--quick", "--backends", names[0])
    assert done.returncode == 0, done.stderr
    with Path(softbench.folder, "results", "latest.csv").open() as file:
        assert [row["backend"] for row in csv.DictReader(file)] == ["copy", "my-softmax"]
    if assigned == COMPUTED:
        assert listed(softbench("list", "mine", "--load")) == ["my-softmax"]


NAMED = {
    ("mine", "torch"): "--candidate mine: names a plugin source and no backend; name one of its backends: my-softmax",
    ("t*rch", "torch"): "--candidate t*rch: is a pattern; name one backend: torch",
    ("torch", "mine"): "--reference: unknown backend 'mine'; known are my-softmax, torch; --plugin NAME=FILE adds a kernel of your own",
}


@pytest.mark.slow
@pytest.mark.parametrize(("candidate", "reference"), sampled(NAMED, lambda candidate, _: candidate == "mine"))
def test_the_gate_refuses_a_sources_name_before_it_measures(package, candidate, reference):
    softbench = package(STATED)
    sweep = ("--device", "cpu", "--M", "4", "--N", "8", "--rounds", "6")
    done = softbench("gate", "--candidate", candidate, "--reference", reference, *sweep)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == f"softbench: {NAMED[candidate, reference]}"
    assert "plan: " not in done.stderr
    assert not (softbench.folder / "results").exists()


@pytest.mark.parametrize("target", ["nothing_there:b", "nothing.there:b", "json:loads", "sys:b", ":", "softbench.core.text:x.y"])
def test_a_package_that_cannot_be_read_has_its_sources_name(target):
    (info,) = static_scan.at(PluginSource("entry point", "mine", target, "mypack 1.0"))
    assert (info.name, info.loaded, info.broken) == ("mine", False, "")
    assert "its source does not state its backends' names; mine selects all of them" in info.summary


def test_names_assigned_in_a_tuple_are_read(tmp_path):
    body = 'class A:\n    name, compiles = "one", True\n\nclass B(A):\n    compiles, name = True, "two"\n\nbackends = [A(), B()]\n'
    (tmp_path / "mine.py").write_text(body)
    found = static_scan.at(PluginSource(FILE, "mine", str(tmp_path / "mine.py"), "mine.py"))
    assert [(info.name, info.loaded) for info in found] == [("one", False), ("two", False)]
