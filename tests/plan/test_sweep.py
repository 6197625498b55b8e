"""The grammar of a sweep's axes and of parameters, the cases that they make, and shards of them."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st
from sampled import sampled

from softbench.core.case import Case, Direction
from softbench.core.errors import ConfigError, UsageError
from softbench.ops import registry
from softbench.ops.parameters import Parameter
from softbench.ops.registry import operation
from softbench.plan.config_file import load as load_config
from softbench.plan.deal import CASE_BYTES, Shard, deal, of_shard, parse_shard
from softbench.plan.grammar import (
    parameters_from_toml,
    parse_axis,
    parse_dims,
    parse_directions,
    parse_dtypes,
    parse_operation,
    parse_operations,
    parse_parameters,
    parse_shapes_or_presets,
)
from softbench.plan.plan import require_few_cells
from softbench.plan.settings import Settings, from_flags as layer_of
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
        (5000 * "9", "... is out of range"),
        ("8:4:2", "stops before it starts"),
        ("1:1e9:1", "'1e9' is not a whole number"),
        ("1:1000000000:1", "more than 1000000 values"),
        ("", "a number is missing; lists and ranges look like 256,1024"),
        ("a", "not a whole number"),
        ("1:2", "a range is start:stop:step"),
        ("1:8:*1", "factor must be at least 2"),
        ("1:8:0", "out of range"),
        ("\u0663", "not a whole number"),
        ("9" * 30, "is out of range; values are from 1 to"),
    ],
)
def test_an_invalid_size_is_refused_with_flag_and_reason(text, part):
    with pytest.raises(UsageError, match="--N") as raised:
        parse_axis(text, "--N")
    assert part in str(raised.value)


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
    with pytest.raises(UsageError, match="operation standardize: softbench has none of this name; give its file with --op"):
        cases([Sweep((8,), (4,), op=("standardize",))], "cpu")


@pytest.mark.parametrize(
    ("text", "message"), [("softmx", "did you mean 'softmax'"), ("pick,softmax", "give one operation"), (300 * "x", "unknown operation")]
)
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
        ("8x16x4,8x16", "2", "--dim 2: 8x16 has the dimensions 0 to 1, or -2 to -1"),
        ("8x16", "-3", "--dim -3: 8x16 has the dimensions 0 to 1, or -2 to -1"),
        ("8x16", "1.5", "--dim: '1.5' is no dimension; write -1 for the last, 0 for the first, or several: -1,1"),
        ("8x16", "", "--dim: '' is no dimension"),
    ],
)
def test_an_invalid_shape_or_dimension_is_one_line(shapes, dims, message):
    with pytest.raises(UsageError) as raised:
        shaped(shapes, dims)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_operation_that_declares_no_dimension_refuses_shapes():
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


def test_an_unknown_preset_is_one_line():
    with pytest.raises(UsageError, match=r"^--shape: unknown preset of softmax 'vocabulary'; did you mean 'vocabularies'\?"):
        shaped("vocabulary")
    registry.add(replace(registry.operation("softmax"), name="rows", presets={}), "rows.py")
    with pytest.raises(UsageError, match=r"^--shape attention: rows has no presets; give sizes, as in 4096x1024$"):
        shaped("attention", op=("rows",))


def test_shapes_go_with_parameters_that_leave_the_tensors():
    operations = {
        text: registry.operation(text).any_dim for text in ("softmax(scale=0.7)", "softmax(scale=row)", "softmax(out_dtype=fp32)")
    }
    assert list(operations.values()) == [True, False, False]


def test_each_flag_makes_parameters_of_its_own():
    assert parse_parameters(["scale=.7, out_dtype=fp32", "scale=row"], "--set") == (
        (("scale", 0.7), ("out_dtype", "fp32")),
        (("scale", "row"),),
    )
    assert parse_parameters(["K=64:256:*2,causal=true"], "--set") == tuple((("K", K), ("causal", True)) for K in (64, 128, 256))


def test_a_table_sweeps_over_its_lists():
    found = parameters_from_toml({"scale": [0.5, 2], "out_dtype": "fp32"}, "set")
    assert found == ((("scale", 0.5), ("out_dtype", "fp32")), (("scale", 2), ("out_dtype", "fp32")))
    assert parameters_from_toml([{"scale": "row"}, {"K": "8:16:8"}], "set") == ((("scale", "row"),), (("K", 8),), (("K", 16),))


@pytest.mark.parametrize("text", ["scale", "scale=", "=1", "", "scale=1,,", "scale=1,scale=2", "K=8:4:1"])
def test_an_invalid_flag_is_one_line(text):
    with pytest.raises(UsageError, match=r"^--set "):
        parse_parameters([text], "--set")


@pytest.mark.parametrize("value", [{}, [], 1, {"scale": []}, {"scale": {"a": 1}}, [{"scale": 1}, 2]])
def test_an_invalid_table_is_one_line(value):
    if value == {}:
        assert parameters_from_toml(value, "set") == ((),)
        return
    with pytest.raises(ConfigError, match=r"^set"):
        parameters_from_toml(value, "set")


def test_a_sweep_has_cases_of_each_parameter_once():
    sweep = Sweep((8,), (4,), dtype=("fp32", "bf16"), set=((("scale", 1.0),), (("out_dtype", "fp32"), ("scale", 0.5)), (("scale", "row"),)))
    assert [(case.op, case.dtype) for case in cases([sweep, sweep], "cpu")] == [
        ("softmax", "fp32"),
        ("softmax", "bf16"),
        ("softmax(scale=0.5,out_dtype=fp32)", "bf16"),
        ("softmax(scale=row)", "fp32"),
        ("softmax(scale=row)", "bf16"),
    ]


def test_an_operation_of_a_flag_replaces_a_sweeps_parameters(tmp_path):
    (tmp_path / "a.toml").write_text("[[sweep]]\nM = 4\nN = 8\nset = {scale = [0.5, 2]}")
    layer = load_config(str(tmp_path / "a.toml"))
    for flags, ops in (
        ({"op": ["log_softmax"]}, ["log_softmax"]),
        ({"op": ["softmax"]}, ["softmax"]),
        ({"set": ["scale=row"]}, ["softmax(scale=row)"]),
        ({"op": ["softmax"], "set": ["scale=3"]}, ["softmax(scale=3)"]),
        ({}, ["softmax(scale=0.5)", "softmax(scale=2)"]),
    ):
        assert [case.op for case in cases(Settings.from_sources(layer, layer_of(flags)).sweep, "cpu")] == ops


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("set = {scale = nan}", "set scale=nan: must be a number from 0.0001 to 10000 or row"),
        (f"set = {{scale = 1{'0' * 400}}}", "set scale=1000"),
        ('op = "log_softmax"\nset = {scale = 1}', "set scale=1: log_softmax has no parameters"),
        ('op = "softmax(scale=0)"', "op scale=0: must be a number from 0.0001 to 10000 or row"),
        ('op = "softmax(scale"', "op: 'softmax(scale' is no operation; write softmax, or softmax(scale=0.7)"),
    ],
)
def test_an_invalid_value_names_the_file_and_its_key(tmp_path, line, message):
    (tmp_path / "a.toml").write_text(f"[[sweep]]\nM = 4\nN = 8\n{line}")
    with pytest.raises(ConfigError) as error:
        load_config(str(tmp_path / "a.toml"))
    assert str(error.value).startswith(f"{tmp_path / 'a.toml'}: [[sweep]] 1 {message}")


def test_a_text_beyond_its_limit_is_one_line(monkeypatch):
    many = tuple(Parameter(f"a_long_name_of_a_parameter_{i:02}", "number", 1.0) for i in range(16))
    declared = replace(registry.declared("log_softmax"), name="many", parameters=many)
    monkeypatch.setattr(registry, "_added", {"many": (declared, "many.py")})
    with pytest.raises(UsageError, match=r"^--set: many with these parameters has 517 characters; a case's operation has at most 256$"):
        cases([Sweep((8,), (4,), op=("many",), set=(tuple((one.name, 2) for one in many),))], "cpu")


def test_a_parameter_comes_once_in_a_text():
    with pytest.raises(UsageError, match=r"^--op: 'softmax\(scale=1,scale=2\)' has a parameter twice$"):
        parse_operations("softmax(scale=1,scale=2)", "--op")


def test_operations_may_name_their_parameters():
    assert parse_operations("softmax(out_dtype=fp32,scale=2.0),log_softmax", "--op") == ("softmax(scale=2,out_dtype=fp32)", "log_softmax")
    assert parse_operation("softmax", "--op", parse_parameters(["scale=2"], "--set")) == "softmax(scale=2)"
    with pytest.raises(UsageError, match="give it once"):
        parse_operation("softmax", "--op", parse_parameters(["scale=2", "scale=3"], "--set"))


def test_a_configuration_names_a_file_beside_it(tmp_path):
    (tmp_path / "sweep.toml").write_text('[[sweep]]\nM = 8\nN = 4\nop = "rms.py"\n')
    asked = []

    def names(words, at):
        asked.extend([at, *words])
        return ["softmax"]

    assert load_config(str(tmp_path / "sweep.toml"), names)["sweep"][0].op == ("softmax",)
    assert asked == [f"{tmp_path / 'sweep.toml'}: [[sweep]] 1 op", str(tmp_path / "rms.py")]


BAD = {
    ("--set", "k=1"): "--set k=1: unknown parameter of softmax 'k'; known are scale, out_dtype",
    ("--set", "scale=0"): "--set scale=0: must be a number from 0.0001 to 10000 or row",
    ("--set", "scale=nan"): "--set scale=nan: must be a number from 0.0001 to 10000 or row",
    ("--set", "scale=rows"): "--set scale=rows: must be a number from 0.0001 to 10000 or row",
    ("--set", "out_dtype=fp32"): "--dtype fp32: softmax(out_dtype=fp32) is for fp16, bf16 only",
    ("--set", "out_dtype=fp16", "--dtype", "bf16"): "--set out_dtype=fp16: must be case or fp32",
    ("--op", "log_softmax", "--set", "scale=2"): "--set scale=2: log_softmax has no parameters",
    ("--set", "scale"): "--set scale: write NAME=VALUE, as in scale=0.7,out_dtype=fp32",
}


SHAPES = {"run": ("--M", "8", "--N", "8", "--dry-run"), "inspect": ("torch",), "check": ("--backends", "torch")}


@pytest.mark.parametrize(
    ("command", "given"),
    sampled(
        itertools.product(SHAPES, BAD),
        lambda command, given: command == "run" and given[-1] in ("scale=2", "k=1"),
    ),
)
def test_an_unknown_parameter_is_one_line(main, command, given):
    dtype = () if "--dtype" in given else ("--dtype", "fp32")
    code, _, err = main(command, *SHAPES[command], "--device", "cpu", *dtype, *given)
    assert (code, err) == (2, f"softbench: {BAD[given]}\n")


DEALT = st.lists(
    st.builds(Case, st.integers(1, 10**5), st.integers(1, 10**5), st.sampled_from(["fp32", "bf16"]), st.sampled_from(Direction)).filter(
        lambda case: case.direction is not Direction.FUSED
    ),
    unique=True,
    max_size=40,
)


def cost(case):
    return CASE_BYTES + operation(case.op).bytes_moved(case)


@given(DEALT, st.integers(1, 12))
def test_every_case_is_dealt_once_in_the_sweeps_order(cases, parts):
    found = deal(cases, parts)
    assert len(found) == parts
    assert sorted(map(cases.index, (case for part in found for case in part))) == list(range(len(cases)))
    assert all([*part] == sorted(part, key=cases.index) for part in found)
    assert deal(cases, parts) == found


@given(DEALT, st.integers(1, 12))
def test_parts_differ_by_at_most_the_largest_case(cases, parts):
    work = [sum(map(cost, part)) for part in deal(cases, parts)]
    assert max(work) - min(work) <= max(map(cost, cases), default=0)


def test_a_run_of_more_cells_than_a_file_may_have_is_refused_before_it_starts(monkeypatch):
    monkeypatch.setattr("softbench.plan.sweep.MAX_CELLS", 1000)
    many = Sweep(M=tuple(range(1, 31)), N=tuple(range(1, 21)))
    assert len(cases([many], "cpu")) == 600
    with pytest.raises(UsageError, match="the sweep has more than 1000 cases, and a run has at most so many cells; split it"):
        cases([many, many], "cpu")
    require_few_cells(500_000, 2, None)
    with pytest.raises(UsageError, match=r"500001 cases x 2 backends = 1000002 cells, and .* at most 1000000: .* --shard 1/2$"):
        require_few_cells(500_001, 2, None)
    with pytest.raises(UsageError, match=r"1 backend x 8 cards = 2400000 cells, .* --shard 1/8$"):
        require_few_cells(300_000, 1, Shard(1, 3), 8)


def test_a_shard_without_cases_is_refused():
    cases = [Case(8, N, "fp32", Direction.FORWARD) for N in (1, 2)]
    assert [of_shard(cases, Shard(number, 2)) for number in (1, 2)] == [(cases[1],), (cases[0],)]
    with pytest.raises(UsageError, match="--shard 3/3: the sweep has 2 cases, so this shard has none; take at most 2"):
        of_shard(cases, Shard(3, 3))


@pytest.mark.parametrize("text", ["", "2", "0/2", "3/2", "1/2/3", "a/b", "-1/2", "1/100000", "\uff11/\uff12"])
def test_a_wrong_shard_is_refused(text):
    with pytest.raises(UsageError, match="as in 2/8"):
        parse_shard(text)


def test_a_shard_is_read():
    assert parse_shard(" 2/8 ") == (2, 8)
    assert str(Shard(2, 8)) == "2/8"
