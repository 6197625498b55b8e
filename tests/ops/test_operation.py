"""An operation with an integer input, an output of one value per row, and a tensor of another dtype."""

import json
from dataclasses import replace

import pytest

from softbench.core.case import Case, Direction, op_text, parse_op
from softbench.ops import registry
from softbench.ops.declaration import from_json, to_json, validate
from softbench.ops.operation import Operation, Pass, Preset, Share, TensorSpec
from softbench.ops.parameters import Parameter

LOSS = Operation(
    name="loss",
    tensors={
        "x": TensorSpec(("M", "N")),
        "target": TensorSpec(("M",), "int64"),
        "loss": TensorSpec(("M",), "fp32"),
        "dx": TensorSpec(("M", "N")),
    },
    passes={
        Direction.FORWARD: Pass(inputs=("x", "target"), outputs=("loss",), reads=("x", "target")),
        Direction.BOTH: Pass(inputs=("x", "target"), outputs=("loss", "dx"), reads=("x", "target")),
    },
)


def test_each_tensor_has_its_own_shape_and_bytes():
    case = Case(8, 100, "bf16", Direction.FORWARD)
    assert LOSS.tensors["target"].shape(case) == (8,)
    assert LOSS.tensors["target"].bytes(case) == 8 * 8
    assert LOSS.bytes_moved(case) == 8 * 100 * 2 + 8 * 8 + 8 * 4
    assert LOSS.largest_bytes(case) == 8 * 100 * 2


def test_a_pass_names_what_its_call_returns():
    assert LOSS.outputs(Case(8, 100, "bf16", Direction.FORWARD)).keys() == {"loss"}
    assert list(LOSS.outputs(Case(8, 100, "bf16", Direction.BOTH))) == ["loss", "dx"]
    assert [spec.dtype for spec in LOSS.inputs(Case(8, 100, "bf16", Direction.BOTH))] == ["case", "int64"]


MASKED = Operation(
    name="masked",
    tensors={
        "x": TensorSpec(("M", "N")),
        "table": TensorSpec(("K", "N"), "kept"),
        "bias": TensorSpec(("N",), "fp32", ("bias", True)),
        "y": TensorSpec(("M",), "fp32"),
    },
    passes={"forward": Pass(("x", "table", "bias"), ("y",), ("x", "table", "bias"), (Share("x", 0.5, ("causal", True)),))},
    parameters=(
        Parameter("K", "whole", 4, "rows of the table", least=1),
        Parameter("kept", "choice", "case", "dtype of the table", choices=("case", "fp32")),
        Parameter("bias", "bool", False),
        Parameter("causal", "bool", False),
        Parameter("cap", "number", 0.5, choices=("none",), least=0, most=9, dtypes=("bf16",)),
    ),
)
CASE = Case(8, 100, "bf16", Direction.FORWARD)
OTHER = 8 * 4
"""Bytes of y."""


@pytest.mark.parametrize(
    ("given", "inputs", "read"),
    [
        ({}, [(8, 100, "bf16"), (4, 100, "bf16")], 8 * 200 + 4 * 200),
        ({"K": 3, "kept": "fp32"}, [(8, 100, "bf16"), (3, 100, "fp32")], 8 * 200 + 3 * 400),
        ({"bias": True}, [(8, 100, "bf16"), (4, 100, "bf16"), (100, "fp32")], 8 * 200 + 4 * 200 + 400),
        ({"causal": True}, [(8, 100, "bf16"), (4, 100, "bf16")], 8 * 100 + 4 * 200),
        ({"causal": False, "cap": "none"}, [(8, 100, "bf16"), (4, 100, "bf16")], 8 * 200 + 4 * 200),
    ],
)
def test_tensors_and_bytes_follow_from_the_parameters(given, inputs, read):
    found = MASKED.at(given)
    assert [(*spec.shape(CASE), spec.dtype_of(CASE)) for spec in found.inputs(CASE)] == inputs
    assert found.bytes_moved(CASE) == found.distinct_bytes(CASE) == read + OTHER
    assert list(found.outputs(CASE)) == ["y"]


def test_the_text_has_the_parameters_in_declared_order():
    assert MASKED.at({}).text == MASKED.at({"K": 4, "cap": 0.5}).text == "masked"
    text = MASKED.at({"cap": 2.0, "causal": True, "K": 16}).text
    assert text == "masked(K=16,causal=true,cap=2)"
    name, given = parse_op(text)
    assert (name, MASKED.at(given).text, MASKED.at(given).parameter_values["cap"]) == ("masked", text, 2.0)
    case = replace(CASE, op=text)
    assert (case.operation, case.parameters) == ("masked", {"K": 16, "causal": True, "cap": 2})
    assert case.key == "masked(K=16,causal=true,cap=2)-forward-bf16-8x100"
    assert parse_op(op_text("masked", {"cap": 1e-5, "K": 3})) == ("masked", {"cap": 1e-5, "K": 3})
    for wrong in ("masked(", "masked()", "masked(K)", "masked(K=1", "masked(K=1)x", "a b", "masked(K=1,)", "m(K=" + "1" * 300 + ")"):
        with pytest.raises(ValueError, match="is no operation"):
            parse_op(wrong)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"k": 1}, "k=1: unknown parameter of masked 'k'; did you mean 'K'? known are K, kept, bias, causal, cap"),
        ({"K": 0}, "K=0: must be a whole number from 1"),
        ({"K": 2.5}, "K=2.5: must be a whole number from 1"),
        ({"K": True}, "K=true: must be a whole number from 1"),
        ({"kept": "fp16"}, "kept=fp16: must be case or fp32"),
        ({"bias": 1}, "bias=1: must be true or false"),
        ({"cap": 9.5}, "cap=9.5: must be a number from 0 to 9 or none"),
        ({"cap": "some"}, "cap=some: must be a number from 0 to 9 or none"),
        ({"cap": float("nan")}, "cap=nan: must be a number from 0 to 9 or none"),
    ],
)
def test_a_value_that_a_parameter_lacks_is_one_line(given, message):
    with pytest.raises(ValueError) as error:
        MASKED.at(given)
    assert str(error.value) == message


def test_a_whole_number_is_negative_where_declared():
    signed = Parameter("skip", "whole", -100, least=-(2**31), most=2**31)
    assert [signed.read(value) for value in (-100, 0, 7.0)] == [-100, 0, 7]
    assert parse_op("masked(skip=-7)")[1] == {"skip": -7}
    with pytest.raises(ValueError, match=r"from -2\.14748e"):
        signed.read(-(2**40))
    with pytest.raises(ValueError, match="n=-1: must be a whole number"):
        Parameter("n", "whole", 4).read(-1)


def test_parameters_survive_json():
    validate(MASKED)
    assert from_json(json.loads(json.dumps(to_json(MASKED), allow_nan=False))) == MASKED
    declared = registry.declared("softmax")
    assert from_json(json.loads(json.dumps(to_json(declared)))) == declared


ONE = MASKED.parameters[0]
INVALID = {
    "an axis that is no whole number": ({"tensors": {**MASKED.tensors, "table": TensorSpec(("cap", "N"))}}, "tensor table has axes"),
    "an axis that may be negative": (
        {
            "parameters": (Parameter("back", "whole", -1, least=-8),),
            "tensors": {"x": TensorSpec(("M", "N")), "y": TensorSpec(("M", "back"))},
        },
        "tensor y has axes",
    ),
    "a dtype without choices": ({"tensors": {**MASKED.tensors, "table": TensorSpec(("N",), "K")}}, "tensor table has dtype K"),
    "a condition on no parameter": ({"tensors": {**MASKED.tensors, "bias": TensorSpec(("N",), when=("b", True))}}, "when names b"),
    "a condition that never holds": ({"tensors": {**MASKED.tensors, "bias": TensorSpec(("N",), when=("bias", 2))}}, "bias=2: must be"),
    "an output that may not exist": ({"tensors": {**MASKED.tensors, "y": TensorSpec(("M",), "fp32", ("bias", True))}}, "every output"),
    "a share of nothing": ({"passes": {"forward": Pass(("x",), ("y",), ("x",), (Share("table", 0.5),))}}, "the share of table"),
    "a share above one": ({"passes": {"forward": Pass(("x",), ("y",), ("x",), (Share("x", 1.5),))}}, "the share of x is 1.5"),
    "a parameter twice": ({"parameters": (*MASKED.parameters, ONE)}, "its parameters need a name each"),
    "a parameter named as an axis": ({"parameters": (*MASKED.parameters, replace(ONE, name="N"))}, "its parameters need a name each"),
    "a name that is no word": ({"parameters": (*MASKED.parameters, replace(ONE, name="a b"))}, "parameter a b: the name"),
    "an unknown kind": ({"parameters": (*MASKED.parameters, Parameter("a", "text", "b"))}, "parameter a: unknown kind 'text'"),
    "a default out of range": ({"parameters": (*MASKED.parameters, Parameter("a", "number", -1.0, least=0))}, "a=-1: must be"),
    "a default of another kind": ({"parameters": (*MASKED.parameters, Parameter("a", "bool", 1))}, "a=1: must be true or false"),
    "a choice that is a number": ({"parameters": (*MASKED.parameters, Parameter("a", "choice", "b", choices=("b", "1")))}, "no choice"),
    "a preset without shapes": ({"presets": {"a": Preset(())}}, "preset a: shapes must be a tuple of texts"),
    "a preset of one text": ({"presets": {"a": Preset("8x16")}}, "preset a: shapes must be a tuple of texts"),
    "a preset named as a shape": ({"presets": {"8x16": Preset(("8x16",))}}, "preset '8x16' needs a name"),
    "a preset with a wrong shape": ({"presets": {"a": Preset(("8x",))}}, "preset a: '8x' is no shape"),
    "a preset of N-D shapes": ({"presets": {"a": Preset(("8x16x4",))}}, "preset a: 8x16x4 is not (M, N)"),
    "no parameter": ({"parameters": (("cap", "number", 1.0),)}, "parameters must be a tuple of at most 16"),
    "seventeen parameters": ({"parameters": tuple(replace(ONE, name=f"p{i}") for i in range(17))}, "must be a tuple of at most 16"),
    "no default": ({"parameters": (*MASKED.parameters, Parameter("a", "number", None))}, "parameter a: the default must be a number"),
    "a limit of words": ({"parameters": (*MASKED.parameters, replace(ONE, name="a", least="b"))}, "parameter a: least and most must be"),
    "a limit beyond floats": ({"parameters": (*MASKED.parameters, replace(ONE, name="a", most=10**400))}, "a: least and most must be"),
    "a choice of one": ({"parameters": (*MASKED.parameters, Parameter("a", "choice", "b", choices=("b",)))}, "two choices"),
}


@pytest.mark.parametrize("what", INVALID)
def test_an_invalid_declaration_is_one_line(what):
    changed, message = INVALID[what]
    with pytest.raises(ValueError) as error:
        validate(replace(MASKED, **changed))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
