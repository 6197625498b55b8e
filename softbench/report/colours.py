"""The colour of a backend in each figure, page and table. It depends on the name alone, so it is the same whatever else a file holds.

The first word of a name is its family: `triton-row` and `triton@a1b2c3d` belong to `triton`. The members of a family have related colours.
A family that is not in FAMILIES has a colour from a stable hash of its name. Markers and dashes repeat the distinction: they tell
backends apart in print, for colour-blind readers, and among more backends than there are colours.

Each colour has a contrast of at least 3 with the papers of its mode. The pairs of the first six families differ for readers with
deuteranopia or protanopia too.
"""

from __future__ import annotations

import re
import zlib
from colorsys import hls_to_rgb, rgb_to_hls
from dataclasses import dataclass
from functools import cache

PAPERS = {False: ("#ffffff", "#f5f6f8"), True: ("#16191d", "#1f2429")}
"""The backgrounds of light and of dark mode."""
CONTRAST = 3.0  # of a line or a marker with its paper: WCAG 2.2, 1.4.11
FAMILIES = {
    "copy": ("#24272b", "#f4f6f8"),
    "cuda": ("#3568e5", "#569afd"),
    "triton": ("#0e9c8a", "#05b472"),
    "torch": ("#b94008", "#f67002"),
    "compile": ("#a78a08", "#e5e148"),
    "quack": ("#a80363", "#c076b6"),
    "liger": ("#4692d4", "#afd4fe"),
    "naive": ("#4449a0", "#8e64d3"),
    "cudnn": ("#597d49", "#8fcc69"),
    "helion": ("#863005", "#a96f50"),
    "flaggems": ("#e85173", "#f9b6b5"),
    "flashinfer": ("#04564a", "#0b9282"),
    "cupy": ("#5e7396", "#89b6cf"),
    "numba": ("#8652b0", "#c6adf9"),
}
"""The colour of each family in light and in dark mode."""
MEMBERS = {
    "op": (0.06, -0.10),
    "row": (-0.07, 0.10),
    "compiled": (0.13, 0.04),
    "tile": (-0.04, -0.14),
    "aoti": (-0.14, 0.0),
    "custom-op": (-0.2, -0.08),
    "torch": (-0.06, 0.04),
    "max-autotune": (0.12, -0.06),
}
"""The change of hue and of lightness of a family's known members, by the rest of their names. Others have one from a hash."""
SPREAD = 0.14
"""The largest change that comes from a hash."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
DASHES = ("-", "--", "-.", ":")
WORD = re.compile(r"[-:_.@/ ]")


@dataclass(frozen=True, slots=True)
class Look:
    """How a backend looks wherever it is drawn."""

    light: str
    """Its colour on light paper, such as `#3568e5`."""
    dark: str
    """Its colour on dark paper."""
    marker: str
    """Matplotlib's code of its marker."""
    dash: str
    """Matplotlib's code of its line; `-` for a family's first backend and for the members in MEMBERS."""


@cache
def look(name: str) -> Look:
    """The look of the backend of this name."""
    family, rest = _parts(name)
    number = list(FAMILIES).index(family) if family in FAMILIES else _hash(family)
    light, dark = FAMILIES.get(family) or (_hue(family, dark=False), _hue(family, dark=True))
    if not rest:
        return Look(light, dark, MARKERS[number % len(MARKERS)], "-")
    place = list(MEMBERS).index(rest) if rest in MEMBERS else _hash(rest)
    hue, lightness = MEMBERS.get(rest) or (SPREAD * (place % 29 / 14 - 1), SPREAD * (place // 29 % 15 / 7 - 1))
    return Look(
        _shifted(light, hue, lightness, dark=False),
        _shifted(dark, hue, lightness, dark=True),
        MARKERS[(number + 1 + place) % len(MARKERS)],
        "-" if rest in MEMBERS else DASHES[place % len(DASHES)],
    )


def colour(name: str, *, dark: bool = False) -> str:
    """The colour of the backend of this name, such as `#3568e5`."""
    return look(name).dark if dark else look(name).light


def contrast(one: str, other: str) -> float:
    """The contrast of two colours by WCAG 2.2, from 1 to 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _parts(name: str) -> tuple[str, str]:
    """The family of a name, and the rest of the name."""
    family, _, rest = WORD.sub("\n", name, count=1).partition("\n")
    return family.lower(), rest


def _hash(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "replace"))


def _hue(family: str, *, dark: bool) -> str:
    """A colour of an unknown family."""
    number = _hash(family)
    return _legible((number % 360) / 360, 0.66 if dark else 0.42, 0.45 + 0.1 * (number // 360 % 4), dark=dark)


def _shifted(colour: str, hue: float, lightness: float, *, dark: bool) -> str:
    old, light, saturation = rgb_to_hls(*_rgb(colour))
    return _legible((old + hue) % 1, light + lightness, saturation, dark=dark)


def _legible(hue: float, lightness: float, saturation: float, *, dark: bool) -> str:
    """The colour, made darker or lighter until it has enough contrast with the paper."""
    lightness = min(0.88, max(0.2, lightness))
    while min(contrast(made := _hex(hls_to_rgb(hue, lightness, saturation)), paper) for paper in PAPERS[dark]) < CONTRAST:
        lightness += 0.01 if dark else -0.01
    return made


def _hex(rgb: tuple[float, float, float]) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)


def _rgb(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return red, green, blue


def _luminance(colour: str) -> float:
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in _rgb(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
