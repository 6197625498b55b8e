"""Generated parts of README and docs equal their source."""

import re
from pathlib import Path

import generate_docs as docs
import pytest

from softbench.gate.samples import CellKey
from softbench.gate.verdicts import GateReport, Rules, State, Verdict

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("file", docs.files(), ids=lambda file: str(file.relative_to(ROOT)))
def test_generated_parts_equal_their_source(file):
    text = file.read_text()
    assert docs.current(file, text) == text, "run: python tools/generate_docs.py"


def test_every_generator_is_used_once():
    used = [match["name"] for file in docs.files() for match in docs.MARK.finditer(file.read_text())]
    assert sorted(used) == sorted(docs.PARTS)


def test_the_keys_of_the_gates_json_are_documented():
    """A key without a docstring is an error, so a new one cannot be forgotten."""
    keys = re.findall(r"^\| `(\S+)` \| \S", docs.gate_report(), re.MULTILINE)
    verdict = Verdict(CellKey("ours", "forward", "fp32", 8, 16), State.SAME, "")
    report = GateReport("", (verdict,), Rules(margin=0.05)).document()
    expected = [*report, *(f"rules.{key}" for key in report["rules"]), *(f"verdicts[].{key}" for key in report["verdicts"][0])]
    assert keys == expected
    assert all(f"| `{key}` |" in (ROOT / "docs" / "results-format.md").read_text() for key in expected)


def test_a_stale_part_is_renewed():
    assert "| `backend` |" in docs.generated("<!-- generated: columns -->\nold\n<!-- end -->")
