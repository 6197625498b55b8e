"""The data of a page as one text: columns, compressed. `unpack.js` is the counterpart in the browser.

A column is a list of numbers, or of texts. In the JSON, texts are indexes of their distinct words. JSON has no infinity, so that infinite
numbers are listed by their place.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Sequence
from importlib import resources

from softbench.core.json import JsonObject

DIGITS = 6
"""Significant digits of a number, as in the CSV."""


def column(values: Sequence[object], digits: int = DIGITS) -> object:
    """The values of a column as JSON: numbers with so many significant digits, None for NaN, and texts by their distinct words."""
    if any(isinstance(value, str) for value in values):
        words = list(dict.fromkeys(values))
        index = {word: i for i, word in enumerate(words)}
        return {"words": words, "of": [index[value] for value in values]}
    numbers = [_number(value, digits) if isinstance(value, float) else value for value in values]
    infinite = [i for i, value in enumerate(values) if value == math.inf]
    return {"numbers": numbers, "infinite": infinite} if infinite else numbers


def _number(value: float, digits: int) -> float | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 2**53 else short


def embedded(data: JsonObject) -> str:
    """JSON with `column`s anywhere in it as compressed text, which needs no escaping in HTML.

    A page has it in `<script type="application/octet-stream" id="data">`, and its script reads it with
    `await unpack(document.getElementById("data").textContent)`: then each column is an array of its values.
    """
    return compressed(json.dumps(data, separators=(",", ":"), allow_nan=False))


def compressed(text: str) -> str:
    """A text as letters and digits. In the browser, `await (await inflate(it)).text()` is the text again."""
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=9, mtime=0)).decode()


def asset(name: str, package: str = __package__) -> str:
    """The text of a file that stands beside this one, or in another package."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def source_hash(text: str) -> str:
    """The source expression of an inline style or script with this text, for the content security policy of a page."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
