"""A sample of the held-out plugins, through `softbench check`; tools/measure_checks.py runs all of them, in `run` and `judge` too."""

import json
from pathlib import Path

from measure_checks import HELD_OUT, held_out, write_plugin

BUGS = ("lowest_start", "padded_with_zeros", "sum_in_tf32", "one_row")
HONEST = ("pieces_merged", "columns_first", "long_doubles", "rows_with_a_pitch", "scratch_in_a_map", "pool_by_use_count")


def test_a_check_finds_held_out_bugs_and_refuses_no_honest_plugin(cli):
    plugins = [word for file in ("bugs.py", "honest.py") for word in ("--plugin", str(HELD_OUT / file))]
    cases = [word for case in ("shape 37x2", "structured 37x33", "structured 1x1000") for word in ("--case", case)]
    backends = ",".join(BUGS + HONEST)
    given = ("--backends", backends, "--dtype", "fp32", "--direction", "forward", "--device", "cpu", "--json", "found.json")
    cli("check", "-q", *plugins, *cases, *given)
    findings = json.loads((cli.folder / "found.json").read_text())["findings"]
    refused = {finding["backend"] for finding in findings if finding["verdict"] not in ("pass", "low-precision", "skipped")}
    assert refused == set(BUGS)
    assert {finding["backend"] for finding in findings if finding["verdict"] == "pass"} >= set(HONEST)


def test_held_out_plugins_load_and_bugs_show_wrong_elements(tmp_path: Path):
    bugs, tricks, honest = (held_out(kind) for kind in ("bugs", "tricks", "honest"))
    assert len(bugs.backends) >= 60 and len(tricks.TRICKS) >= 25 and len(honest.backends) >= 35
    assert len({backend.name for backend in bugs.backends + honest.backends}) == len(bugs.backends) + len(honest.backends)
    sample = ("lowest_start", "sink_scaled", "destination_taken_as_zero")
    for backend in bugs.backends:
        assert backend.name not in sample or held_out("showing").wrong_elements(backend) > 0
    compile(write_plugin(tricks.first_touch_computes, tmp_path).read_text(), "plugin", "exec")


def test_a_right_kernel_shows_no_wrong_element():
    showing = held_out("showing")
    (bug,) = (backend for backend in held_out("bugs").backends if backend.name == "maximum_in_fp16")
    bug.function = showing.log_softmax
    assert showing.wrong_elements(bug) == 0
