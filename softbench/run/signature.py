"""Signs verdicts with a secret key: HMAC-SHA256 over the JSON without its signature, with sorted keys (RFC 2104)."""

from __future__ import annotations

import hmac
import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from softbench.core.errors import ResultsError, UsageError
from softbench.core.files import not_written
from softbench.core.json import JsonObject

SIGNATURE = "signature"
KEY_BYTES = 32
FOLDER = "softbench"


def default_key() -> Path:
    """The user's key file."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / FOLDER / "judge.key"


def read_key(file: Path, *, make: bool = False) -> bytes:
    """The key in a file; `make` creates the file if it does not exist, for its owner only.

    Raises:
        UsageError: the file does not exist, cannot be read, or has no key.
        ResultsError, StorageError: it cannot be created.
    """
    if make and not file.exists():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile("w", dir=file.parent, prefix=f".{file.name}-") as target:  # for its owner only
                target.write(secrets.token_hex(KEY_BYTES) + "\n")
                target.flush()
                with suppress(FileExistsError):  # another process made a key meanwhile
                    os.link(target.name, file)
        except OSError as error:
            raise not_written(f"--key {file}", error) from None
    try:
        key = bytes.fromhex(file.read_text().strip())
    except OSError as error:
        raise UsageError(f"--key {file}: {error.strerror}; softbench judge FILE makes a key") from None
    except ValueError:
        key = b""
    if len(key) < KEY_BYTES:
        raise UsageError(f"--key {file}: not a key: it needs {2 * KEY_BYTES} hexadecimal digits or more")
    return key


def signed(document: JsonObject, key: bytes) -> JsonObject:
    """The document with its signature."""
    return {**document, SIGNATURE: _signature(document, key)}


def is_signed(document: JsonObject, key: bytes) -> bool:
    """True if the document has a signature that this key made for it."""
    return hmac.compare_digest(str(document.get(SIGNATURE, "")).encode(), _signature(document, key).encode())


def read_document(file: Path) -> JsonObject:
    """The document in a file. Raises ResultsError if there is none."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not the JSON of softbench judge"
        raise ResultsError(f"{file}: cannot be read as a verdict: {reason}") from None
    if not isinstance(found, dict):
        raise ResultsError(f"{file}: not a verdict")
    return found


def _signature(document: JsonObject, key: bytes) -> str:
    text = json.dumps({name: value for name, value in document.items() if name != SIGNATURE}, sort_keys=True, separators=(",", ":"))
    return "hmac-sha256:" + hmac.digest(key, text.encode(), "sha256").hex()
