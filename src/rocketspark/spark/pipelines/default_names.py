"""The names that a pipeline gives itself. Rule: whatever its topics are called, the writer takes them."""

from __future__ import annotations

import hashlib
import re

from rocketspark.errors import ConfigError
from rocketspark.spark.options import AT_LEAST_ONCE, EXACTLY_ONCE, TRANSACTIONAL_ID

_CHARACTERS_MAX = 100
_FOLDER_CHARACTERS_MAX = 200
# With what a progress file's name has besides, and a new one beside it.
_FILE_BYTES_MAX = 232


def default_name(text: str) -> str:
    """Return the text where it can be a transactionalId, else a shorter one that no other text has."""
    if TRANSACTIONAL_ID.fullmatch(text):
        return text
    return _told_apart(re.sub(r"[^A-Za-z0-9_-]+", "_", text), text, _CHARACTERS_MAX)


def default_folder(text: str) -> str:
    """Return the text unless it is too long for the name of a folder, else a shorter one."""
    return text if len(text.encode()) <= _FOLDER_CHARACTERS_MAX else default_name(text)


def file_name(*parts: str) -> str:
    """Return a name for a file of some topics."""
    text = "-".join(part.replace("%", "_") for part in parts)
    return text if len(text.encode()) <= _FILE_BYTES_MAX else _told_apart(text, text, _FILE_BYTES_MAX // 2)


def _told_apart(shown: str, text: str, characters_max: int) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{shown[: characters_max - len(digest) - 1]}-{digest}"


def check_name(name: str, delivery: str) -> str:
    """Check a name that was given. Raises ConfigError for one that the writer refuses, or for an unknown delivery."""
    check_delivery(delivery)
    if delivery == EXACTLY_ONCE and not TRANSACTIONAL_ID.fullmatch(name):
        raise ConfigError(f"--name is {name!r}: 1 to {_CHARACTERS_MAX} of the characters A-Z a-z 0-9 _ - are needed")
    return name


def check_delivery(delivery: str) -> str:
    """Return the delivery. Raises ConfigError for an unknown one."""
    if delivery not in (AT_LEAST_ONCE, EXACTLY_ONCE):
        raise ConfigError(f"--delivery is {delivery!r}: {EXACTLY_ONCE} or {AT_LEAST_ONCE} is needed")
    return delivery
