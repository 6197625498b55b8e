"""The pytest plugin in a session of its own: loaded by its entry point, light, with a summary, also under pytest-xdist."""

import subprocess
import sys
from importlib import metadata

import pytest

pytest_plugins = ["pytester"]

SUITE = """
def test_quick(request):
    request.node.user_properties.append(("softbench", "f against g: same"))

def test_with_the_fixture(softbench):
    softbench._note("a line")
    assert softbench.folder.name == "softbench"

def test_plain():
    pass
"""


@pytest.fixture
def suite(pytester):
    pytester.makepyfile(test_suite=SUITE)
    return pytester


def test_the_entry_point_names_the_plugin():
    (point,) = [point for point in metadata.entry_points(group="pytest11") if point.name == "softbench"]
    assert point.value == "softbench.api.pytest_plugin"


def test_a_summary_has_a_line_per_assertion(suite):
    result = suite.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        ["*= softbench =*", "test_suite.py::test_quick: f against g: same", "test_suite.py::test_with_the_fixture: a line"]
    )


def test_without_assertions_there_is_no_summary(suite):
    result = suite.runpytest_inprocess("-p", "no:cacheprovider", "-k", "plain")
    assert "= softbench =" not in result.stdout.str()


def test_the_option_skips_tests_with_the_fixture(suite):
    result = suite.runpytest_inprocess("-p", "no:cacheprovider", "--softbench-skip", "-rs")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["*--softbench-skip*"])


def test_the_summary_passes_through_xdist(suite):
    result = suite.runpytest_inprocess("-p", "no:cacheprovider", "-n", "1")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["test_suite.py::test_quick: f against g: same"])


def test_importing_the_plugin_is_light():
    code = (
        "import sys; before = set(sys.modules); import pytest; loaded = set(sys.modules); import softbench.api.pytest_plugin;"
        "new = set(sys.modules) - loaded; print(sorted(new & {'torch', 'numpy', 'pandas', 'rich', 'typer', 'softbench.run.run'}))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
