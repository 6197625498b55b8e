"""Honest plugins that do unusual things have results on a GPU too."""

import csv

import pytest
from wrongs import ARITHMETIC, HABITS, PLUGINS

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("file", "plugins"), [("arithmetic.py", ARITHMETIC), ("habits.py", HABITS)], ids=["arithmetic", "habits"])
def test_run_gives_figures_to_honest_plugins(cli, file, plugins):
    names = ",".join(plugin.name for plugin in plugins if "serial" not in plugin.name and "reversed" not in plugin.name)  # slow on a GPU
    done = cli(
        *("run", "--plugin", PLUGINS / "correct" / file, "--backends", names, "--quick", "--M", "256", "--N", "4096"),
        *("--dtype", "fp32,bf16", "--direction", "forward,backward,both"),
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    classes = {plugin.name: getattr(plugin, "classes", ("pass",)) for plugin in plugins}
    with (cli.folder / "results" / "latest.csv").open() as latest:
        rows = [row for row in csv.DictReader(latest) if row["backend"] != "copy"]
    assert {row["status"] for row in rows} == {"ok"}, rows
    assert all(row["dtype"] == "bf16" or row["class"] in classes[row["backend"]] for row in rows), rows
