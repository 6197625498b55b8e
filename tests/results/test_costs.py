"""The costs of each backend of a results file: medians, mean fractions, and their tables."""

from dataclasses import MISSING, fields, replace

import pytest

from softbench.core.errors import SoftbenchError, UsageError
from softbench.plugins import select
from softbench.plugins.info import BackendInfo
from softbench.plugins.source import PluginSource
from softbench.report import listing
from softbench.results import costs
from softbench.results.columns import Row
from softbench.results.csv import to_csv

CELL = {"direction": "forward", "M": 4096, "N": 256, "dtype": "bf16", "status": "ok", "device": "NVIDIA H200", "run": "r"}
TIMES = {"median_us": 9.0, "p20_us": 9.0, "p80_us": 9.0, "n": 3, "rounds": 1, "processes": 1, "gbps": 100.0, "timer": "queued"}


def result_row(backend, **given):
    """A cell with these fields, and with times if its status is `ok`. All others are None or an empty text."""
    required = (field for field in fields(Row) if field.default is MISSING)
    empty = {field.name: "" if field.type == "str" else None for field in required}
    return Row(**empty | CELL | (TIMES if given.get("status", "ok") == "ok" else {}) | {"backend": backend} | given)


def row(backend, N=256, *, status="ok", build=1.0, cache="cold", host=20.0, of_copy=0.5, direction="forward", grade="pass"):
    measured = {"grade": grade, "build_s": build, "build_cache": cache, "of_copy": of_copy, "host_us": host} if status == "ok" else {}
    return result_row(backend, N=N, direction=direction, status=status, **measured)


ROWS = [
    row("compile", 256, build=2.0, host=70.0, of_copy=0.4),
    row("compile", 512, build=4.0, host=80.0, of_copy=0.9),
    row("compile", 1024, build=0.1, cache="cached", host=90.0, of_copy=1.5),
    row("compile", 256, direction="backward", host=60.0, of_copy=0.25),
    row("cudnn", 256, build=0.01, cache="", host=8.0),
    row("cudnn", 512, status="skipped"),
    row("numba", 256, status="unavailable"),
]


def test_builds_are_cold_and_fractions_of_copy_are_capped():
    found = costs.by_backend(ROWS)
    assert found["compile"].build_s == pytest.approx(2.0)  # of 2, 4 and 1 s
    assert found["compile"].build_cache == "cold"
    assert found["compile"].host_us == pytest.approx(75.0)
    assert found["compile"].of_copy == pytest.approx({"forward": (0.4 * 0.9 * 1.0) ** (1 / 3), "backward": 0.25})
    assert (found["cudnn"].cells, found["cudnn"].others) == (1, {"skipped": 1})
    assert (found["numba"].cells, found["numba"].build_s) == (0, None)


def test_where_all_have_device_times_the_fractions_are_theirs():
    copies = [replace(row("copy", N, host=9.0, of_copy=1.0, grade="yardstick"), device_us=2.0) for N in (256, 512)]
    ours = [replace(row("compile", 256, host=70.0, of_copy=0.1), device_us=4.0), replace(row("compile", 512, of_copy=0.1), device_us=1.0)]
    found = costs.by_backend([*copies, *ours])["compile"]
    assert found.of_copy == pytest.approx({"forward": 0.5**0.5})  # the host's 70 us are no bandwidth; faster than copy counts as 1
    assert found.by_device
    assert "forward kernels, of copy" in listing.cost_rows({"compile": found})[0]
    found = costs.by_backend([*copies, *ours, row("cudnn", 256)])["compile"]  # one without: what the timer gave, of all
    assert (found.by_device, found.of_copy) == (False, pytest.approx({"forward": 0.1}))


def test_an_implausible_cell_has_no_fraction_of_copy():
    copies = [replace(row("copy", N, host=9.0, of_copy=1.0, grade="yardstick"), device_us=2.0) for N in (256, 512)]
    fast = replace(row("compile", 256, of_copy=None), device_us=0.5, labels="implausible noisy")
    found = costs.by_backend([*copies, fast, replace(row("compile", 512), device_us=4.0)])["compile"]
    assert (found.by_device, found.of_copy) == (True, pytest.approx({"forward": 0.5}))
    assert not costs.by_backend([row("numba", status="unavailable")])["numba"].by_device


def test_costs_are_shown_for_a_terminal_and_as_markdown(tmp_path, main):
    (tmp_path / "r.csv").write_text(to_csv(ROWS))
    code, out, _ = main("show", "r.csv", "--costs")
    assert code == 0
    assert "2 s cold" in out
    assert "unavailable: numba" in out
    assert "numba" not in out.split("unavailable:")[0]
    _, text, _ = main("show", "r.csv", "--costs", "--markdown")
    head, rule, first, *_ = text.splitlines()
    assert head == "| backend | build | host | forward, of copy | backward, of copy | cells | without a result |"
    assert rule.count("|") == head.count("|")
    assert first == "| `compile` | 2 s cold | 75 us | 71% | 25% | 4 |  |"
    assert text.endswith("\n\nunavailable: `numba`\n")


def test_the_guide_has_summary_and_advice_of_each_backend(capsys):
    from rich.console import Console

    origin = PluginSource("entry point", "compile", "x:y", "softbench 0")
    infos = [
        BackendInfo("compile", origin, summary="torch.compile of it", advice="when nothing else will do", reuses_output=True),
        BackendInfo("numba", origin, unavailable="numba-cuda is not installed: pip install numba-cuda"),
    ]
    console = Console(width=200)
    console.print(listing.guide(infos))
    out = " ".join(capsys.readouterr().out.split())
    assert "what torch.compile of it pick it when nothing else will do" in out
    assert "output reused" in out
    assert "unavailable numba-cuda is not installed: pip install numba-cuda" in out


def test_patterns_select_extra_backends_but_all_does_not():
    def info(name, **more):
        return BackendInfo(name, PluginSource("entry point", name, "x:y", "s"), **more)

    infos = [info("copy"), info("compile"), info("compile:plain", extra=True), info("compile:tvm", extra=True, unavailable="no tvm")]
    names = lambda wanted: [found.name for found in select.select(infos, wanted)]  # noqa: E731
    assert names(None) == names(["all"]) == ["copy", "compile"]
    assert names(["compile:*"]) == ["copy", "compile:plain", "compile:tvm"]
    assert names(["all", "compile:plain"]) == ["copy", "compile", "compile:plain"]
    assert names(["*"]) == ["copy", "compile", "compile:plain", "compile:tvm"]
    with pytest.raises(SoftbenchError, match="unavailable: no tvm"):
        names(["compile:tvm"])
    with pytest.raises(UsageError, match="no backend matches 'x\\*'; known are compile, copy; softbench list"):
        names(["x*"])
    with pytest.raises(UsageError, match=r"did you mean 'compile:plain'\? known are compile, compile:plain, copy$"):
        names(["compile:plane"])
