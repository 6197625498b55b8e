"""Files, flags and replies of workers with arbitrary content: each is used, or refused with a message and without a traceback."""

import copy
import json
import math
import tempfile
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pretended import GOOD, PASS, FakePool, make, measure
from rich.console import Console

from softbench.core.case import MAX_EXTENT, Direction
from softbench.core.errors import SoftbenchError, UsageError
from softbench.core.json import to_json
from softbench.core.messages import CheckCaseGraded, Failure, RunCheckCase
from softbench.core.outcome import ErrorMetrics, Status
from softbench.core.text import harmless
from softbench.gate import run_files
from softbench.plan import sweep
from softbench.plan.config_file import from_table
from softbench.plan.grammar import parse_axis
from softbench.plan.settings import KEYS, Settings, from_flags
from softbench.processes.slot import WorkerSlot, revive
from softbench.report import check_report, pair_table, tables
from softbench.results import compare, records, rows as results, writer
from softbench.results.csv import read_csv, to_csv
from softbench.results.journal import line_of
from softbench.run.check import Finding, _Checker

few = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
leaf = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(["\x1b[31m=1+1", "../../x", "|x|`y`"])
)
anything = st.recursive(
    leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=6
)


def places(value, path=()):
    """Every path into a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


@st.composite
def damaged(draw, value):
    """The value with one thing in it replaced by anything, or taken out."""
    value = copy.deepcopy(value)
    path = draw(st.sampled_from(list(places(value))))
    if not path:
        return draw(anything)
    *way, last = path
    inner = value
    for key in way:
        inner = inner[key]
    if isinstance(inner, dict) and draw(st.booleans()):
        del inner[last]
    else:
        inner[last] = draw(anything)
    return value


@pytest.mark.parametrize("integer", [2**64, -(10**400), 10**4000], ids=["2**64", "-10**400", "10**4000"])
def test_an_integer_of_more_than_64_bits_is_refused(integer):
    for reply in GOOD.values():
        whole = json.loads(json.dumps(to_json(reply)))
        harmless(whole)
        with pytest.raises(ValueError, match="64 bits"):
            harmless({**whole, "more": [{"count": integer}]})


@pytest.mark.parametrize("status", sorted(set(Status) - {Status.FAILED, Status.OOM}))
def test_an_exception_has_no_other_status_than_failed_and_oom(status):
    reply = {**to_json(Failure(Status.FAILED, "build", "r")), "status": status.value}
    found = measure(make(("copy", "a", "b")), FakePool({("a", "build"): reply}))
    assert found["a"].outcome.status is Status.FAILED
    assert found["a"].outcome.reason == "build: the worker sent an invalid reply"
    assert found["b"].status == "ok"


def shown(renderable):
    out = StringIO()
    Console(file=out, width=200).print(renderable, markup=False, highlight=False)
    assert "\x1b[31m" not in out.getvalue()


def rendered(found):
    """As a run writes and shows them: CSV there and back, both tables."""
    rows = [results.row(record, None, None, device="d", run="r") for record in found]
    text = to_csv(rows)
    assert "\x1b" not in text
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "x.csv").write_text(text)
        read, warnings = read_csv(Path(folder) / "x.csv", stored=False)
    assert not warnings
    assert len(read) == len(rows)
    shown(tables.cells(read))
    shown(tables.results(read, Console(width=100)))


@few
@given(st.data())
def test_a_bad_reply_of_a_worker_fails_only_its_cell(data):
    op = data.draw(st.sampled_from(list(GOOD)))
    whole = GOOD[op] if data.draw(st.booleans()) else Failure(Status.OOM, op, "r", poisoned=True)
    reply = data.draw(damaged(json.loads(json.dumps(to_json(whole)))))
    try:  # as the pool reads a reply
        reply = harmless(json.loads(json.dumps(reply)))
    except ValueError:
        return
    if not isinstance(reply, dict):
        return  # the channel refuses it (tests/processes/test_worker_pool.py)
    found = measure(make(("copy", "a", "b")), FakePool({("a", op): reply or {"something": "else"}}))
    assert set(found) == {"copy", "a", "b"}
    assert found["b"].status == "ok"
    rendered(found.values())


@few
@given(damaged(json.loads(json.dumps(to_json(CheckCaseGraded(PASS, ErrorMetrics(1.0, math.inf, math.nan)))))))
def test_a_bad_reply_to_a_check_case_is_a_finding(reply):
    try:  # as the pool reads a reply
        reply = harmless(json.loads(json.dumps(reply)))
    except ValueError:
        return
    if not isinstance(reply, dict):
        return
    (slot,) = (WorkerSlot(info) for info in make(("a",)).infos)
    pool = FakePool({("a", "run_check_case"): reply or {"something": "else"}})
    session = SimpleNamespace(pool=pool, exclusive=False, revive=lambda slots: revive(pool, slots, "cpu", {}, 60.0))
    (finding,) = _Checker(session, Settings()).run([slot], RunCheckCase("softmax", "shape 1x1", Direction.FORWARD, "fp32", 0), alone=False)
    assert isinstance(finding, Finding)
    shown(check_report.table([finding]))
    shown(check_report.lines([finding]))


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A real run's files, of records that only pretend."""
    folder = tmp_path_factory.mktemp("run")
    header = {
        **{"device_name": "H200", "backends": ["copy", "a"], "sources": {"copy": "", "a": ""}, "yardstick": "copy", "relative_to": "a"},
        **{"environment": {"gpu": "H200", "l2_bytes": 1}, "settings": {}, "fingerprint": {"softbench": "0"}, "command": "softbench run"},
    }
    kept = writer.start(folder, header)
    kept.add(0, list(measure(make(("copy", "a")), FakePool()).values()))
    journal = kept.folder / f"{kept.name}.jsonl"
    document = json.loads(json.dumps(kept.document()))
    kept.interrupt()
    return folder, header, journal.read_bytes().splitlines(), kept.csv.read_text(), document


@few
@given(st.data())
def test_no_csv_makes_show_or_compare_raise(run_folder, data):
    lines = [line.split(",") for line in run_folder[3].splitlines()]
    row, column = data.draw(st.integers(0, len(lines) - 1)), data.draw(st.integers(0, len(lines[0]) - 1))
    lines[row][column] = data.draw(st.one_of(st.text(max_size=12), st.sampled_from(["nan", "inf", "-1", "1e999", "$\\frac", '"', "=1"])))
    text = "\n".join(",".join(line) for line in lines)[: data.draw(st.integers(0, 2000))] + data.draw(st.sampled_from(["", "\n"]))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x.csv"
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            rows, _ = read_csv(file)
        except UsageError as error:
            assert str(error).startswith(str(file))
            return
    shown(tables.results(rows, Console(width=80)))
    shown(tables.cells(rows))
    shown(pair_table.comparison(compare.pairs(rows, rows), 80))


@few
@given(st.data())
def test_a_damaged_run_file_raises_only_errors_that_name_it(run_folder, data):
    document = data.draw(damaged(run_folder[4]))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x.json"
        file.write_text(json.dumps(document))
        try:
            assert run_files.read(file).cells is not None
        except SoftbenchError as error:
            assert str(file) in str(error)


@few
@given(st.data())
def test_no_journal_makes_resuming_raise(run_folder, data):
    _, header, lines, *_ = run_folder
    number = data.draw(st.integers(0, len(lines) - 1))
    damage = data.draw(damaged(json.loads(lines[number])).filter(lambda entry: isinstance(entry, dict) and entry))
    damage = {key: value for key, value in damage.items() if key not in ("line", "digest")}
    try:
        line = line_of(damage, number + 1)  # with a digest, as if a plugin had written it
    except ValueError:  # NaN
        line = json.dumps(damage).encode()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run-1.jsonl"
        file.write_bytes(b"\n".join([*lines[:number], line.rstrip(b"\n"), *lines[number + 1 :]]) + b"\n")
        run, told = writer.resume(Path(folder), header)
        assert told
        if run is not None:
            assert "\x1b" not in to_csv(run.rows())
            records.merge([*run.records()][:1])
            run.journal.close()


values = st.one_of(anything, st.just(math.nan), st.just([{"M": 1, "N": "1:8:*2"}]), st.just({"import": 5, "time": -1}))


@few
@given(
    st.dictionaries(st.sampled_from([*KEYS, "rouns"]), values, max_size=4), st.dictionaries(st.sampled_from(["M", "N", "dtype"]), anything)
)
def test_no_table_makes_the_configuration_raise_anything_but_words(table, axes):
    for settings_of in (table, {**table, "sweep": [axes]}):
        try:
            layer = from_table(settings_of, "x.toml", base=Path())
            sweep.cases(Settings.from_sources(layer, {}).sweep, "cpu")
        except UsageError as error:
            assert str(error)


grammar = st.text(max_size=30) | st.text(alphabet="0123456789:,*-+ e_x", max_size=24)


@few
@given(grammar)
def test_the_grammar_raises_only_usage_errors(text):
    try:
        assert all(1 <= value <= MAX_EXTENT for value in parse_axis(text, "--N"))
    except UsageError as error:
        assert str(error).startswith("--N")


@few
@given(
    st.sampled_from(["backends", "device", "timeout", "timer", "l2", "relative_to", "dtype", "direction", "M", "N"]), st.text(max_size=20)
)
def test_no_flag_raises_anything_but_words(flag, text):
    try:
        Settings.from_sources({}, from_flags({flag: text}))
    except UsageError as error:
        assert error.exit_code == 2
