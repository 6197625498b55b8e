"""Parameters of operations from `--set` and from TOML, and the cases that they make."""

import itertools
from dataclasses import replace

import pytest
from sampled import sampled

from softbench.core.errors import ConfigError, UsageError
from softbench.ops import registry
from softbench.ops.parameters import Parameter
from softbench.plan.config_file import load as load_config
from softbench.plan.grammar import parameters_from_toml, parse_operation, parse_operations, parse_parameters
from softbench.plan.settings import Settings, from_flags as layer_of
from softbench.plan.sweep import Sweep, cases


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
        ({"set": ["scale=3"]}, ["softmax(scale=3)"]),
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


def test_a_configuration_sets_parameters_and_flags_replace_them(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text("[[sweep]]\nM = 8\nN = 4\nset = {scale = [0.5, 2.0]}\n")
    layer = load_config(str(file))
    assert [case.op for case in cases(Settings.from_sources(layer, {}).sweep, "cpu")] == ["softmax(scale=0.5)", "softmax(scale=2)"]
    flags = layer_of({"set": ["scale=row"]})
    assert [case.op for case in cases(Settings.from_sources(layer, flags).sweep, "cpu")] == ["softmax(scale=row)"]


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
        lambda command, given: (command == "run" and given[-1] in ("scale=0", "scale=2")) or given == ("--set", "k=1"),
    ),
)
def test_an_unknown_parameter_is_one_line(main, command, given):
    dtype = () if "--dtype" in given else ("--dtype", "fp32")
    code, _, err = main(command, *SHAPES[command], "--device", "cpu", *dtype, *given)
    assert (code, err) == (2, f"softbench: {BAD[given]}\n")
