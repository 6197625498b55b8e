"""A backend's colour depends on its name alone, and can be seen on both papers."""

from itertools import combinations

import pytest

from softbench.report.colours import CONTRAST, FAMILIES, MEMBERS, PAPERS, colour, contrast, look

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


def test_members_of_a_family_differ_in_marker_or_dash_too() -> None:
    assert len({(look(name).marker, look(name).dash) for name in TRITON}) == len(TRITON)


def test_unknown_names_have_a_colour_of_their_own_that_never_changes() -> None:
    assert look("kernel-7") == look("kernel-7")
    assert colour("my-softmax") == "#984420"  # the same in each process: the hash is stable
    assert len({colour(f"k{number}") for number in range(200)}) > 150
