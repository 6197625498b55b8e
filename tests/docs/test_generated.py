"""Generated parts of README and docs equal their source."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "tools" / "generate_docs.py")
docs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(docs)


@pytest.mark.parametrize("file", docs.files(), ids=lambda file: str(file.relative_to(ROOT)))
def test_generated_parts_equal_their_source(file):
    text = file.read_text()
    assert docs.generated(text) == text, "run: python tools/generate_docs.py"


def test_every_generator_is_used_once():
    used = [match["name"] for file in docs.files() for match in docs.MARK.finditer(file.read_text())]
    assert sorted(used) == sorted(docs.PARTS)


def test_a_stale_part_is_renewed():
    assert "| `backend` |" in docs.generated("<!-- generated: columns -->\nold\n<!-- end -->")
