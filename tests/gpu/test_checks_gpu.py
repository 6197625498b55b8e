"""Our kernels on the cases of `softbench check`, and honest and faulty plugins, on a GPU. One case needs most of the card's memory."""

import csv
import json
import time

import pytest
from sampled import with_dtypes
from wrongs import ARITHMETIC, HABITS, PLUGINS

from softbench.ops.rowwise import OVER_INT32

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

LARGE = f"shape {OVER_INT32}"


def findings(cli, backends, direction, pattern, dtypes="fp32,bf16,fp16"):
    given = ("--backends", backends, "--direction", direction, "--dtype", dtypes, "--case", pattern)
    done = cli("check", *given, "--json", "-", timeout=580)
    found = json.loads(done.stdout)["findings"]
    assert done.returncode == 0, done.stderr
    assert all(finding["worst"] <= 1 for finding in found if finding["verdict"] == "pass")
    return found


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("backend", ["cuda", "triton"])
def test_our_kernels_pass_every_check_case(cli, backend, dtype, direction):
    assert {finding["verdict"] for finding in findings(cli, backend, direction, f"!{LARGE}", dtype)} == {"pass"}


STRATEGIES = (
    "triton-row",
    "triton-tile",
    "eager",
    "compiled",
    "gluon",
    "cute",
    "cutile",
    "tilelang",
    "helion",
    "numba",
    "cupy",
    "cuda-row",
    "cuda-online",
)


@with_dtypes("backend", STRATEGIES)
def test_strategies_of_the_gallery_pass(cli, backend, dtype):
    """They take rows only, and some of them not all lengths."""
    (info,) = json.loads(cli("list", backend, "--json", "-").stdout)["backends"]
    if info["state"] != "available":
        pytest.skip(info["reason"])
    found = findings(cli, backend, "forward,backward", f"!{LARGE}", dtype)
    assert {finding["verdict"] for finding in found} == {"pass", "skipped"}
    assert "shape 128x1024" in {finding["item"] for finding in found if finding["verdict"] == "pass"}


@pytest.mark.alone  # needs 52 GB at once
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_our_kernels_pass_over_2_to_the_31_elements(cli, direction):
    found = findings(cli, "cuda,triton,triton-row,triton-tile", direction, LARGE)
    assert {finding["backend"] for finding in found} == {"cuda", "triton", "triton-row", "triton-tile"}
    assert {finding["verdict"] for finding in found} == {"pass"}


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


HEALTHY = ("copy", "torch", "naive", "triton-row", "triton")
COLUMNS = {"crashes": (128, 640), "hangs": (192, 704), "writes-far-away": (256, 768), "asserts": (320, 832), "takes-all-memory": (384, 896)}
ENDS = {
    "crashes": ("failed", "crashed (SIGSEGV)"),
    "hangs": ("timeout", "took longer than 12 s"),
    "writes-far-away": ("failed", "illegal memory access"),
    "asserts": ("failed", "assert"),
    "takes-all-memory": ("oom", "it asked for"),
}
LENGTHS, DTYPES = range(64, 1025, 64), ("fp32", "bf16")


@pytest.mark.alone
def test_faulty_plugins_lose_no_other_cell(cli, plugins):
    start = time.monotonic()
    done = cli(
        *("run", "--plugin", plugins / "faulty" / "gpu_faults.py", "--backends", ",".join((*HEALTHY[1:], *ENDS)), "--M", "512"),
        *("--N", "64:1024:64", "--dtype", ",".join(DTYPES), "--quick", "--timeout", "import=120,build=12,check=60,time=60"),
        timeout=560,
    )
    assert time.monotonic() - start < 500
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    with (cli.folder / "results" / "latest.csv").open() as file:
        found = {(row["backend"], int(row["N"]), row["dtype"]): row for row in csv.DictReader(file)}
    assert set(found) == {(name, N, dtype) for name in (*HEALTHY, *ENDS) for N in LENGTHS for dtype in DTYPES}
    assert len(found) >= 300
    for (name, N, dtype), row in found.items():
        if N in COLUMNS.get(name, ()):
            status, part = ENDS[name]
            assert row["status"] == status, (name, N, dtype, row["reason"])
            assert part in row["reason"], (name, N, dtype, row["reason"])
            assert row["gbps"] == row["median_us"] == ""
        else:
            assert row["status"] == "ok", (name, N, dtype, row["reason"])
            assert float(row["gbps"]) > 0
    (log,) = (cli.folder / "results").glob("run-*.log")
    assert "== writes-far-away ==" in log.read_text()
