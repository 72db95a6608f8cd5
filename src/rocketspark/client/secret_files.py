"""Secrets in files, so that neither options nor process lists show them. Rule: an error never shows what is in one."""

from __future__ import annotations

from rocketspark.errors import ConfigError
from rocketspark.model.text import shown

FILE_BYTES_MAX = 4096


def read_secret(path: str, name: str) -> str:
    """Return the first line of a file. Raises ConfigError; `name`: of the option or variable that names the file."""
    try:
        with open(path, "rb") as file:
            text = file.read(FILE_BYTES_MAX).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, ValueError) as e:
        reason = getattr(e, "strerror", None) or "no UTF-8 text"
        raise ConfigError(f"{name}={shown(path)} cannot be read: {reason}") from None
    line = text.partition("\n")[0].strip()
    if not line:
        raise ConfigError(f"{name}={shown(path)} is empty: its first line is the secret")
    return line
