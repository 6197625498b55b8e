"""The options of runs on several cards."""

from __future__ import annotations

from typing import Annotated

import typer

FLEET = "Several cards"

Shard = Annotated[
    str | None,
    typer.Option(
        help="Measure one part of the cases, such as 2/8, for a matrix of tasks; softbench merge puts the parts together.",
        metavar="I/N",
        rich_help_panel=FLEET,
    ),
]
