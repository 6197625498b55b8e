"""What a run document records of each unit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from softbench.core.json_types import JsonObject


def environments(facts: Mapping[str, Mapping[str, object]]) -> JsonObject:
    """The entries `environment` and `units` of a run document: the facts that all units share, and for each unit the others.

    `facts` are those of each unit, with the fact `unit`.
    """
    every = [*facts.values()]
    shared = {key: value for key, value in every[0].items() if key != "unit" and all(key in one and one[key] == value for one in every)}
    return {
        "environment": shared,
        "units": [{"unit": unit, **{key: value for key, value in one.items() if key not in shared}} for unit, one in facts.items()],
    }


def common(fingerprints: Sequence[Mapping[str, object]]) -> JsonObject:
    """The fingerprint of several cards or runs: for each key the value that all have, or all values as one text."""
    keys = dict.fromkeys(key for one in fingerprints for key in one)
    return {key: _one_or_all(one.get(key) for one in fingerprints) for key in keys}


def _one_or_all(values: Iterable[object]) -> object:
    """The value that all have, or the values in order. A value may be a dict, which has no hash."""
    found = {json.dumps(value, sort_keys=True): value for value in values}
    return next(iter(found.values())) if len(found) == 1 else ", ".join(sorted(map(str, found.values())))


def units_of(header: JsonObject) -> dict[str, JsonObject]:
    """The facts of each unit of a run document. Documents of earlier versions have one unit without a name."""
    shared = dict(header.get("environment") or {})
    return {str(own["unit"]): {**shared, **own} for own in header.get("units") or ()} or {"": shared}


def device_name(facts: Mapping[str, object], default: str = "") -> str:
    """The name of a unit's GPU or CPU."""
    return str(facts.get("gpu" if facts.get("device") == "cuda" else "cpu") or default)
