"""The texts of `--plugin`: a name, a file or module, and a function."""

from pathlib import Path

import pytest

from softbench.plugins.source import absolute, beside, split_alias, split_function


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("k.py", ("", "/base/k.py")),
        ("new=k.py", ("new", "/base/k.py")),
        ("new=k.py:fast", ("new", "/base/k.py:fast")),
        ("package.module:fast", ("", "package.module:fast")),
        ("new=package.module:fast", ("new", "package.module:fast")),
        ("/elsewhere/k.py", ("", "/elsewhere/k.py")),
    ],
)
def test_files_are_relative_to_a_folder_and_modules_are_not(given, expected):
    alias, path = split_alias(Path(given), Path("/base"))
    assert (alias, str(path)) == expected
    assert beside(Path("/base"), given) == Path(f"{expected[0]}={expected[1]}" if expected[0] else expected[1])


def test_an_absolute_plugin_keeps_name_and_function():
    assert absolute(Path("new=k.py:fast")) == Path(f"new={Path.cwd()}/k.py:fast")
    assert absolute(Path("new=package.module:fast")) == Path("new=package.module:fast")


@pytest.mark.parametrize(("text", "expected"), [("k.py", ("k.py", "")), ("k.py:a.b", ("k.py", "a.b")), ("k.py:1", ("k.py:1", ""))])
def test_a_function_follows_the_last_colon(text, expected):
    place, function = split_function(Path(text))
    assert (str(place), function) == expected
