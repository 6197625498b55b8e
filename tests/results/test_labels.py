"""Each label where it belongs, and not elsewhere. The numbers are an H200's."""

from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import pytest

from softbench.core.case import Case, Direction
from softbench.core.machine import peak_gbps
from softbench.core.outcome import Accuracy, Grade, Profile
from softbench.ops.registry import operation
from softbench.report import tables
from softbench.results import compare, labels, rows as results
from softbench.results.csv import read_csv, to_csv
from softbench.worker import machine_probe

L2 = 62914560
PEAK = peak_gbps(3201, 6144)
FACTS = {"gpu_l2_bytes": L2, "peak_gbps": PEAK}


def text(renderable, width=200):
    out = StringIO()
    tables.Console(file=out, width=width, color_system=None).print(renderable)
    return out.getvalue()


def case(M, N, dtype="bf16", direction=Direction.FORWARD):
    return Case(M, N, dtype, direction)


@pytest.mark.parametrize(
    ("do_bench_us", "device_us", "host_us", "kernels", "expected"),
    [
        (68.9, 3.2, 71, 1, True),  # torch.compile, N=256: the host
        (67.4, 6.7, 70, 1, True),
        (5.0, 2.6, 13, 1, False),  # copy: what the events add
        (5.3, 2.8, 20, 1, False),
        (20.0, 17.3, 12, 1, False),
        (130.5, 133.8, 11, 1, False),
        (30.0, 20.0, 45, 5, False),  # five kernels and the gaps between them
        (90.0, 20.0, 95, 5, True),
        (90.0, 20.0, 15, 5, False),  # the host was quick: something else is slow
    ],
)
def test_launch_bound_is_where_do_bench_waited_for_the_host(do_bench_us, device_us, host_us, kernels, expected):
    assert labels.launch_bound(do_bench_us, device_us, host_us, kernels) is expected


def test_l2_resident_counts_all_tensors_of_the_case():
    fits, too_large = case(4096, 3840), case(4096, 3841)
    assert labels.l2_resident(fits, L2)
    assert not labels.l2_resident(too_large, L2)
    assert not labels.l2_resident(replace(fits, direction=Direction.BACKWARD), L2)
    assert not labels.l2_resident(replace(fits, direction=Direction.BOTH), L2)


@pytest.mark.parametrize(
    ("median_us", "p20_us", "p80_us", "expected"),
    [(5.4, 5.3, 5.75, False), (5, 4.6, 6, True), (100, 96, 105, False), (100, 90, 101, True), (5194, 13.4, 14.2, True)],
)
def test_noisy_is_a_band_wider_than_both_limits(median_us, p20_us, p80_us, expected):
    assert labels.noisy(median_us, p20_us, p80_us) is expected


def test_implausible_is_faster_than_the_datasheet_without_l2_bytes():
    large = case(65536, 65536)
    limit_us = (operation("softmax").bytes_moved(large) - L2) / (1.05 * PEAK) / 1e3
    assert labels.implausible(large, limit_us * 0.998, PEAK, L2, "cold")
    assert not labels.implausible(large, limit_us * 1.002, PEAK, L2, "cold")
    assert not labels.implausible(large, limit_us * 0.998, PEAK, L2, "warm")  # what was there from before need not be read
    assert not labels.implausible(case(4096, 4096), 0.1, PEAK, L2, "cold")  # so few bytes say nothing of memory


def test_the_peak_is_of_the_datasheet_and_names_its_source(monkeypatch):
    assert pytest.approx(4917, abs=1) == PEAK
    assert peak_gbps(2619, 5120) == pytest.approx(3352, abs=1)  # H100 SXM
    assert peak_gbps(10501, 384) == pytest.approx(1008, abs=1)  # RTX 4090

    class Nvml:
        NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

        def __getattr__(self, name):
            known = {"nvmlDeviceGetMaxClockInfo": lambda *_: 3201, "nvmlDeviceGetMemoryBusWidth": lambda *_: 6144}
            known["nvmlDeviceGetComputeRunningProcesses"] = lambda _: ["ours", "another's"]
            if name not in known:
                raise RuntimeError("NotSupported")
            return known[name]

    fields = ("name", "total_memory", "multi_processor_count", "L2_cache_size", "major", "minor")
    monkeypatch.setattr(machine_probe.torch.cuda, "get_device_properties", lambda _: SimpleNamespace(**dict.fromkeys(fields, 9)))
    monkeypatch.setattr(machine_probe, "_nvml", lambda index: machine_probe.contextmanager(lambda: iter([(Nvml(), 0)]))())
    found = machine_probe.describe_gpu(0)
    assert found["peak_gbps"] == PEAK
    assert found["gpu_other_processes"] == 1
    assert found["peak_source"] == "NVML: 3201 MHz x 2 x 6144 bits"
    monkeypatch.setattr(machine_probe, "_nvml", lambda index: machine_probe.contextmanager(lambda: iter([(None, None)]))())
    assert "peak_gbps" not in machine_probe.describe_gpu(0)


def profiled(record, device_us, host_us):
    timing = replace(record.outcome.timing, kind="do_bench")
    return replace(record, outcome=replace(record.outcome, timing=timing, profile=Profile((device_us,), (host_us,), ("k",))))


def test_labels_are_given_from_what_is_known_only(make_record):
    record = profiled(make_record("ours", [68.9], N=256), 3.2, 71)
    assert labels.of(record, FACTS) == ("launch-bound", "L2-resident")
    assert labels.of(record, {}) == ("launch-bound",)
    assert labels.of(make_record("ours", [50.0, 50.0, 80.0, 80.0], N=256), {}) == ("noisy",)
    for kind, expected in (("queued", ("noisy",)), ("host", ())):  # calls of a host differ, and its rounds agree
        batches = tuple(replace(batch, samples_us=(30.0, 50.0, 90.0)) for batch in record.outcome.timing.batches * 2)
        timed = replace(record, outcome=replace(record.outcome, timing=replace(record.outcome.timing, kind=kind, batches=batches)))
        assert labels.of(timed, {}) == expected
        assert labels.of(replace(timed, case=replace(timed.case, device="cpu")), {}) == ()  # its calls differ too
    fast = make_record("ours", [1.0], N=262144)
    assert labels.of(fast, FACTS) == ("implausible",)


def test_a_cell_whose_products_take_longer_than_its_bytes_is_compute_bound(make_record):
    """The percentage is then of the fastest product, and the larger time of both is the roof."""
    case = Case(512, 512, "fp32", Direction.FORWARD, "cpu", "matmul(K=512)")
    copy, ours = (replace(make_record(name, [us]), case=case) for name, us in (("copy", 10.0), ("ours", 400.0)))
    copy = replace(copy, outcome=replace(copy.outcome, accuracy=Accuracy(Grade.YARDSTICK, 0.0, "")))
    for tflops, label, share in ((1.0, ("compute-bound",), 268.435 / 400), (100.0, (), 10 / 400), (None, (), 10 / 400)):
        rated = replace(copy, outcome=replace(copy.outcome, profile=Profile(product_tflops=tflops)))
        row = results.row(ours, rated, None, device="CPU", run="r")
        assert (labels.of(ours, {}, rated), row.of_copy) == (label, pytest.approx(share, rel=1e-4))
        assert labels.of(rated, {}, rated) == ()


def test_a_cell_far_faster_than_copy_is_implausible(make_record):
    copy, fast, fair, small = (
        make_record(name, [us], N=N)
        for name, us, N in (("copy", 3000.0, 262144), ("fast", 1900.0, 262144), ("fair", 2100.0, 262144), ("small", 1.0, 256))
    )
    facts = {"gpu_l2_bytes": FACTS["gpu_l2_bytes"]}  # the datasheet's bandwidth is unknown
    assert "implausible" in labels.of(fast, facts, copy)
    for record, yardstick in ((fair, copy), (fast, None), (copy, copy), (small, make_record("copy", [9.0], N=256))):
        assert "implausible" not in labels.of(record, facts, yardstick)
    row = results.row(fast, copy, fair, device="H200", run="r", facts=facts)
    assert (row.gbps, row.of_copy, row.speedup) == (None, None, None)


@pytest.mark.parametrize(("copy_us", "fraction"), [([30.0] * 6, 0.75), ([20.0, 40.0] * 3, None), ([61.0] * 6, None)])
def test_a_doubtful_copy_gives_no_percentage_and_keeps_the_speed_up(make_record, copy_us, fraction):
    """A copy whose rounds disagree, and one that is slower by more than half, although it only moves the same bytes."""
    copy = make_record("copy", copy_us, grade=Grade.YARDSTICK)
    ours, other = make_record("ours", [40.0] * 6), make_record("o", [20.0] * 6)
    rows = [results.row(record, copy, other, device="H200", run="r") for record in (copy, ours)]
    assert (rows[1].of_copy, rows[1].speedup) == (fraction, 0.5)
    shown = text(tables.results(rows, tables.Console(width=200)))
    assert ("without % of copy (1 cell): copy has a doubtful label there" in shown) == (fraction is None)


def test_tensors_in_l2_have_times_in_tables_and_no_fraction_of_the_peak(make_record):
    small, large = (make_record("ours", [us], N=N) for us, N in ((8.0, 256), (3000.0, 262144)))
    rows = [results.row(record, None, None, device="H200", run="r", facts=FACTS) for record in (small, large)]
    assert [(row.gbps, row.of_peak) for row in rows] == [
        (pytest.approx(1049, abs=1), None),
        (pytest.approx(2863, abs=1), pytest.approx(0.582, abs=0.001)),
    ]
    shown = text(tables.results(rows, tables.Console(width=200)))
    assert "8 us" in shown
    assert "2863" in shown
    assert "1049" not in shown
    assert "1049 (L2)" in text(tables.cells(rows))


def test_an_implausible_cell_has_no_bandwidth_and_no_ratios(tmp_path, make_record):
    fast, slow = make_record("fast", [1.0], N=262144), make_record("slow", [3000.0], N=262144)
    rows = [results.row(record, fast, slow, device="H200", run="r", facts=FACTS) for record in (fast, slow)]
    assert [(row.gbps, row.of_copy, row.of_peak) for row in rows] == [
        (None, None, None),
        (pytest.approx(2863, abs=1), None, pytest.approx(0.582, abs=0.001)),
    ]
    assert [row.speedup for row in rows] == [None, 1]
    (tmp_path / "x.csv").write_text(to_csv(rows))
    read, _ = read_csv(tmp_path / "x.csv")
    assert [row.labels for row in read] == ["implausible", ""]
    shown = text(tables.results(read, tables.Console(width=200), every=True))
    assert "implausible (1 cell of fast): faster than the memory or than 1.5 times copy" in shown
    assert "*" not in shown  # the slow one has no rival
    assert compare.pairs([replace(read[0], gbps=9e9, labels="")], read)[0].verdict == "B: implausible"


def test_the_table_marks_what_is_doubtful_and_says_why_once(make_record):
    records = [profiled(make_record("compile", [68.9], N=N), 3.2, 71) for N in (256, 512)]
    rows = [results.row(record, None, None, device="H200", run="r", facts=FACTS) for record in records]
    shown = text(tables.results(rows, tables.Console(width=200)))
    assert shown.count("us !") == 2
    assert "; 2 launch-bound: use --timer queued, or see device_us" in shown
    assert "! doubtful; us: the tensors fit the GPU's L2" in shown
    every = text(tables.results(rows, tables.Console(width=200), every=True))
    assert "launch-bound (2 cells of compile): do_bench read the host" in every
    assert "L2-resident (2 cells of compile)" in every
    assert "launch-bound" in text(tables.cells(rows), 300)
