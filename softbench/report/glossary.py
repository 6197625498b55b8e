"""What softbench's terms mean: `glossary.toml`, and the labels as `softbench.results.labels` explains them.

docs/glossary.md is generated from it, and the tooltips of pages come from it.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources

from softbench.results.columns import LABELS


@cache
def sections() -> dict[str, dict[str, str]]:
    """The meaning of each term, by the heading that it stands under. A meaning may hold code in backticks."""
    text = resources.files(__package__).joinpath("glossary.toml").read_text(encoding="utf-8")
    return tomllib.loads(text) | {"Labels": LABELS}


def meanings() -> dict[str, str]:
    """The meaning of each term as plain text, without backticks."""
    return {term: text.replace("`", "") for terms in sections().values() for term, text in terms.items()}
