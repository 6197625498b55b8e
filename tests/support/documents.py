"""Run documents as bytes."""

import io
import json

from softbench.results.document import write_packed


def packed(document):
    """The file of a run document, which has its cells."""
    header, out = {key: value for key, value in document.items() if key != "cells"}, io.BytesIO()
    write_packed(out, header, (json.dumps(cell, separators=(",", ":")).encode() for cell in document["cells"]))
    return out.getvalue()
