"""Runs on several GPUs of a host. The tests of two GPUs skip where there is one."""

import csv
import json
import re
from statistics import median

import pytest

from softbench.core.machine import UNIT
from softbench.results.document import load

pytestmark = [pytest.mark.gpu, pytest.mark.alone, pytest.mark.timeout(900)]

SWEEP = ("--backends", "torch,triton,cuda", "--M", 4096, "--N", "1024:16384:1024", "--dtype", "bf16")


@pytest.fixture
def two():
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs two GPUs; torch sees {torch.cuda.device_count()}")


def rows(folder):
    with (folder / "latest.csv").open() as file:
        return list(csv.DictReader(file))


def measured(cli, output, *options):
    done = cli("run", *SWEEP, "--output", output, *options, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return rows(cli.folder / output), load(cli.folder / output / "latest.json.gz")


def test_one_gpu_is_a_fleet_of_one(cli):
    found, document = measured(cli, "one", "--devices", "0", "--quick")
    assert {row["status"] for row in found} == {"ok"}
    (unit,) = {row["unit"] for row in found}
    assert UNIT.fullmatch(unit) and "GPU-" not in json.dumps(document)
    done = cli("run", *SWEEP, "--quick", "--device", "cuda:0", "--output", "plain", timeout=600)
    assert {row["unit"] for row in rows(cli.folder / "plain")} == {unit}, done.stderr


def test_two_gpus_share_a_sweep_in_less_time(cli, two):
    _, alone = measured(cli, "alone")
    found, both = measured(cli, "both", "--devices", "0,1", "--force")
    assert {row["status"] for row in found} == {"ok"} and len({row["unit"] for row in found}) == 2
    assert len(found) == len(alone["cells"])
    assert both["seconds"]["wall"] < alone["seconds"]["wall"]  # a short sweep: imports and the comparison of the cards count


def test_two_gpus_take_six_tenths_of_the_default_sweep(cli, two):
    """The first run fills the compilers' caches, and says which GPUs the host has."""
    walls = {}
    for name, options in (("first", ()), ("alone", ()), ("both", ("--devices", "0,1", "--force"))):
        done = cli("run", "--M", 4096, "--backends", "torch,compile,triton,cuda", "--output", name, *options, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        walls[name] = load(cli.folder / name / "latest.json.gz")["seconds"]["wall"]
    assert walls["both"] <= 0.6 * walls["alone"], walls


def test_replicate_agrees_with_a_single_card(cli, two):
    alone, _ = measured(cli, "alone")
    found, _ = measured(cli, "both", "--devices", "0,1", "--spread", "replicate")
    single = {(row["backend"], row["N"]): float(row["median_us"]) for row in alone}
    same = [row for row in found if row["unit"] == alone[0]["unit"]]
    assert len(same) == len(alone) and len(found) == 2 * len(alone)
    assert median(abs(float(row["median_us"]) / single[row["backend"], row["N"]] - 1) for row in same) <= 0.01


def test_doctor_compares_the_cards(cli, two):
    done = cli("doctor", "--devices", "all")
    lines = [line for line in done.stdout.splitlines() if re.match(r"cuda:\d+ +ok +\S+/\d+/[0-9a-f]{8}: copy ", line)]
    assert len(lines) >= 2, done.stdout + done.stderr
    assert all(" C" in line and "SM " in line for line in lines)
