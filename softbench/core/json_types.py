"""The type of a JSON object."""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]
"""A JSON object. The reader of each field checks its type."""
