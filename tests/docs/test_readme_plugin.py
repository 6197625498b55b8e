"""README's plugin: it is the file that the tests load, and it is right on empty tensors and far from zero too."""

import re
from pathlib import Path

import pytest

from softbench.core.case import Direction
from softbench.core.outcome import Grade
from softbench.plugins.load import load
from softbench.plugins.source import PluginSource
from softbench.worker.checking.check_case import CheckCaseRunner

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests/plugins/correct/logsumexp.py"


def test_the_readme_shows_the_tested_plugin():
    assert FILE.read_text().strip() in re.findall(r"```python\n(.*?)\n```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD])
def test_the_readme_plugin_passes_empty_and_shifted_cases(direction):
    (backend,) = load(PluginSource("file", "logsumexp", str(FILE), "logsumexp.py"))
    runner = CheckCaseRunner(backend, "cpu")
    names = ["shape 0x16", "shape 16x0", *(["shifted", "a row of -inf", "one +inf"] if direction is Direction.FORWARD else ["dy = 1"])]
    for name in names:
        found = runner.run(name, direction, "fp32", 0)
        assert found.grade is Grade.PASS, (name, found)
