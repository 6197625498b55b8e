"""What a run document records of each unit."""

from __future__ import annotations

from collections.abc import Mapping

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


def units_of(header: JsonObject) -> dict[str, JsonObject]:
    """The facts of each unit of a run document. Documents of earlier versions have one unit without a name."""
    shared = dict(header.get("environment") or {})
    return {str(own["unit"]): {**shared, **own} for own in header.get("units") or ()} or {"": shared}


def device_name(facts: Mapping[str, object], default: str = "") -> str:
    """The name of a unit's GPU or CPU."""
    return str(facts.get("gpu" if facts.get("device") == "cuda" else "cpu") or default)
