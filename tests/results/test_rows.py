"""The CSV, in and out."""

import csv
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from rich.console import Console
from sampled import sampled

from softbench.core.errors import ResultsError, UsageError
from softbench.core.outcome import Failed, Grade, Profile, Record, Skipped, Status
from softbench.core.text import one_line
from softbench.report import tables
from softbench.results import records, rows as results
from softbench.results.csv import COLUMNS, read_csv, to_csv
from softbench.results.document import beside, load


def write(tmp_path, text, name="x.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.fixture
def rows(make_record):
    copy, ours = make_record("copy", [*[10] * 5, 40], grade=Grade.YARDSTICK), make_record("ours", [*[20] * 5, 80])
    failed = Record("bad", ours.case, Failed(Status.FAILED, "build", 'no, "quoted"\tand = odd'))
    skipped = Record("other", ours.case, Skipped("no GPU", unavailable=True))
    return [results.row(record, copy, ours, device="H200", run="r") for record in (copy, ours, failed, skipped)]


def test_a_row_has_the_figures_of_its_record(rows):
    copy, ours, failed, skipped = rows
    assert (ours.median_us, ours.n, ours.rounds, ours.processes) == (20, 18, 6, 1)
    assert ours.gbps == pytest.approx(2 * 4096 * 256 * 4 / 20e-6 / 1e9)
    assert (ours.of_copy, copy.of_copy, ours.speedup, copy.speedup) == (0.5, 1, 1, 2)
    assert (failed.status, failed.gbps, failed.reason) == ("failed", None, 'no, "quoted"\tand = odd')
    assert (skipped.status, skipped.reason) == ("unavailable", "no GPU")


def test_what_was_written_is_read_back(tmp_path, rows):
    read, warnings = read_csv(write(tmp_path, to_csv(rows)), stored=False)
    assert warnings == []
    assert [row.reason for row in read] == [one_line(row.reason) for row in rows]
    assert [row.gbps for row in read[:2]] == pytest.approx([row.gbps for row in rows[:2]], rel=1e-5)
    assert [row.gbps for row in read[2:]] == [None, None]


def test_only_a_torn_last_line_is_dropped_and_said(tmp_path, rows):
    text = to_csv(rows)
    read, (warning,) = read_csv(write(tmp_path, text[:-20]), stored=False)
    assert len(read) == 3
    assert "torn" in warning
    lines = text.splitlines()
    with pytest.raises(ResultsError, match=r"line 3: has another number of values than the header; copy the file again, or measure again"):
        read_csv(write(tmp_path, "\n".join([*lines[:2], lines[2][:30], *lines[3:]]) + "\n"))


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "is not text"),
        ("", "is empty; give the .csv that softbench run wrote"),
        ("a,b\n1,2\n", "line 1: not a softbench results file"),
        (",".join(COLUMNS) + "\n", "holds no cells"),
    ],
)
def test_an_invalid_results_file_is_refused_with_a_reason(tmp_path, content, part):
    with pytest.raises(ResultsError, match=r"x\.csv") as raised:
        read_csv(write(tmp_path, content))
    assert part in str(raised.value)


@pytest.mark.parametrize(
    ("column", "value", "part"),
    [
        *(
            ("N", "many", "N: 'many' is not a number"),
            ("status", "good", "unknown 'good'"),
            ("gbps", "", "or the bandwidth is no positive number"),
            ("N", "-4", ""),
        ),
        *(
            ("of_copy", "nan", ""),
            ("of_copy", "-1", ""),
            ("speedup", "inf", ""),
            ("gbps", "nan", ""),
            ("class", "wrong", ""),
            ("dtype", "../../x", ""),
        ),
    ],
)
def test_a_damaged_value_is_named(tmp_path, rows, column, value, part):
    lines = to_csv(rows).splitlines()
    values = lines[2].split(",")
    values[COLUMNS.index(column)] = value
    with pytest.raises(ResultsError, match="line 3") as raised:
        read_csv(write(tmp_path, "\n".join([*lines[:2], ",".join(values), *lines[3:]]) + "\n"))
    assert part in str(raised.value)


def test_a_case_that_stands_twice_is_damage(tmp_path, rows):
    text = to_csv([*rows, rows[0]])
    with pytest.raises(ResultsError, match="line 6: copy has this case twice"):
        read_csv(write(tmp_path, text))


def test_a_byte_order_mark_is_no_damage(tmp_path, rows):
    assert len(read_csv(write(tmp_path, "\ufeff" + to_csv(rows)))[0]) == 4


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_usage_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("fuzz") / "x.csv"
    path.write_bytes(",".join(COLUMNS).encode() + b"\n" + data)
    try:
        read_csv(path)
    except UsageError as error:
        assert error.exit_code == 2


RESULTS = Path(__file__).parents[2] / "results"
COMMITTED = sorted(str(file.relative_to(RESULTS)) for file in RESULTS.glob("h*/*.csv"))


@pytest.mark.parametrize("name", sampled(COMMITTED, lambda name: (RESULTS / name).stat().st_size < 50_000))
def test_a_committed_csv_has_the_rows_of_its_document(name):
    file = RESULTS / name
    document = load(beside(file))
    found = list(results.rows_of_run([records.record_from_json(cell) for cell in document["cells"]], document))
    committed, expected = (list(csv.DictReader(StringIO(text))) for text in (file.read_text(), to_csv(found)))
    assert [{name: line[name] for name in committed[0]} for line in expected] == committed
    assert not any(line[name] for line in expected for name in line.keys() - committed[0].keys())  # columns younger than the file


def test_device_and_host_time_stand_beside_the_headline(make_record):
    record = make_record("ours", [20.0])
    profile = Profile((5.0, 6.0, 7.0), (30.0, 40.0, 50.0), ("max", "sum"))
    found = results.row(replace(record, outcome=replace(record.outcome, profile=profile)), None, None, device="H200", run="r")
    assert (found.median_us, found.device_us, found.host_us, found.kernels) == (20, 6, 40, 2)


def test_the_median_interval_and_the_stopping_reason_are_columns(make_record):
    record = make_record("ours", [10.0, 20.0, 30.0])
    timing = replace(record.outcome.timing, stopped="limit")
    found = results.row(replace(record, outcome=replace(record.outcome, timing=timing)), None, None, device="H200", run="r")
    assert (found.low_us < 10, found.high_us > 30, found.stopped) == (True, True, "limit")


def test_why_there_is_no_device_time_is_told(make_record):
    record = make_record("ours", [20.0])
    profiled = replace(record, outcome=replace(record.outcome, profile=Profile(host_us=(9.0,), note="CUPTI is taken")))
    found = results.row(profiled, None, None, device="H200", run="r")
    assert (found.status, found.device_us, found.reason) == ("ok", None, "no device time: CUPTI is taken")
    shown = StringIO()
    console = Console(file=shown, width=200)
    console.print(tables.results([found], console))
    assert "ours: ok (forward fp32 4096x256): no device time: CUPTI is taken" in shown.getvalue()


def test_a_host_time_has_no_bandwidth(tmp_path, make_record):
    record = make_record("ours", [20.0])
    timing = replace(record.outcome.timing, kind="host", l2="cold")
    found = results.row(replace(record, outcome=replace(record.outcome, timing=timing)), None, None, device="H200", run="r")
    assert (found.median_us, found.gbps) == (20, None)
    assert read_csv(write(tmp_path, to_csv([found])))[0][0].gbps is None


def test_the_operation_is_a_column_and_part_of_the_case(make_row, tmp_path):
    row = make_row("a", op="log_softmax")
    text = to_csv([row, replace(row, op="softmax")])
    found, _ = read_csv(write(tmp_path, text))
    assert [str(one.case) for one in found] == ["log_softmax-forward-fp32-4096x256", "forward-fp32-4096x256"]
    with pytest.raises(ResultsError, match="line 2: op"):
        read_csv(write(tmp_path, text.replace("log_softmax", "<b>")))


def test_the_shape_is_a_column_and_part_of_the_case(make_row, tmp_path):
    row = make_row("a", shape="64x256x64@dim1")
    text = to_csv([row, replace(row, shape="")])
    found, _ = read_csv(write(tmp_path, text))
    assert [str(one.case) for one in found] == ["forward-fp32-64x256x64@dim1", "forward-fp32-4096x256"]
    assert [(one.shape, one.M, one.N) for one in found] == [("64x256x64@dim1", 4096, 256), ("", 4096, 256)]
    for wrong in ("64x256x64", "64x256x65@dim1", "4096x256", "<b>", "64x0256x64@dim1"):
        with pytest.raises(ResultsError, match=r"line 2: shape: .* is no shape of 4096 rows and 256 columns"):
            read_csv(write(tmp_path, text.replace("64x256x64@dim1", wrong)))
