"""Random shapes by seed and number: what they are, the configurations of their parts, and the list of slow cells."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from result_rows import result_row

from softbench.plan.config_file import load
from softbench.results.csv import to_csv

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(scope="module")
def tool():
    sys.path.insert(0, str(TOOLS))
    spec = importlib.util.spec_from_file_location("random_shapes", TOOLS / "random_shapes.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["random_shapes"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(TOOLS))


def test_shapes_have_16_to_400_mb_of_every_kind(tool):
    shapes = [tool.shape(1, number) for number in range(2000)]
    assert shapes[:50] == [tool.shape(1, number) for number in range(50)] != [tool.shape(2, number) for number in range(50)]
    sizes = [one.M * one.N * tool.SIZES[one.dtype] for one in shapes]
    assert 16e6 <= min(sizes) < 17e6
    assert 390e6 < max(sizes) <= 400e6
    for kind in (
        lambda one: one.N <= 200,
        lambda one: one.M <= 128,
        lambda one: one.N % 64 == 0 and one.N > 10_000,
        lambda one: one.N % 2 and one.N > 10_000,
    ):
        assert sum(map(kind, shapes)) > 100


def test_parts_have_each_shape_once(tool, tmp_path, monkeypatch, capsys):
    found = []
    for index in range(1, 11):
        file = tmp_path / f"{index}.toml"
        monkeypatch.setattr(sys, "argv", ["random_shapes", "write", f"{index}/10", "-o", str(file)])
        assert tool.main() == 0
        found += load(str(file))["sweep"]
    expected = [tool.shape(1, number) for number in range(2000)]
    assert [(one.M, one.N, one.dtype) for one in found] == [((one.M,), (one.N,), (one.dtype,)) for one in expected]
    monkeypatch.setattr(sys, "argv", ["random_shapes", "write", "11/10", "-o", str(tmp_path / "none.toml")])
    with pytest.raises(SystemExit):
        tool.main()
    assert "'11/10' is no part of 2000 shapes: write I/N, as in 3/10" in capsys.readouterr().err


def test_every_plan_of_a_part_fits_the_card(tool):
    import cards

    h200 = next(card for card in cards.CARDS if card.name == "H200")
    work = tool.plans((tool.shape(1, number) for number in range(200)), h200, "NVIDIA H200")
    assert 50 < len(work) <= 200
    told = [cards.card_launches.misfit(card, cards.card_launches.planned(card, problem, plan)) for card, problem, plan in work]
    assert set(told) == {None}


def row(backend, M, of_copy, N=64, **given):
    """A cell; without a fraction it was skipped."""
    status = {"status": "skipped"} if of_copy is None else {"grade": "pass", "of_copy": of_copy}
    return result_row(backend, M=M, N=N, **status, **given)


def csv_of(rows, file):
    file.write_text(to_csv(rows))
    return file


def test_slow_cells_are_listed_the_slowest_first(tool, tmp_path, capsys):
    rows = [row("copy", 8, 1.0), row("cuda", 8, 0.95), row("triton", 8, 0.89, labels="noisy"), row("cuda", 9, 0.5)]
    assert tool.below([csv_of(rows, tmp_path / "latest.csv")], 0.9) == 1
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in told] == ["0.500", "0.890", "2"]
    assert told[-1] == "2 of 3 cells below 0.9; 0 without a result"
    assert tool.below([csv_of(rows[:2], tmp_path / "latest.csv")], 0.9) == 0
    assert tool.below([csv_of([*rows[:2], row("triton", 8, None)], tmp_path / "latest.csv")], 0.9) == 1


def test_the_last_file_of_a_cell_counts(tool, tmp_path, capsys):
    first = csv_of([row("cuda", 8, 0.5), row("cuda", 8, 0.6, direction="backward")], tmp_path / "first.csv")
    second = csv_of([row("cuda", 8, 0.95)], tmp_path / "second.csv")
    assert tool.below([first, second], 0.9) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 of 2 cells below 0.9; 0 without a result"
    assert tool.below([second, first], 0.9) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "2 of 2 cells below 0.9; 0 without a result"


def test_kinds_of_launches_that_no_file_has_are_written(tool, tmp_path, monkeypatch, capsys):
    import cards

    h200 = next(card for card in cards.CARDS if card.name == "H200")
    shapes = [tool.shape(2, number) for number in range(300)]
    kinds = [tool.kind(one, h200, "NVIDIA H200") for one in shapes]
    rows = [row("triton", one.M, 1.0, one.N, dtype=one.dtype, direction=one.direction) for one in shapes[:100]]
    known = csv_of([*rows, row("triton", 8, 1.0, dtype="fp16")], tmp_path / "known.csv")
    output = tmp_path / "kinds.toml"
    monkeypatch.setattr(sys, "argv", ["random_shapes", "kinds", str(known), "--count", "300", "--least", "2", "-o", str(output)])
    assert tool.main() == 0
    expected = {of_kind for of_kind in kinds if of_kind not in kinds[:100] and kinds.count(of_kind) >= 2}
    found = [tool.Shape(sweep.M[0], sweep.N[0], sweep.dtype[0], sweep.direction[0]) for sweep in load(str(output))["sweep"]]
    assert len(expected) > 10
    assert sorted(map(str, expected)) == sorted(str(kinds[shapes.index(one)]) for one in found)
    counts = [kinds.count(kinds[shapes.index(one)]) for one in found]
    assert counts == sorted(counts, reverse=True)
    output.unlink()
    monkeypatch.setattr(sys, "argv", ["random_shapes", "kinds", str(known), "--count", "100", "--least", "101", "-o", str(output)])
    capsys.readouterr()
    assert tool.main() == 0
    assert capsys.readouterr().out == f"no kind of launch is new: wrote no {output}\n"
    assert not output.exists()


def test_a_loss_is_no_known_softmax(tool, tmp_path):
    file = csv_of([row("triton", 8, 1.0, op="cross_entropy"), row("triton", 9, 1.0)], tmp_path / "losses.csv")
    assert tool.measured_shapes([file]) == {tool.Shape(9, 64, "bf16", "forward")}


@pytest.mark.parametrize(
    ("name", "card"), [("NVIDIA L40S", "L40S"), ("NVIDIA GeForce RTX 4090", "RTX-4090"), ("NVIDIA H100 80GB HBM3", "H100")]
)
def test_a_device_is_the_card_of_its_name(tool, name, card):
    assert tool.card_of(name).name == card


def test_numbers_of_programs_make_no_new_kind(tool):
    import cards

    h200 = next(card for card in cards.CARDS if card.name == "H200")
    one, other = tool.Shape(100, 600000, "fp32", "backward"), tool.Shape(100, 700000, "fp32", "backward")
    plans = [tool.launch(shape, h200, "NVIDIA H200")[1] for shape in (one, other)]
    assert plans[0].split_ctas != plans[1].split_ctas
    assert tool.kind(one, h200, "NVIDIA H200") == tool.kind(other, h200, "NVIDIA H200")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["below", "missing.csv"], "missing.csv: No such file or directory"),
        (["below", __file__], f"{__file__}: line 1: not a softbench results file"),
        (["write", "1/10", "-o", "missing/one.toml"], "No such file or directory: 'missing/one.toml'"),
        (["kinds", str(Path(__file__)), "--device", "a toaster", "-o", "kinds.toml"], "'a toaster' names no card; cards are A100, "),
    ],
)
def test_bad_arguments_get_one_clear_line(tool, monkeypatch, capsys, arguments, told):
    monkeypatch.setattr(sys, "argv", ["random_shapes", *arguments])
    with pytest.raises(SystemExit):
        tool.main()
    assert told in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(("name", "major", "card"), [("NVIDIA GeForce RTX 4090", 8, "RTX-4090"), ("NVIDIA H20", 9, "H200")])
def test_kernels_are_compiled_for_the_card_here(tool, tmp_path, monkeypatch, name, major, card):
    """An RTX 4090 does not run what was compiled for an A100, which has the same major capability."""
    import torch

    seen = []
    gpu = SimpleNamespace(name=name, major=major, multi_processor_count=77)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    monkeypatch.setattr(tool, "plans", lambda shapes, card, name: seen.append((len(list(shapes)), card.name, card.sms, name)) or [])
    file = tmp_path / "one.toml"
    file.write_text(tool.configuration(1, range(2)))
    assert tool.compile_all(file) == 0
    assert seen == [(2, card, 77, name)]


def test_ranges_of_a_configuration_are_compiled_too(tool, tmp_path):
    file = tmp_path / "range.toml"
    file.write_text(
        'backends = ["triton"]\n[[sweep]]\nM = 64\nN = "5:9:2"\ndtype = ["bf16", "fp16"]\ndirection = ["forward", "backward"]\n'
    )
    shapes = tool.shapes_of(file)
    assert set(shapes) == {tool.Shape(64, N, "bf16", direction) for N in (5, 7, 9) for direction in ("forward", "backward")}
    assert len(shapes) == 6
