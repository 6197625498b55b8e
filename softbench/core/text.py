"""Numbers and text for messages and tables: us, GB/s, seconds, bytes, one safe line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from statistics import median
from typing import Any

NAMED = 8
"""The most names in one line."""
LISTED = 40
"""The most names in an error that lists all known ones: no built-in list is longer."""
SHOWN_CODE = 60
"""Characters of a line of the user's code in a message, at most."""
LONGEST = 2000
"""Characters of a text from a worker, at most."""
CODE, BYTES = "text", "layouts"
"""The keys in a message of generated code, whose lines stay, and of bytes in base64. Neither is cut."""
_INSTALLED = re.compile(r"(?<![\w.~])~?/[^\s'\"()]{0,200}?/(?:site|dist)-packages/")
_BIDI = r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # they show a line in another order than it has (CVE-2021-42574)
_CONTROL = re.compile(rf"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x1f\x7f-\x9f\u2028\u2029{_BIDI}]+")


def three_digits(value: float) -> str:
    """A positive number with three significant digits at least: `0.00312`, `0.750`, `41.9`, `4122`."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:#.3g}"


def bandwidth_unit(gbps: Sequence[float]) -> tuple[str, float]:
    """The unit that fits these bandwidths in GB/s, and its factor: MB/s if half of them lie below 0.1 GB/s."""
    return ("MB/s", 1e3) if gbps and median(gbps) < 0.1 else ("GB/s", 1.0)


def percent(fraction: float) -> str:
    """`49%`, `0.03%`; from 99 on the ratio: `10214x`."""
    if fraction >= 99:
        return f"{fraction:.0f}x"
    return f"{fraction:.0%}" if fraction >= 0.01 else f"{100 * fraction:.1g}%"


def margin(fraction: float) -> str:
    """`3.0%`, `0.25%`: a margin, below 1 % with two significant digits."""
    return f"{fraction:.1%}" if fraction >= 0.01 else f"{100 * fraction:.2g}%"


def p_value(p: float) -> str:
    """`p .012`, `p < .0001`: a smaller one says no more."""
    return "p < .0001" if p < 1e-4 else f"p {p:.2g}".replace("0.", ".", 1)


def ratio(value: float, digits: int = 2) -> str:
    """A ratio with `digits` decimals, or with significant digits if it is very small or large: `2.45`, `0.0031`, `12346`."""
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.{digits}f}" if value >= 0.095 else f"{value:.{digits}g}"


def micros(us: float) -> str:
    """A latency: `5.12 us`, `131 us`, `12.4 ms`, `2.1 s`."""
    if us < 1e3:
        return f"{us:.3g} us"
    if us < 1e6:
        return f"{us / 1e3:.3g} ms"
    return f"{us / 1e6:.3g} s"


def duration(seconds: float) -> str:
    """Wall time: `8 s`, `2 min 5 s`, `1 h 12 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def size(count: int) -> str:
    """Bytes in binary units: `256 MiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"


def count(number: int, noun: str) -> str:
    """`1 cell`, `12 cells`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def few(names: Sequence[str], most: int = NAMED, between: str = ", ") -> str:
    """The names, or the first of them and the number of the others."""
    more = len(names) - most
    return between.join(names) if more <= 0 else f"{between.join(names[:most])} and {count(more, 'other')}"


def one_line(text: str, limit: int = 300) -> str:
    """Foreign text as one line of at most `limit` characters; control and escape sequences become spaces.

    Names of installed files start at their package, so that results do not show a machine's folders.
    """
    printable = text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates can be neither printed nor stored
    line = " ".join(_CONTROL.sub(" ", printable).split())
    line = _INSTALLED.sub("", line[: limit + 2000])
    return line if len(line) <= limit else line[: limit - 3] + "..."


def in_words(function: str, file: Path, line: int, code: str = "") -> str:
    """`in prepare, mine.py:12: kernel[grid](x)`: a line of the user's code in a message, without its folder.

    A `raise` is left out, because the message has its text.
    """
    shown = one_line(code, SHOWN_CODE)
    place = f"in {function}, {file.name}:{line}"
    return f"{place}: {shown}" if shown and not shown.startswith("raise") else place


def printable(text: str) -> str:
    """Text of several lines without control sequences; line breaks and tabs stay."""
    lines = text.encode("utf-8", "replace").decode("utf-8").replace("\r\n", "\n").split("\n")
    return "\n".join("\t".join(_CONTROL.sub(" ", part) for part in line.split("\t")) for line in lines)


def split_exclusions(patterns: Iterable[str]) -> tuple[list[str], list[str]]:
    """The patterns that select, and those that exclude, without their `!`. An exclusion counts wherever it stands."""
    given = list(patterns)
    return [one for one in given if not one.startswith("!")], [one[1:] for one in given if one.startswith("!")]


def unknown(name: str, known: Iterable[str], what: str, also: Iterable[str] = ()) -> str:
    """`unknown backend 'troch'; did you mean 'torch'? known are ...`

    Args:
        known: the known names. A tuple keeps its order, other names are sorted.
        also: names that are known too and not listed, such as aliases.
    """
    names = known if isinstance(known, tuple) else sorted(known)
    listed = f"known are {few(names, LISTED)}" if names else "there is none"
    return f"unknown {what} '{name}'; {did_you_mean(name, [*names, *also])}{listed}"


def did_you_mean(name: str, known: Iterable[str], most: int = 1) -> str:
    """`did you mean 'torch'? ` with the closest known names, at most so many; an empty text if none is close."""
    by_lower = {one.lower(): one for one in known}
    close = [f"'{by_lower[one]}'" for one in get_close_matches(name.lower(), by_lower, n=most)]
    return f"did you mean {' or '.join(close)}? " if close else ""


def harmless(value: Any) -> Any:
    """A worker's message with every text and key cut to one line without control characters; a `text` keeps its lines, and bytes stay.

    Raises:
        RecursionError: the message is nested too deeply.
        ValueError: an integer has more than 64 bits. Such an integer is no count, and it may not fit a float.
    """
    if isinstance(value, int) and abs(value) >= 2**64:
        raise ValueError("an integer of more than 64 bits")
    if isinstance(value, str):
        return one_line(value, LONGEST)
    if isinstance(value, dict):
        lines = {key: printable(item) for key, item in value.items() if key in (CODE, BYTES) and isinstance(item, str)}
        return {one_line(key, LONGEST): harmless(item) for key, item in value.items()} | lines
    return [harmless(item) for item in value] if isinstance(value, list) else value


def did_you_mean_file(path: Path) -> str:
    """`; did you mean mine.py?` of a missing Python file: it has no suffix, or the name of one beside it is close. Else an empty text."""
    beside = [one.name for one in path.parent.glob("*.py")]
    close = [f"{path.name}.py"] if f"{path.name}.py" in beside else get_close_matches(path.name, beside, n=1)
    return "".join(f"; did you mean {path.parent / name}?" for name in close)
