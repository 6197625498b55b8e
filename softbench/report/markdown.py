"""Markdown tables, and text that is safe in them."""

from __future__ import annotations

import html
from collections.abc import Container, Sequence

from softbench.core.text import one_line

SIGNS = ("\\", "|", "`", "*", "_", "[", "]", "~")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Container[int] = ()) -> str:
    """A table of untrusted texts. The columns with these indexes are right-aligned."""
    rule = ["---:" if i in numbers else "---" for i in range(len(head))]
    lines = [tuple(map(safe, head)), rule, *(tuple(map(safe, row)) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def safe(text: str) -> str:
    """Escape untrusted text: no markup, no new columns, no links, no mentions."""
    escaped = html.escape(one_line(text, 1000), quote=False)
    for sign in SIGNS:
        escaped = escaped.replace(sign, f"&#{ord(sign)};")
    return escaped.replace("@", "@&#8203;")
