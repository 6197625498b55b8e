"""The scripts of docs/fleet.md run as they stand there, under a Slurm that only pretends."""

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from slurm import Slurm

SWEEP = """
device = "cpu"
backends = "torch"
rounds = 4
warmup_ms = 1
batch_ms = 5
[[sweep]]
M = 64
N = "8:320:8"
"""
PARTS = 4
PAGE = (Path(__file__).parents[2] / "docs/fleet.md").read_text()
SCRIPTS = dict(re.findall(r"`(\w+\.sh)`:\n\n```sh\n(.*?)```", PAGE, re.DOTALL))
(SUBMIT,) = re.findall(r"```sh\n([^`]*sbatch --parsable.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def slurm(cli):
    (cli.folder / "sweep.toml").write_text(SWEEP)
    for name, text in SCRIPTS.items():
        (cli.folder / name).write_text(text)
    found = Slurm(cli.folder, {**cli.env, "SOFTBENCH_QUEUE": "off"})
    yield found
    for task in found.tasks:
        if task.state == "RUNNING":
            found.lose_node(task)


def rows(slurm, part):
    files = sorted((slurm.folder / "shards" / str(part)).glob("run-*.csv"))
    return files[-1].read_text().splitlines()[1:] if files else []


def test_the_recipe_has_options_that_slurm_knows(slurm):
    assert list(SCRIPTS) == ["array.sh", "merge.sh"]
    slurm.shell(SUBMIT)
    array, merging = (json.loads(file.read_text())["options"] for file in sorted(slurm.queue.glob("job-*")))
    assert array["array"] == f"1-{PARTS}" and merging == {"dependency": "afterany:100"}
    for text in SCRIPTS.values():
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)


@pytest.mark.slow
def test_the_recipe_measures_every_cell_once_whatever_ends_a_task(cli, slurm):
    slurm.shell(SUBMIT)
    slurm.tick()
    *tasks, merging = slurm.tasks
    assert len(tasks) == PARTS
    before, what = {}, dict(zip((1, 2, 3), (slurm.preempt, slurm.near_its_limit, slurm.lose_node), strict=True))

    def over():
        for task in tasks:
            if task.codes:
                before.setdefault(task.index, rows(slurm, task.index))  # it has not started again yet
            elif task.index in what and len(rows(slurm, task.index)) >= 2:
                what.pop(task.index)(task)
        return merging.state not in ("PENDING", "RUNNING")

    slurm.run(over)
    logs = {part: (cli.folder / "shards" / f"{part}.log").read_text() for part in range(1, PARTS + 1)}
    text = "\n".join(logs.values())
    assert [task.state for task in slurm.tasks] == ["COMPLETED"] * (PARTS + 1), text
    assert [task.codes for task in tasks] == [[143, 0], [128 + 10, 0], [-9, 0], [0]], text
    for part in (1, 2, 3):
        assert f"{len(before[part])} cells are there already" in logs[part]
        assert 2 <= len(before[part]) < len(rows(slurm, part)) == len({*before[part], *rows(slurm, part)})
    assert "Traceback" not in text
    cells = Counter(tuple(line.split(",")[:5]) for line in (cli.folder / "all.csv").read_text().splitlines()[1:])
    assert len(cells) == 2 * 40 and set(cells.values()) == {1}
    assert cli.left_behind() == []
