"""The options of runs on several cards."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from softbench.core.errors import UsageError
from softbench.core.text import unknown

if TYPE_CHECKING:
    from softbench.run.fleet.fleet import How

FLEET = "Several cards"

Shard = Annotated[
    str | None,
    typer.Option(
        help="Measure one part of the cases, such as 2/8, for a matrix of tasks; softbench merge puts the parts together.",
        metavar="I/N",
        rich_help_panel=FLEET,
    ),
]
Devices = Annotated[
    str | None, typer.Option(help="GPUs of this host that measure at once: all, or numbers such as 0,2.", rich_help_panel=FLEET)
]
Ray = Annotated[
    str | None,
    typer.Option(
        help="Measure on all GPUs of a Ray cluster: its address, or auto; needs softbench[ray].",
        metavar="auto|ADDRESS",
        rich_help_panel=FLEET,
    ),
]
Spread = Annotated[
    str | None,
    typer.Option(
        help="shard deals the cases to the cards of a model; replicate measures everything on every card.",
        rich_help_panel=FLEET,
        show_default="shard",
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Deal cases to cards of one model that are more than 2 % apart.", rich_help_panel=FLEET)
]


def how(devices: str | None, ray: str | None, spread: str | None, force: bool, device: str | None) -> How | None:
    """How a run uses several cards; None if it uses one.

    Raises:
        UsageError: options that contradict each other.
    """
    given = [f"--{name} {value}" for name, value in (("device", device), ("devices", devices), ("ray", ray)) if value is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)}: give one of them")
    if devices is None and ray is None:
        if spread is not None or force:
            raise UsageError(f"--{'force' if spread is None else 'spread'} goes with --devices or --ray: a run on one card deals nothing")
        return None
    from softbench.run.fleet.cards import LocalCards
    from softbench.run.fleet.fleet import SPREADS, How
    from softbench.run.fleet.ray_cards import RayCards

    chosen = SPREADS[0] if spread is None else spread
    if chosen not in SPREADS:
        raise UsageError(f"--spread: {unknown(chosen, SPREADS, 'spread')}")
    cards = partial(RayCards, ray) if ray is not None else (lambda request: LocalCards(devices or ""))
    return How(cards, chosen, force)
