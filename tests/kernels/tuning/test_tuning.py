"""Tuning: the shapes, the table that is fitted to times, and records that a later start continues."""

import fcntl
import math
import os
import random
import re
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from softbench.kernels.cuda.launch import family_numbers
from softbench.kernels.plans import table as tables
from softbench.kernels.plans.table import Cell
from softbench.kernels.tuning import measure
from softbench.kernels.tuning.fit import NOW, Timed, imagined, judge, table_of, with_now
from softbench.kernels.tuning.shapes import FAMILIES, Shape, draw

SMS = 132
SHORT, LONG, LOSER = ("block", 2, 128), ("cluster", 8, 128), ("split", 4, 256, 1024)
KIND = ("forward", 2, 16)


def timed(N, M, times):
    return Timed(Shape("forward", 2, M, N), 10.0, 12.0, times)


def test_families_are_numbers_of_the_planner_and_shapes_are_all_kinds():
    assert all(len(family_numbers(family)) == 5 for family in FAMILIES["cuda"])
    assert all(len(set(families)) == len(families) for families in FAMILIES.values())
    shapes = [draw(number, "cuda") for number in range(2000)]
    assert shapes[:3] == [draw(number, "cuda") for number in range(3)]
    assert len(Counter(shape.kind for shape in shapes)) == 18
    assert len(Counter(draw(number, "triton").kind for number in range(2000))) == 25
    assert all(shape.M * shape.row_bytes <= 2.1 * 4e8 for shape in shapes)
    assert sum(shape.M < 200 for shape in shapes) > 200
    of_length = [draw(number, "triton", 5) for number in range(10, 15)]
    assert (
        of_length == [draw(number, "triton", 5) for number in range(10, 15)] != [draw(number, "triton", 5, "b") for number in range(10, 15)]
    )
    assert len({(shape.which, shape.size, shape.N) for shape in of_length}) == 1 and len({shape.M for shape in of_length}) > 1


def test_a_table_has_a_line_where_another_family_becomes_the_fastest():
    dice = random.Random(1)
    shapes = [(64 * dice.randint(16, 1024), dice.randint(500, 2000)) for _ in range(200)]
    every = [timed(N, M, {SHORT: 10 + N / 20000, LONG: 13 - N / 20000, LOSER: 20}) for N, M in shapes]
    cells = table_of(every, FAMILIES["cuda"], SMS, ())
    short, long = cells[KIND]
    assert 2 * 25000 < short.row_bytes < 2 * 36000 and (long.row_bytes, short.kib_per_sm, long.kib_per_sm) == (math.inf,) * 3
    assert (short.family, long.family) == (SHORT, LONG)
    judged = judge(every, cells, SMS)
    assert judged.shapes == 200 and 0.998 * judged.best < judged.gained <= judged.best
    assert judged.slow_now == 1 and judged.slow == sum(min(one.families.values()) > 10 / 0.9 for one in every) / 200


def test_a_line_has_cells_where_the_size_of_the_launch_decides():
    every = [timed(8192, M, {SHORT: 1.0 if M < 1000 else 1.2, LONG: 1.1}) for M in range(100, 3000, 100)]
    cells = table_of(every, FAMILIES["cuda"], SMS, ())[KIND]
    assert cells == [Cell(math.inf, 128, SHORT), Cell(math.inf, math.inf, LONG)]  # 1000 rows are 121 KiB for each SM


def test_noise_of_one_shape_makes_no_cell():
    every = [timed(1024 * n, 1000, {SHORT: 1.0, LONG: 0.99 if n == 20 else 1.05}) for n in range(1, 60)]
    assert table_of(every, FAMILIES["cuda"], SMS, ()) == {KIND: [Cell(math.inf, math.inf, SHORT)]}


def test_a_family_that_makes_no_plan_for_some_rows_is_not_theirs():
    every = [timed(1024 * n, 1000, {SHORT: 1.0} if n < 30 else {LONG: 1.0}) for n in range(1, 60)]
    assert [cell.family for cell in table_of(every, FAMILIES["cuda"], SMS, ())[KIND]] == [SHORT, LONG]


def test_plans_of_now_stay_where_nothing_is_faster():
    now = tuple(Cell(row, kib, family) for row, kib, family in ((5000, math.inf, LOSER), (math.inf, 64, LONG), (math.inf, math.inf, SHORT)))
    times = ((1024 * n, {SHORT: 12.1 if n < 40 else 9.0, LONG: 13.0}) for n in range(1, 60))
    every = [timed(N, 20_000_000 // N, of) for N, of in times]
    cells = table_of(every, FAMILIES["cuda"], SMS, {KIND})
    kept, new = cells[KIND]
    assert kept.family == NOW and new.family == SHORT and 2 * 1024 * 38 <= kept.row_bytes < 2 * 1024 * 40
    assert judge(every, cells, SMS).gained > 1.08
    assert with_now(cells[KIND], now) == [now[0], *(replace(one, row_bytes=kept.row_bytes) for one in now[1:]), new]
    assert with_now([Cell(math.inf, math.inf, NOW)], now) == [*now]


def test_shapes_that_were_not_timed_have_the_families_of_the_nearest_ones():
    long, short = (
        [timed(N * n, 8_000_000 // N, {SHORT: fast, LONG: slow}) for n in (16, 20)] for N, fast, slow in ((64, 1.0, 1.2), (8192, 1.2, 1.0))
    )
    found = imagined("cuda", [*short, *long], SMS, {}, lambda shape: {SHORT: 64, LONG: 64} if shape.which == "forward" else {})
    assert len(found) > 500 and all(one.shape.which == "forward" for one in found)
    fastest = [(one.shape.row_bytes, min(one.families, key=one.families.get)) for one in found if one.shape.size == 2]
    assert {family for row, family in fastest if row < 4000} == {SHORT} and {family for row, family in fastest if row > 150_000} == {LONG}


def test_a_familys_plans_with_other_threads_say_nothing_of_each_other():
    every = [timed(N, 8_000_000 // N, {SHORT: 1.0, LONG: 1.2}) for N in (256, 512, 900)]
    found = imagined("cuda", every, SMS, {}, lambda shape: {SHORT: 64 if shape.N < 1000 else 512, LONG: 64})
    assert {frozenset(one.families) for one in found if one.shape.N < 1000} == {frozenset((SHORT, LONG))}
    assert {frozenset(one.families) for one in found if one.shape.N >= 1000} == {frozenset((LONG,))}


def test_plans_of_now_lose_what_their_family_loses():
    now = {KIND: (Cell(4096, math.inf, SHORT), Cell(math.inf, math.inf, LONG))}
    every = [timed(N, 8_000_000 // N, {SHORT: 10.0, LONG: 10.0}) for N in (256, 512, 1024)]
    found = imagined("cuda", every, SMS, now, lambda _: {SHORT: 64, LONG: 64})
    short, long = ([one.now for one in found if one.shape.kind == KIND and (one.shape.row_bytes <= 4096) == of] for of in (True, False))
    assert len(short) > 50 and short == pytest.approx([1.2] * len(short)) and len(long) > 50 and set(long) == {1.0}


def test_records_survive_an_interrupt(tmp_path):
    file = tmp_path / "records.jsonl"
    one = timed(1024, 10, {SHORT: 1.25, LONG: 2.5})
    assert measure.read(file, "cuda") == []
    file.write_text(f"{measure.to_json(one)}\nnull\n{measure.to_json(one)[:40]}")
    assert measure.read(file, "cuda") == [one, None]
    assert measure.read(file, "cuda") == [one, None]
    for other in ("{}", "nul", '{"shape": 1, "families": {}}', '{"families": []}', "3"):
        file.write_text(f"null\n{other}\n")
        with pytest.raises(tables.TableError, match=r"records\.jsonl has other lines than tune writes; delete it"):
            measure.read(file, "cuda")


def test_without_a_gpu_tuning_ends_with_one_line_and_exit_code_2(monkeypatch, capsys):
    monkeypatch.setattr(measure.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        measure.main(1, None, quiet=False)
    assert re.fullmatch(r"softbench: tune needs a CUDA GPU, and torch \S+ sees none here: see softbench doctor\n", capsys.readouterr().err)


class Faked:
    """A language whose shapes are given."""

    each, prepared = 1, 1000

    def __init__(self, name, times, seed=""):
        self.name, self.times, self.seed = name, times, seed

    def key(self):
        return "key"

    def ready(self, number):
        return number < self.prepared

    def close(self):
        pass

    def makes(self, shape):
        return {}


def test_languages_take_turns_by_time_and_one_that_is_not_ready_waits(monkeypatch, tmp_path):
    slow, fast = Faked("cuda", [timed(1024, 10, {SHORT: 9.0})] * 99), Faked("triton", [None] * 99)
    clock = [0.0]

    def time_shape(_timer, language, _shape):
        clock[0] += 2 if language is slow else 1
        return language.times[0]

    monkeypatch.setattr(measure, "Timer", lambda: None)
    monkeypatch.setattr(measure, "time_shape", time_shape)
    monkeypatch.setattr(measure.time, "monotonic", lambda: clock[0])
    stored = [tmp_path / "slow", tmp_path / "fast"]
    assert [len(every) for every in measure.measure([slow, fast], stored, 20, told=False)] == [5, 10]
    fast.prepared = 12
    assert [len(every) for every in measure.measure([slow, fast], stored, 20, told=False)] == [5 + 9, 12]
    assert measure.read(stored[0], "cuda") == slow.times[:14] and measure.read(stored[1], "triton") == [None] * 12


@pytest.fixture
def tune(monkeypatch, tmp_path):
    """A function that tunes a card, with times that are given for each language."""
    monkeypatch.setenv("SOFTBENCH_CACHE", str(tmp_path))
    monkeypatch.delenv(tables.VARIABLE, raising=False)
    tables.table.cache_clear()
    answers = {"is_available": True, "get_device_capability": (9, 0), "get_device_name": "a card"}
    answers["get_device_properties"] = SimpleNamespace(multi_processor_count=SMS)
    for name, answer in answers.items():
        monkeypatch.setattr(measure.torch.cuda, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(measure, "measure", lambda languages, *_: [language.times for language in languages])

    def run(cuda, triton, output=None):
        monkeypatch.setattr(measure, "Cuda", lambda seed: Faked("cuda", cuda, seed))
        monkeypatch.setattr(measure, "Triton", lambda seed: Faked("triton", triton, seed))
        measure.main(1, output, quiet=True)

    yield run
    tables.table.cache_clear()


ROWS = ("rows", 2, 1, 1, 16)


def test_kinds_that_were_not_timed_keep_their_lines(tune, capsys, monkeypatch):
    before = tables.table("cuda", "a card", 90).cells
    tune([timed(1024, 10, {SHORT: 1.0})] * 12, [timed(1024, 10, {ROWS: 13.0})] * 12)
    told = capsys.readouterr().out
    assert "triton: " in told and "not taken, because it gains nothing" in told
    tables.table.cache_clear()
    found = tables.table("cuda", "a card", 90).cells
    assert found.keys() == before.keys() and {kind for kind in found if found[kind] != before[kind]} == {KIND}
    assert '"measured": "20' in tables.tuned_file("a card").read_text() and "triton as before" in tables.tuned_file("a card").read_text()
    with pytest.raises(SystemExit, match="too short to time shapes of cuda"):
        tune([], [])


def test_two_tunings_of_a_card_and_a_folder_that_cannot_be_written_end_with_one_line(tune, tmp_path, monkeypatch):
    tables.tuned_file("a card").parent.mkdir()
    with tables.tuned_file("a card").with_suffix(".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(SystemExit, match="another softbench tune measures this card"):
            tune([], [])
    (tmp_path / "file").touch()
    monkeypatch.setenv("SOFTBENCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(SystemExit, match=r"file/plans'; name another folder in \$SOFTBENCH_CACHE"):
        tune([], [])


def test_a_language_that_gains_nothing_keeps_its_lines(tune, monkeypatch, tmp_path):
    inf = math.inf
    now = {"cuda": {KIND: (Cell(4096, 64, ("block", 1, 128)), Cell(4096, inf, ("block", 2, 128)), Cell(inf, inf, ("split", 4, 256, 1024)))}}
    now["triton"] = {KIND: (Cell(inf, inf, ("rows", 4, 1, 1, 16)),)}
    (tmp_path / "now.json").write_text(tables.written("a card", 90, now, ""))
    monkeypatch.setenv(tables.VARIABLE, str(tmp_path / "now.json"))
    tune([timed(1024, 10, {SHORT: 13.0})] * 12, [timed(1024, 10, {ROWS: 9.0})] * 12)
    monkeypatch.setenv(tables.VARIABLE, str(tables.tuned_file("a card")))
    tables.table.cache_clear()
    found = {name: tables.table(name, "a card", 90).cells for name in now}
    assert found == {"cuda": now["cuda"], "triton": {KIND: (Cell(inf, inf, ROWS),)}}


def test_a_cell_costs_more_if_a_file_would_have_too_many_lines(tune, monkeypatch):
    bands = [timed(1024 * n, 1000, {SHORT: 9.0, LONG: 9.5} if n // 4 % 2 else {SHORT: 9.5, LONG: 9.0}) for n in range(1, 64)]
    lengths = []
    for most in (300, 200):
        monkeypatch.setattr(measure, "MOST_LINES", most)
        tune(bands, [timed(1024, 10, {ROWS: 13.0})] * 12)
        lengths.append(len(tables.tuned_file("a card").read_text()))
    assert lengths[1] < lengths[0]


@pytest.fixture
def few_lines(monkeypatch, tmp_path):
    """The present table has few lines, and `more` of a kind that is not timed."""

    def choose(more=()):
        cells = {KIND: [Cell(math.inf, math.inf, LOSER)], ("gradient", 2, 16): [*more, Cell(math.inf, math.inf, SHORT)]}
        now = {"cuda": cells, "triton": {KIND: [Cell(math.inf, math.inf, ROWS)]}}
        (tmp_path / "now.json").write_text(tables.written("a card", 90, now, ""))
        monkeypatch.setenv(tables.VARIABLE, str(tmp_path / "now.json"))
        tables.table.cache_clear()

    return choose


def test_a_cells_cost_rises_until_the_file_is_short_enough(tune, monkeypatch, few_lines, capsys):
    few_lines()
    losses = [{SHORT: 9.0, LONG: 13.0} if n // 4 % 2 else {SHORT: 13.0, LONG: 9.0} for n in range(64)]
    bands = [timed(1024 * n, 1000 + M, losses[n]) for M in range(20) for n in range(1, 64)]
    lengths = [301]
    for _ in range(2):
        monkeypatch.setattr(measure, "MOST_LINES", lengths[-1] - 1)
        tune(bands, [timed(1024, 10, {ROWS: 13.0})] * 12)
        lengths.append(len(tables.tuned_file("a card").read_text().splitlines()))
    assert lengths == sorted({*lengths}, reverse=True)
    assert capsys.readouterr().err == ""


def test_a_file_that_cannot_be_short_enough_is_written_with_one_line(tune, monkeypatch, few_lines, capsys):
    few_lines([Cell(100 * n, math.inf, SHORT if n % 2 else LONG) for n in range(1, 200)])
    monkeypatch.setattr(measure, "MOST_LINES", 12)
    tune([timed(1024, 10, {SHORT: 9.0})] * 12, [timed(1024, 10, {ROWS: 13.0})] * 12)
    file = tables.tuned_file("a card")
    count, why = (
        len(file.read_text().splitlines()),
        r"the present plans that stay have so many; name a table of fewer lines in \$SOFTBENCH_PLANS",
    )
    assert count > 12
    told = rf"softbench: tune: {file} has {count} lines, and 12 are the most: {why}, and tune again\n"
    assert re.fullmatch(told, capsys.readouterr().err)


def test_a_link_and_a_pipe_stay_what_they_are(tune, tmp_path):
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(tmp_path / "table.json")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)
    for output in (link, pipe):
        tune([timed(1024, 10, {SHORT: 9.0})] * 12, [timed(1024, 10, {ROWS: 13.0})] * 12, output)
    assert link.is_symlink() and pipe.is_fifo()
    assert os.read(reader, 1 << 20).decode() == (tmp_path / "table.json").read_text()
    os.close(reader)


def test_a_gpu_without_the_memory_ends_with_one_line(tune, monkeypatch):
    def measured(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(measure, "measure", measured)
    with pytest.raises(SystemExit, match="it needs 3 GiB of the GPU's memory"):
        tune([], [])


def test_times_of_other_plans_of_now_or_by_other_code_are_not_continued(tune, monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr(measure, "measure", lambda languages, stored, *_: given.append(stored) or [one.times for one in languages])
    times = [timed(1024, 10, {SHORT: 13.0})] * 12, [timed(1024, 10, {ROWS: 13.0})] * 12
    other = {"cuda": {KIND: [Cell(math.inf, math.inf, SHORT)]}, "triton": {KIND: [Cell(math.inf, math.inf, ("rows", 4, 1, 1, 16))]}}
    (tmp_path / "other.json").write_text(tables.written("a card", 90, other, ""))
    for chosen in ("", "", str(tmp_path / "other.json")):
        monkeypatch.setenv(tables.VARIABLE, chosen)
        tables.table.cache_clear()
        tune(*times)
    monkeypatch.setattr(measure, "__file__", str(tmp_path / "measure.py"))  # beside which is other code
    tune(*times)
    assert given[0] == given[1] and len({*given[0], *given[2], *given[3]}) == 6


def test_another_file_than_a_table_ends_with_2(tune, capsys, monkeypatch, tmp_path):
    (tmp_path / "mine.json").write_text("{}")
    monkeypatch.setenv(tables.VARIABLE, str(tmp_path / "mine.json"))
    with pytest.raises(SystemExit, match="2"):
        tune([], [])
    assert re.fullmatch(r"softbench: tune: .*mine.json is no table .*; name another one in \$SOFTBENCH_PLANS.*\n", capsys.readouterr().err)


def test_tune_writes_the_file_that_it_is_given(monkeypatch, main):
    monkeypatch.setattr("subprocess.call", lambda line: line[6] != "table.json")
    assert main("tune", "--output", "table.json") == (0, "", "")


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (1, 1), (2, 2), (3, 1), (-9, 1)])
def test_tune_ends_as_its_process(code, expected, monkeypatch, main):
    """With 2 for a wrong option or variable."""
    monkeypatch.setattr("subprocess.call", lambda line: code)
    ended, out, told = main("tune")
    why = "softbench: tune: signal 9 ended the measurement; call tune again, and it continues after the last shape\n"
    assert (ended, out, told) == (expected, "", why if code == -9 else "")
