"""Stored outputs that must not change unnoticed: tables, comparisons, gate verdicts, and the files of a run.

The stored form keeps values and drops wording, so that a message can be rewritten. A change on purpose is stored with

    pytest tests/integration/test_golden.py --update-golden

whose effect the commit then explains. Files over 20 KB are stored compressed; `zcat` shows them.
"""

import difflib
import gzip
import json
import re
from pathlib import Path

import pytest
from gating import dice, self_test_run, write_run
from sampled import sampled
from synthetic import Change, from_baseline, several, write

from softbench.results.document import load

ROOT = Path(__file__).parents[2]
STORED = Path(__file__).parent / "golden"
COMPRESSED_FROM = 20_000  # bytes
NUMBER = re.compile(r"(?<![\w.])(?:\d+x\d+|\d+(?:\.\d+)?(?:e[+-]?\d+)?x?)(?!\w)")
WORDS = 4  # a table cell of more words is a sentence
ALL = Change(frozenset({3, 20, 41}), frozenset({5, 33}), frozenset({8}), frozenset({50}), frozenset({12, 20}))
KEEPS_ITS_TYPE = re.compile(r"(?!\.(environment|fingerprint|git_commit|commits\.))")


@pytest.fixture
def golden(request):
    """`golden(name, lines)` compares with the stored lines, or stores them under --update-golden."""

    def check(name, lines):
        text = "".join(f"{line}\n" for line in lines)
        plain, packed = STORED / f"{name}.txt", STORED / f"{name}.txt.gz"
        if request.config.getoption("--update-golden"):
            STORED.mkdir(exist_ok=True)
            large = len(text.encode()) > COMPRESSED_FROM
            (plain if large else packed).unlink(missing_ok=True)
            (packed if large else plain).write_bytes(gzip.compress(text.encode(), mtime=0) if large else text.encode())
            return
        before = (gzip.decompress(packed.read_bytes()) if packed.exists() else plain.read_bytes()).decode()
        if text != before:
            changed = list(difflib.unified_diff(before.splitlines(), text.splitlines(), "stored", "now", lineterm="", n=0))
            pytest.fail("\n".join([f"{name} changed; on purpose? then run this test with --update-golden", *changed[:40]]), pytrace=False)

    return check


@pytest.fixture
def folder(tmp_path):
    """A scratch folder with the committed results, which tables name by a relative path."""
    (tmp_path / "h200").symlink_to(ROOT / "results" / "h200")
    (tmp_path / "baselines").symlink_to(ROOT / "results" / "baselines")
    return tmp_path


def values(text, *, heading=False):
    """The lines of an output without their wording: the short cells of table rows, and the numbers of all else."""
    lines = text.splitlines()
    headings = {i - 1 for i, line in enumerate(lines) if line.startswith(("━", "| ---"))}
    for i, line in enumerate(lines):
        if not line.startswith(("━", "| ---")) and (heading or i not in headings):
            cells = [" ".join(cell.split()) for cell in re.split(r"[│┃]|(?<!\w)\|", line)]
            short = [cell if len(cell.split()) <= WORDS and len(cells) > 1 else " ".join(NUMBER.findall(cell)) for cell in cells]
            if any(short):
                yield " | ".join(short).rstrip(" |")


def output(main, *arguments, heading=False):
    code, out, err = main(*arguments)
    yield f"# {' '.join(map(str, arguments))}: exit code {code}, {len(err.splitlines())} lines on stderr"
    yield from values(out, heading=heading)


FILES = {name: f"h200/{name}.csv" for name in ("frontier", "judged", "losses", "losses-torch", "masked", "odd", "strategies")}


@pytest.mark.parametrize("name", sampled(FILES, lambda name: name in ("odd", "losses", "masked")))
def test_the_tables_of_committed_results_keep_their_values(main, folder, golden, name):
    lines = [*output(main, "show", FILES[name], heading=True), *output(main, "show", "--wide", FILES[name], heading=True)]
    lines += output(main, "show", "--costs", "--markdown", FILES[name])
    golden(f"show-{name}", lines + list(output(main, "show", "--long", FILES[name])))


@pytest.mark.parametrize(("a", "b"), sampled([("losses-torch", "losses"), ("frontier", "judged")], lambda a, b: a == "losses-torch"))
def test_comparisons_of_committed_results_keep_their_values(main, folder, golden, a, b):
    golden(f"compare-{a}-{b}", output(main, "compare", "--all", FILES[a], FILES[b]))


def verdicts(main, *arguments):
    """Each verdict's values. Six digits: a mathematical library may round the rest differently."""
    code, out, err = main("gate", *arguments, "--json", "-")
    yield f"# gate {' '.join(map(str, arguments))}: exit code {code}, {len(err.splitlines())} lines on stderr"
    for verdict in json.loads(out)["verdicts"] if out else ():
        low, high = verdict["interval"] or (None, None)
        numbers = [f"{value:.6g}" if value is not None else "-" for value in (verdict["ratio"], low, high, verdict["raw_ratio"])]
        p = f"{verdict['p']:.3g}" if verdict["p"] is not None else "-"
        flags = [flag for flag in ("gated", "look") if verdict[flag]]
        yield " ".join([verdict["state"], verdict["backend"], verdict["case"], *numbers, f"p={p}", verdict["n"] or "-", *flags])


def test_gate_verdicts_on_synthetic_runs_keep_their_values(main, folder, golden):
    document = load(ROOT / "results" / "h200" / "odd.json.gz")
    base, six = write(several(document, 10, seed=1), "base.json"), write(several(document, 6, seed=2), "six.json")
    same, changed = write(several(document, 3, seed=3), "same.json"), write(several(document, 3, seed=4, change=ALL), "changed.json")
    noisy = write(several(document, 3, seed=5, change=ALL, noise=0.05), "noisy.json")
    other = write(several(document, 3, seed=6, environment={"gpu": "NVIDIA B200", "driver": "999"}), "other.json")
    one = [write(several(document, 1, seed=seed, change=ALL), f"one-{seed}.json") for seed in (7, 8, 9)]
    lines = []
    for new in (same, changed, noisy, other):
        lines += verdicts(main, new, "--baseline", base)
    lines += verdicts(main, other, "--baseline", base, "--allow-env-mismatch", "gpu")
    lines += verdicts(main, changed, "--baseline", base, "--margin", "12")
    lines += verdicts(main, one[0], "--baseline", base)
    lines += verdicts(main, *one, "--baseline", base)
    lines += output(main, "baseline", "save", six, "--name", "six")
    lines += output(main, "baseline", "show", "six")
    lines += verdicts(main, changed, "--baseline", "six")
    golden("gate-synthetic", lines)


def test_gate_verdicts_against_the_committed_baseline_keep_their_values(main, folder, golden):
    baseline = json.loads((ROOT / "results" / "baselines" / "guarded.json").read_text())
    document = from_baseline(baseline)
    lines = list(output(main, "baseline", "show", "baselines/guarded.json"))
    for name, change in (("same.json", Change()), ("changed.json", ALL)):
        lines += verdicts(main, write(several(document, 3, seed=11, change=change), name), "--baseline", "baselines/guarded.json")
    lines += verdicts(main, "h200/odd.csv", "--baseline", "baselines/guarded.json")
    golden("gate-committed", lines)


def test_the_gates_self_test_keeps_its_values(main, folder, golden):
    files = [write_run(folder, self_test_run(dice(seed), 4, 8), name=f"aa-{seed}").name for seed in (1, 2)]
    code, out, _ = main("gate", "--self-test", *files, "--json", "-")
    lines = [f"exit code {code}", *leaves(json.loads(out))]
    alarming = write_run(folder, self_test_run(dice(3), 4, 8, realised={}, alarm={0, 1, 2, 3}), name="alarming").name
    golden("gate-self-test", lines + list(output(main, "gate", "--self-test", alarming)))


def leaves(value, path=""):
    """A line for every value of a JSON document."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, f"{path}.{key}")
    else:
        yield f"{path} {value:.6g}" if isinstance(value, float) else f"{path} {value}"


OF_THE_MACHINE = (".environment.", ".fingerprint.overrides", ".cells[].outcome.timing.batches[].telemetry")
"""Key paths that depend on the machine."""


def key_paths(value, path="", found=None):
    """Every key path of a JSON document with the types of its values."""
    found = {} if found is None else found
    kind = "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
    found.setdefault(path or ".", set()).add(kind)
    for key, inner in value.items() if isinstance(value, dict) else (("[]", each) for each in value) if isinstance(value, list) else ():
        key_paths(inner, f"{path}.{key}" if key != "[]" else f"{path}[]", found)
    return found


def test_a_run_writes_the_same_columns_and_keys(main, folder, plugins, golden):
    zeros = ("--plugin", f"zeros={plugins / 'wrong' / 'zeros.py'}")
    code, _, _ = main("run", "--backends", "torch,naive,zeros", *zeros, "--device", "cpu", "--M", 8, "--N", "16,32", "--quick")
    columns = (folder / "results" / "latest.csv").read_text().splitlines()[0].split(",")
    document = load(folder / "results" / "latest.json.gz")
    paths = key_paths(document)
    lines = [f"exit code {code}", "# columns", *columns, "# key paths"]
    for path, kinds in sorted(paths.items()):
        if not path.startswith(OF_THE_MACHINE):
            lines.append(f"{path} {' '.join(sorted(kinds))}" if KEEPS_ITS_TYPE.match(path) else path)
    lines.append("# cells")
    for cell in document["cells"]:
        outcome, case = cell["outcome"], cell["case"]
        ended = [outcome["kind"], outcome.get("status", "ok"), (outcome["accuracy"] or {}).get("grade", "")]
        lines.append(" ".join([cell["backend"], *map(str, case.values()), *ended]))
    golden("run", lines)
