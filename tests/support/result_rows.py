"""Rows of results with plausible numbers."""

from dataclasses import MISSING, fields
from typing import Any

from softbench.results.rows import Row

CELL = {"direction": "forward", "M": 4096, "N": 256, "dtype": "bf16", "status": "ok", "device": "NVIDIA H200", "run": "r"}
TIMES = {"median_us": 9.0, "p20_us": 9.0, "p80_us": 9.0, "n": 3, "rounds": 1, "processes": 1, "gbps": 100.0, "timer": "do_bench"}


def result_row(backend: str, **given: Any) -> Row:
    """A cell with these fields, and with times if its status is `ok`. All others are None or an empty text."""
    required = (field for field in fields(Row) if field.default is MISSING)
    empty = {field.name: "" if field.type == "str" else None for field in required}
    return Row(**empty | CELL | (TIMES if given.get("status", "ok") == "ok" else {}) | {"backend": backend} | given)
