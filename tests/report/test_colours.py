"""A backend's colour depends on its name alone, and can be seen on both papers."""

from itertools import combinations
from math import dist

import pytest

from softbench.report.colours import CONTRAST, FAMILIES, MEMBERS, PAPERS, colour, contrast, look

Matrix = tuple[tuple[float, float, float], ...]
EYES: dict[str, Matrix] = {  # Machado, Oliveira and Fernandes 2009, on linear RGB
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
}
TO_CONES: Matrix = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
TO_LAB: Matrix = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)
TRITON = ["triton", *(f"triton-{rest}" for rest in ("op", "row", "compiled", "tile", "aoti", "custom-op"))]
COMPILE = ["compile", "compile-torch", "compile:max-autotune", "compile:reduce-overhead", "compile:dynamic", "compile:eager"]
UNKNOWN = [
    "mine",
    "",
    "-",
    ":x",
    "ein name",
    "内核",
    *(f"kernel-{number}" for number in range(200)),
    *(f"k{number}" for number in range(200)),
]


@pytest.mark.parametrize("dark", [False, True])
def test_every_colour_has_contrast_with_its_papers(dark: bool) -> None:
    names = [*FAMILIES, *(f"{family}-{rest}" for family in FAMILIES for rest in MEMBERS), *COMPILE, *UNKNOWN]
    poor = {name for name in names for paper in PAPERS[dark] if contrast(colour(name, dark=dark), paper) < CONTRAST}
    assert not poor


@pytest.mark.parametrize("names", [list(FAMILIES), TRITON, COMPILE])
def test_known_backends_differ_in_colour_in_both_modes(names: list[str]) -> None:
    for one, other in combinations(map(look, names), 2):
        assert one.light != other.light and one.dark != other.dark


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("eyes", EYES)
def test_the_first_families_differ_for_colour_blind_readers(eyes: str, dark: bool) -> None:
    """The distance in OKLab as they see it; black and white are 1 apart."""
    seen = {name: _oklab(colour(name, dark=dark), EYES[eyes]) for name in list(FAMILIES)[:7]}
    near = {(one, other) for one, other in combinations(seen, 2) if dist(seen[one], seen[other]) < 0.09}
    assert not near


def _oklab(text: str, eyes: Matrix) -> list[float]:
    parts = [int(text[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    for matrix, power in ((eyes, 1.0), (TO_CONES, 1 / 3), (TO_LAB, 1.0)):
        linear = [
            max(0.0, value) ** power if power != 1 else value
            for value in (sum(a * b for a, b in zip(row, linear, strict=True)) for row in matrix)
        ]
    return linear


def test_members_of_a_family_differ_in_marker_or_dash_too() -> None:
    assert len({(look(name).marker, look(name).dash) for name in TRITON}) == len(TRITON)


def test_unknown_names_have_a_colour_of_their_own_that_never_changes() -> None:
    assert look("kernel-7") == look("kernel-7")
    assert colour("my-softmax") == "#984420"  # the same in each process: the hash is stable
    assert len({colour(f"k{number}") for number in range(200)}) > 150
