"""`softbench list`: the same selection as table and as JSON."""

import json

import pytest

from softbench import __version__


def test_list_has_the_table_as_json(main, tmp_path):
    (tmp_path / "torn.py").write_text("def f(:")
    given = ("--device", "cpu", "--plugin", "torn.py")
    code, out, _ = main("list", *given, "--json")
    document = json.loads(out)
    backends = {one["name"]: one for one in document["backends"]}
    assert (code, document["softbench"]) == (0, __version__)
    assert backends["torch"]["state"] == "available" and "softmax(scale,out_dtype)" in backends["torch"]["operations"]
    assert backends["torn"]["state"] == "broken" and "SyntaxError" in backends["torn"]["reason"]
    assert "torch.nn.functional.softmax" in backends["torch"]["summary"]
    assert not any(one["extra"] for one in document["backends"])
    table = main("list", *given, "--json", "all.json")[1]
    assert json.loads((tmp_path / "all.json").read_text()) == document
    assert [line.split()[0] for line in table.splitlines()[:-1]] == list(backends)
    (naive,) = json.loads(main("list", "naive", "--device", "cpu", "--json", "-")[1])["backends"]
    assert naive == backends["naive"]
    several = json.loads(main("list", "triton-*,copy,!triton-[!r]*", "--device", "cpu", "--json", "-")[1])["backends"]
    assert [one["name"] for one in several] == ["triton-row", "copy"]


def test_operations_have_passes_parameters_and_backends(main):
    found = {one["name"]: one for one in json.loads(main("list", "--ops", "--device", "cpu", "--json")[1])["operations"]}
    softmax = found["softmax"]
    assert softmax["passes"]["backward"] == {"inputs": ["dy", "y"], "outputs": ["dx"]}
    assert softmax["parameters"][0]["name"] == "scale"
    assert {"torch", "naive"} <= set(softmax["backends"]) and "copy" not in softmax["backends"]


@pytest.mark.parametrize("pattern", ["torch", "compile:*"])
def test_a_pattern_behind_json_is_no_file(main, tmp_path, pattern):
    code, _, err = main("list", "--json", pattern)
    assert (code, list(tmp_path.iterdir())) == (2, [])
    assert f"a pattern stands in front: softbench list {pattern} --json" in err
