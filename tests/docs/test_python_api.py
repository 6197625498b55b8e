"""docs/python-api.md: its examples run, and its tables name what there is."""

import doctest
import inspect
import re
import sys
from pathlib import Path

import pytest

import softbench
from softbench.api.assertions import Softbench
from softbench.core import errors

PAGE = Path(__file__).parents[2] / "docs" / "python-api.md"
TEXT = PAGE.read_text()


@pytest.mark.slow
def test_the_pages_examples_run(tmp_path, monkeypatch, forked):
    (code,) = re.findall(r"here `my_kernels.py`:\n\n```python\n(.*?)\n```", TEXT, re.DOTALL)
    (tmp_path / "my_kernels.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    example = doctest.DocTestParser().get_doctest(TEXT, {}, PAGE.name, str(PAGE), 0)
    found = []
    doctest.DocTestRunner().run(example, out=found.append)
    sys.modules.pop("my_kernels", None)
    assert found == []
    assert forked() == []


def test_the_tables_name_members_errors_and_assertions():
    named = set(re.findall(r"`(\w+)(?:\([^`]*)?`", "".join(line for line in TEXT.splitlines(keepends=True) if line.startswith("|"))))
    members = {name for name in vars(softbench.Result) if not name.startswith("_")} | {"rows", "csv", "notes"}
    assert members - {"of_run", "load"} <= named
    public = {name for name, _ in inspect.getmembers(errors, inspect.isclass) if name.endswith("Error")}
    assert public == {name for name in softbench.__all__ if name.endswith("Error")}
    assert public - {"SoftbenchError"} <= named
    assert {name for name in vars(Softbench) if name.startswith("assert_")} <= named


def test_every_public_name_is_there_and_documented():
    for name in softbench.__all__:
        assert getattr(softbench, name, None) is not None
        assert name == "__version__" or getattr(softbench, name).__doc__
    assert set(softbench.__all__) <= set(dir(softbench))
