"""Tables of launch plans: what they say, which one a card has, and what is refused."""

import json

import pytest
from softbench.kernels.cuda import launch
from softbench.kernels.plans import table as tables
from softbench.kernels.plans.table import Cell, Table, TableError, family_name, family_of, kind_of, lines_of, table, written

KIND, INF, SPLIT = ("forward", 2, 16), float("inf"), ("split_bulk", 8, 256, -400, 100)
CELLS = {KIND: (Cell(4096, 64, ("block", 1, 128)), Cell(4096, INF, ("block", 2, 128)), Cell(INF, INF, SPLIT))}


@pytest.fixture
def chosen(monkeypatch, tmp_path):
    """A table's file that $SOFTBENCH_PLANS names, and a function that reads it anew for a card."""
    monkeypatch.setenv(tables.VARIABLE, str(tmp_path / "mine.json"))

    def read(card="mine", text=None):
        (tmp_path / "mine.json").write_text(written("mine", 90, {"cuda": CELLS}, "today") if text is None else text)
        table.cache_clear()
        return table("cuda", card, 90)

    yield read
    table.cache_clear()


def test_a_table_is_read_as_it_was_written(chosen):
    assert chosen() == Table("mine", CELLS)
    assert lines_of(CELLS[KIND]) == ["4096: 64 block 1 128; inf block 2 128", "inf: inf split_bulk 8 256 -400 100"]
    assert lines_of([Cell(1 << 40, 1.5, SPLIT), Cell(1 << 40, 2, SPLIT)])[0].startswith("1099511627776: 1.5 split_bulk 8 256 -400 100; 2 ")
    assert family_of("cuda", family_name(SPLIT)) == SPLIT


LAST = "inf: inf block 2 128"


def damaged(lines):
    return json.dumps({"card": "mine", "capability": 90, "cuda": {"forward 2 16": lines}})


TEXTS = [
    "",
    "[]",
    '{"card": "mine"}',
    '{"card": "mine", "capability": 90, "cuda": {"sideways 2 16": []}}',
    "[" * 100_000,
    '{"card": "mine", "capability": 90, "cuda": []}',
    *(
        f'{{"card": "mine", "capability": 90, "cuda": {{"forward {kind}": ["inf: inf block 2 128"]}}}}'
        for kind in ("3 16", "2 3", "99999999999 16")
    ),
    *(damaged([f"inf: inf {family}"]) for family in ("warp 1 2", "split 8 0 -100", "split -8 1 -100")),
    # Numbers that planner.cuh would divide by after they overflowed, or that are none of 32 bits.
    *(damaged([f"inf: inf {family}"]) for family in ("cluster 268435456 16", "split 4 134217728 1", "block 99999999999999 128")),
    *(damaged(lines) for lines in ([LAST, "64: inf block 2 128"], ["64: inf block 2 128"], ["nan: inf block 2 128", LAST], [LAST[5:]], [])),
    *(  # the cells of a line do not end at inf
        damaged([f"64: {kib} block 2 128", LAST]) for kib in ("5", "nan", "inf block 2 128; 5", "8 block 2 128; 5 block 2 128; inf")
    ),
    *(damaged(lines) for lines in ([["inf", "inf", "block 2 128"]], LAST, 3)),
]


@pytest.mark.parametrize("text", TEXTS)
def test_another_file_is_refused_in_one_line(chosen, text):
    with pytest.raises(TableError, match=r"mine.json is no table of launch plans: .*; name another one in \$SOFTBENCH_PLANS, or unset it"):
        chosen(text=text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "it must be an object with the keys card, capability and cuda"),
        ('{"card": "mine", "capability": "9.0", "cuda": {}}', "the capability must be an integer"),
        ('{"card": "mine", "capability": 90, "cuda": {"forwards 2 16": []}}', "'forwards 2 16' is no kind of rows, as 'forward 2 16' is"),
        ('{"card": "mine", "capability": 90, "cuda": {"forward 2": []}}', "'forward 2' is no kind of rows, as 'forward 2 16' is"),
        (
            damaged([LAST.replace("block", "warp")]),
            "cuda's 'forward 2 16' has other lines than .*: 'warp 2 128' is no family of plans",
        ),
        (damaged([]), "the lines of cuda's 'forward 2 16' must ascend to inf"),
    ],
)
def test_the_line_says_what_is_wrong(chosen, text, why):
    with pytest.raises(TableError, match=f"mine.json is no table of launch plans: {why}"):
        chosen(text=text)


@pytest.mark.parametrize(
    "family", ["tile 3", "staged 10 3 8192", "rows 2 1 3 16", "rows 2 1 1 6", "cluster 256 1 0", "cluster 256 8 0 0", "split 100 8 4 0"]
)
def test_families_whose_plans_no_kernel_takes_are_refused(family):
    """Triton's arrays have powers of two, and its vectors whole words."""
    with pytest.raises(ValueError, match="is no family of plans"):
        family_of("triton", family)


def test_lines_of_an_earlier_version_are_told_from_todays(chosen):
    with pytest.raises(TableError, match=r"'forward 2 16' has other lines than '4096: 64 block 1 128; inf block 2 128': 'list'"):
        chosen(text=damaged([[None, [[None, "block 2 0 128"]]]]))


def test_a_table_of_another_card_is_refused(chosen):
    with pytest.raises(TableError, match=r"has the plans of mine, and this card is another; name another one in \$SOFTBENCH_PLANS"):
        chosen("another")
    assert chosen("").card == "mine"  # where no card is known


@pytest.mark.parametrize(("row_bytes", "kib", "order"), [(1000, 100, [2, 1, 8]), (4096, 64, [1, 2, 8]), (5000, 64, [8, 2, 1])])
def test_the_own_cell_comes_first_and_the_nearest_ones_follow(chosen, row_bytes, kib, order):
    assert [family[1] for family in chosen().ranked(KIND, row_bytes, kib)] == order
    assert [*chosen().ranked(("forward", 2, 8), 1000, 100)] == []  # neither such rows nor rows at any address


def test_rows_of_another_kind_have_plans_of_rows_at_any_address():
    found = table("cuda", "NVIDIA H200", 90)
    assert kind_of("forward", 2, 4096, 8) == ("forward", 2, 8) and kind_of("forward", 2, 4098, 8) == ("forward", 2, 2)
    families = list(found.ranked(("forward", 2, 8), 800, 1000))
    assert families[-len(found.cells["forward", 2, 2]) :] == list(found.ranked(("forward", 2, 2), 800, 1000))


def test_a_card_without_a_table_has_that_of_the_nearest_architecture(monkeypatch, tmp_path):
    monkeypatch.setenv(tables.VARIABLE, "")
    old = tmp_path / "old.json"
    old.write_text(written("old", 80, {"cuda": CELLS}, ""))
    shipped = next(path for path in tables._files() if path.stem == "NVIDIA-H200")
    monkeypatch.setattr(tables, "_files", lambda: [shipped, old])
    table.cache_clear()
    assert [table("cuda", *card).card for card in (("A10", 86), ("B200", 100), ("old", 90))] == ["old", "NVIDIA H200", "old"]
    table.cache_clear()


def test_what_tune_wrote_here_replaces_the_shipped_table(monkeypatch, tmp_path):
    monkeypatch.delenv(tables.VARIABLE, raising=False)
    monkeypatch.setenv("SOFTBENCH_CACHE", str(tmp_path))
    table.cache_clear()
    assert len(table("cuda", "NVIDIA H200", 90).cells) == 18
    own = tables.tuned_file("NVIDIA H200")
    own.parent.mkdir()
    own.write_text(written("NVIDIA H200", 90, {"cuda": CELLS}, ""))
    table.cache_clear()
    assert table("cuda", "NVIDIA H200", 90).cells.keys() == {KIND}
    with pytest.warns(
        UserWarning, match="NVIDIA-H200.json is no table of launch plans: it must be an object with the keys .* triton; delete it"
    ):
        assert len(table("triton", "NVIDIA H200", 90).cells) > 1
    table.cache_clear()


@pytest.mark.parametrize("path", tables._files(), ids=lambda path: path.stem)
def test_a_shipped_table_is_small_and_in_order(path, monkeypatch):
    monkeypatch.setenv(tables.VARIABLE, "")
    table.cache_clear()
    text = path.read_text()
    assert len(text.splitlines()) <= 300
    card = json.loads(text)["card"]
    assert table("triton", card, 90).card == card and table("triton", card, 90).cells
    numbers = launch.planned_cells(card, (9, 0))
    cells = [tuple(numbers[at : at + launch.CELL]) for at in range(0, len(numbers), launch.CELL)]
    assert cells == sorted(cells, key=lambda cell: cell[:3]) and len(cells) * launch.CELL == len(numbers)
    ends = [cell for cell, after in zip(cells, [*cells[1:], (None,)], strict=True) if cell[0] != after[0]]
    assert all(cell[1:3] == (launch.INFINITE, launch.INFINITE) for cell in ends)
