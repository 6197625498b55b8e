"""A figure as SVG text."""

from io import StringIO

import matplotlib


def as_svg(figure):
    text = StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "text.parse_math": False}):
        figure.savefig(text, format="svg")
    return text.getvalue()
