"""Markdown tables and JUnit XML, with text that is safe in them."""

from __future__ import annotations

import html
from collections.abc import Container, Sequence
from xml.etree import ElementTree

from softbench.core.text import one_line

SIGNS = ("\\", "|", "`", "*", "_", "[", "]", "~")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Container[int] = ()) -> str:
    """A Markdown table of untrusted texts. The columns with these indexes are right-aligned."""
    rule = ["---:" if i in numbers else "---" for i in range(len(head))]
    lines = [tuple(map(safe, head)), rule, *(tuple(map(safe, row)) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def safe(text: str) -> str:
    """Escape untrusted text for Markdown: no markup, no new columns, no links, no mentions."""
    escaped = html.escape(one_line(text, 1000), quote=False)
    for sign in SIGNS:
        escaped = escaped.replace(sign, f"&#{ord(sign)};")
    return escaped.replace("@", "@&#8203;")


class TestSuite:
    """JUnit XML of one command: test cases with their outcomes."""

    def __init__(self, name: str) -> None:
        self._suite = ElementTree.Element("testsuite", {"name": name})

    def case(self, owner: str, name: str) -> ElementTree.Element:
        """A test case, which passes unless it gets an outcome. `owner` is a backend, or empty for the whole command."""
        classname = f"softbench.{owner}" if owner else "softbench"
        return ElementTree.SubElement(self._suite, "testcase", {"classname": classname, "name": name})

    def text(self) -> str:
        """The XML with its counts."""
        for key, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            self._suite.set(key, str(len(list(self._suite.iter(tag)))))
        ElementTree.indent(self._suite)
        return ElementTree.tostring(self._suite, encoding="unicode", xml_declaration=True) + "\n"


def outcome(case: ElementTree.Element, kind: str, message: str | None = None, *, type: str = "", text: str = "") -> None:
    """Give a test case an outcome: `failure`, `error` or `skipped` with a message and its type, or `system-out` with a text."""
    attributes = {**({"type": type} if type else {}), **({} if message is None else {"message": _xml_text(message)})}
    element = ElementTree.SubElement(case, kind, attributes)
    if text:
        element.text = _xml_text(text)


def _xml_text(value: str) -> str:
    """Text without the characters that XML does not allow."""
    return one_line(value, 1000).replace("\ufffe", "?").replace("\uffff", "?")
