"""The grammar of --M and --N, and the cases it makes."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from softbench.core.case import Direction
from softbench.core.errors import UsageError
from softbench.ops import registry
from softbench.plan.grammar import (
    MAX_VALUES,
    parse_axis,
    parse_dims,
    parse_directions,
    parse_dtypes,
    parse_operation,
    parse_operations,
    parse_shapes_or_presets,
)
from softbench.plan.sweep import Sweep, cases, only, thinned


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("4096", (4096,)),
        ("256,1024", (256, 1024)),
        ("256:1024:256", (256, 512, 768, 1024)),
        ("256:1000:256", (256, 512, 768)),
        ("256:65536:*4", (256, 1024, 4096, 16384, 65536)),
        ("8, 8:16:4 ,1", (8, 12, 16, 1)),
        ("256:6272:128", tuple(128 * i for i in range(2, 50))),
    ],
)
def test_lists_and_ranges_are_read_as_written(text, values):
    assert parse_axis(text, "--N") == values


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("0", "out of range"),
        ("-4", "out of range"),
        ("8:4:2", "stops before it starts"),
        ("1:1e9:1", "'1e9' is not a whole number"),
        ("1:1000000000:1", f"more than {MAX_VALUES} values"),
        ("", "a number is missing"),
        ("a", "not a whole number"),
        ("1:2", "a range is start:stop:step"),
        ("1:8:*1", "factor must be at least 2"),
        ("1:8:0", "out of range"),
        ("\u0663", "not a whole number"),
        ("9" * 30, "not a whole number"),
    ],
)
def test_an_invalid_size_is_refused_with_flag_and_reason(text, part):
    with pytest.raises(UsageError, match="--N") as raised:
        parse_axis(text, "--N")
    assert part in str(raised.value)


@given(st.text(max_size=30))
def test_the_grammar_raises_only_usage_errors(text):
    try:
        assert all(value >= 1 for value in parse_axis(text, "--N"))
    except UsageError as error:
        assert str(error).startswith("--N")


def test_names_of_torch_are_dtypes_too():
    assert parse_dtypes("float32,half, bfloat16,torch.float16,fp32", "--dtype") == ("fp32", "fp16", "bf16")


def test_unknown_dtypes_and_directions_are_refused_with_the_known_ones():
    with pytest.raises(UsageError, match=r"--dtype: unknown dtype 'fp8'; known are fp32, fp16, bf16"):
        parse_dtypes("fp32,fp8", "--dtype")
    with pytest.raises(UsageError, match="known are forward, backward, both"):
        parse_directions("sideways", "--direction")


def test_cases_are_the_product_of_the_axes_without_repeats():
    sweep = Sweep((1, 2), (8,), dtype=("fp32", "bf16"), direction=(Direction.FORWARD, Direction.BACKWARD))
    found = cases([sweep, sweep], "cpu")
    assert len(found) == 8
    assert found[0].key == "forward-fp32-1x8"
    assert {case.device for case in found} == {"cpu"}


def test_thinning_keeps_both_ends():
    assert thinned(tuple(range(100)), 4) == (0, 33, 66, 99)
    assert thinned((1, 2), 6) == (1, 2)


def test_the_operation_is_an_axis_of_a_sweep(pick):
    sweep = Sweep((8,), (4, 2), op=parse_operations("pick,softmax", "--op"))
    names = ["pick-forward-fp32-8x4", "pick-forward-fp32-8x2", "forward-fp32-8x4", "forward-fp32-8x2"]
    assert [case.key for case in cases([sweep], "cpu")] == names
    assert cases([only(case.identity) for case in cases([sweep], "cpu")], "cpu") == cases([sweep], "cpu")


def test_an_operation_of_an_unknown_file_is_one_line():
    with pytest.raises(UsageError, match="operation layer_norm: softbench has none of this name; give its file with --op"):
        cases([Sweep((8,), (4,), op=("layer_norm",))], "cpu")


@pytest.mark.parametrize(("text", "message"), [("softmx", "did you mean 'softmax'"), ("pick,softmax", "give one operation")])
def test_one_operation_is_a_name_of_the_list(pick, text, message):
    with pytest.raises(UsageError, match=message):
        parse_operation(text, "--op")


def shaped(shapes, dims="-1", **axes):
    return cases([Sweep(shape=parse_shapes_or_presets(shapes, "--shape"), dim=parse_dims(dims, "--dim"), **axes)], "cpu")


def test_a_shape_is_named_with_its_dimension_counted_from_zero():
    found = shaped("8x16x1024x1024,64x32x1000", "-1,1,2")
    names = ["8x16x1024x1024", "8x16x1024x1024@dim1", "8x16x1024x1024@dim2", "64x32x1000", "64x32x1000@dim1"]
    assert [case.key for case in found] == [f"forward-fp32-{name}" for name in names]
    assert [(case.M, case.N) for case in found[1:4]] == [(8 * 1024 * 1024, 16), (8 * 16 * 1024, 1024), (64 * 32, 1000)]
    assert (found[1].sizes, found[1].dim) == ((8, 16, 1024, 1024), 1)
    assert shaped("64x32x1000", "-1") == shaped("064x32x1000", "2") == shaped("64x32x1000@dim2", "0")


def test_a_matrix_over_its_last_dimension_is_the_plain_case():
    assert shaped("4096x1024") == cases([Sweep((4096,), (1024,))], "cpu")
    assert [case.key for case in shaped("4096x1024", "-1,0")] == ["forward-fp32-4096x1024", "forward-fp32-4096x1024@dim0"]


def test_the_sweep_of_one_shape_makes_its_case_again():
    found = shaped("3x4x5,6x7", "0,1", op=("softmax", "log_softmax"))
    assert cases([only(case.identity) for case in found], "cpu") == found


def test_dim_is_for_shapes_without_one_of_their_own():
    assert [case.shape for case in shaped("8x4@dim0,3x3x4", "2")] == ["8x4@dim0", "3x3x4"]


@pytest.mark.parametrize(
    ("shapes", "dims", "message"),
    [
        ("8x0x4", "-1", "--shape: '8x0x4' is out of range; each size is at least 1"),
        ("8", "-1", "--shape: '8' is no shape of 2 to 8 sizes; for one row give --M 1 and --N"),
        ("x".join("1" * 9), "-1", "is no shape of 2 to 8 sizes"),
        ("8x16,8xax4", "-1", "--shape: '8xax4' is no shape; write sizes with x between them, as in 8x16x1024x1024"),
        ("", "-1", "--shape: '' is no shape"),
        ("8x\u0663", "-1", "is no shape"),
        ("8x-4", "-1", "is no shape"),
        ("9x" + "9" * 17, "-1", "is out of range"),
        ("8x16@dim2", "-1", "--shape: '8x16@dim2' has no dimension 2; they are 0 to 1, or -2 to -1"),
        ("8x16@dim", "-1", "is no shape"),
        ("8x16x4,8x16", "2", "dim 2: 8x16 has the dimensions 0 to 1, or -2 to -1"),
        ("8x16", "-3", "dim -3: 8x16 has the dimensions 0 to 1, or -2 to -1"),
        ("8x16", "1.5", "--dim: '1.5' is no dimension; write -1 for the last, 0 for the first, or several: -1,1"),
        ("8x16", "", "--dim: '' is no dimension"),
    ],
)
def test_an_invalid_shape_or_dimension_is_one_line(shapes, dims, message):
    with pytest.raises(UsageError) as raised:
        shaped(shapes, dims)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_operation_that_declares_no_dimension_refuses_shapes(monkeypatch):
    monkeypatch.setattr(registry, "_added", {})
    registry.add(replace(registry.operation("softmax"), name="rows", any_dim=False), "rows.py")
    with pytest.raises(UsageError, match=r"^--shape: rows takes \(M, N\) tensors only; give --M and --N, or"):
        shaped("8x16x4", op=("softmax", "rows"))
    assert [case.key for case in shaped("8x16", op=("rows",))] == ["rows-forward-fp32-8x16"]


def test_a_preset_names_shapes_of_the_operation():
    found = shaped("vocabularies,8x16,1x32000")
    assert len(found) == 19
    assert [case.key for case in found[:2]] == ["forward-fp32-1x32000", "forward-fp32-1x50257"]
    assert found[-1].key == "forward-fp32-8x16"
    assert {case.shape for case in shaped("attention", op=("log_softmax",))} == set(
        registry.operation("log_softmax").presets["attention"].shapes
    )


def test_an_unknown_preset_is_one_line(monkeypatch):
    with pytest.raises(UsageError, match=r"^--shape: unknown preset of softmax 'vocabulary'; did you mean 'vocabularies'\?"):
        shaped("vocabulary")
    monkeypatch.setattr(registry, "_added", {})
    registry.add(replace(registry.operation("softmax"), name="rows", presets={}), "rows.py")
    with pytest.raises(UsageError, match=r"^--shape attention: rows has no presets; give sizes, as in 4096x1024$"):
        shaped("attention", op=("rows",))


def test_shapes_go_with_parameters_that_leave_the_tensors():
    operations = {
        text: registry.operation(text).any_dim for text in ("softmax(scale=0.7)", "softmax(scale=row)", "softmax(out_dtype=fp32)")
    }
    assert list(operations.values()) == [True, False, False]
