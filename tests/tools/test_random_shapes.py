"""Random shapes by seed and number: what they are, the configurations of their parts, and the list of slow cells."""

import importlib.util
import sys
from pathlib import Path

import pytest

from softbench.plan.config_file import load

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


def test_slow_cells_are_listed_the_slowest_first(tool, tmp_path, capsys):
    head = "backend,direction,M,N,dtype,of_copy,labels\n"
    lines = [
        "copy,forward,8,64,bf16,1,",
        "cuda,forward,8,64,bf16,0.95,",
        "triton,forward,8,64,bf16,0.89,noisy",
        "cuda,forward,9,64,bf16,0.5,",
    ]
    file = tmp_path / "latest.csv"
    file.write_text(head + "\n".join(lines) + "\n")
    assert tool.below([file], 0.9) == 1
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in told] == ["0.500", "0.890", "2"]
    assert told[-1] == "2 of 3 cells below 0.9; 0 without a result"
    file.write_text(head + "\n".join(lines[:2]) + "\n")
    assert tool.below([file], 0.9) == 0
    file.write_text(head + "\n".join([*lines[:2], "triton,forward,8,64,bf16,,"]) + "\n")
    assert tool.below([file], 0.9) == 1


def test_the_last_file_of_a_cell_counts(tool, tmp_path, capsys):
    head = "backend,direction,M,N,dtype,of_copy,labels\n"
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    first.write_text(head + "cuda,forward,8,64,bf16,0.5,\ncuda,backward,8,64,bf16,0.6,\n")
    second.write_text(head + "cuda,forward,8,64,bf16,0.95,\n")
    assert tool.below([first, second], 0.9) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 of 2 cells below 0.9; 0 without a result"
    assert tool.below([second, first], 0.9) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "2 of 2 cells below 0.9; 0 without a result"


def csv_of(shapes, file):
    lines = [f"triton,{one.direction},{one.M},{one.N},{one.dtype},1," for one in shapes]
    file.write_text("\n".join(["backend,direction,M,N,dtype,of_copy,labels", *lines, "triton,forward,8,64,fp16,1,"]) + "\n")
    return file


def test_kinds_of_launches_that_no_file_has_are_written(tool, tmp_path, monkeypatch):
    import cards

    h200 = next(card for card in cards.CARDS if card.name == "H200")
    shapes = [tool.shape(2, number) for number in range(300)]
    kinds = [tool.kind(one, h200, "NVIDIA H200") for one in shapes]
    known = csv_of(shapes[:100], tmp_path / "known.csv")
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
    with pytest.raises(SystemExit, match="no kind of launch is new"):
        tool.main()
    assert not output.exists()


def test_a_loss_is_no_known_softmax(tool, tmp_path):
    file = tmp_path / "losses.csv"
    file.write_text(
        "backend,direction,M,N,dtype,of_copy,labels,op\ntriton,forward,8,64,bf16,1,,cross_entropy\ntriton,forward,9,64,bf16,1,,softmax\n"
    )
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
        (["below", "missing.csv"], "missing.csv: no such file"),
        (["write", "1/10", "-o", "missing/one.toml"], "missing/one.toml: its folder is missing"),
        (["kinds", str(Path(__file__)), "--device", "a toaster", "-o", "kinds.toml"], "'a toaster' names no card; cards are A100, "),
    ],
)
def test_bad_arguments_get_one_clear_line(tool, monkeypatch, capsys, arguments, told):
    monkeypatch.setattr(sys, "argv", ["random_shapes", *arguments])
    with pytest.raises(SystemExit):
        tool.main()
    assert told in capsys.readouterr().err.splitlines()[-1]


def test_a_file_without_results_gets_one_clear_line(tool):
    with pytest.raises(
        SystemExit, match=r"test_random_shapes\.py: no CSV of softbench run, it lacks M, N, backend, direction, dtype, of_copy"
    ):
        tool.rows_of([Path(__file__)])
