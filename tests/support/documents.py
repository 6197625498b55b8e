"""Run documents as bytes and files."""

import io
import json
import re
from pathlib import Path

from softbench.results.csv import digest_of
from softbench.results.document import write_packed


def packed(document):
    """The file of a run document, which has its cells."""
    header, out = {key: value for key, value in document.items() if key != "cells"}, io.BytesIO()
    write_packed(out, header, (json.dumps(cell, separators=(",", ":")).encode() for cell in document["cells"]))
    return out.getvalue()


def vouch(name, **header):
    """Write the run document of a CSV, with its digest, beside it."""
    file = Path(name)
    with file.with_suffix(".json.gz").open("wb") as out:
        write_packed(out, header, (), digest_of(file.read_bytes()))


def undigested(text):
    """The text of a run document or a baseline as softbench wrote it before files had digests."""
    return re.sub(r',\s*"digest_of_\w+":\s*"[0-9a-f]{32}"', "", text)
