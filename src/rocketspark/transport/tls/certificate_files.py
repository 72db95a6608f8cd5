"""Files of certificates and keys. Rule: what is wrong with one is said in a line that names it, never its content."""

from __future__ import annotations

import os
import ssl

from rocketspark.errors import ConfigError
from rocketspark.model.text import shown

Stamp = tuple[int, int, int]


def stamp(path: str) -> Stamp | None:
    """Return what changes when a file is replaced; None if it is not there."""
    if not path:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def trust(context: ssl.SSLContext, path: str, name: str) -> None:
    """Trust the certificates of a PEM file. Raises ConfigError; `name`: the setting it stands in."""
    check_readable(path, name)
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError, ValueError) as e:
        raise ConfigError(f"{name}={shown(path)}: no certificates in PEM are in it ({_reason(e)})") from None


def load_pair(
    context: ssl.SSLContext, cert: str, key: str, password: str, names: tuple[str, str] = ("certificate", "key")
) -> None:
    """Show a certificate with its chain, and use its key; `key` empty: it stands in `cert`. Raises ConfigError."""
    check_readable(cert, names[0])
    if key:
        check_readable(key, names[1])
    asked = []

    def give() -> str:
        # Without this the library would ask on the terminal.
        asked.append(True)
        return password

    holder = f"{names[1]}={shown(key)}" if key else f"{names[0]}={shown(cert)}"
    try:
        context.load_cert_chain(cert, key or None, password=give)
    except (ssl.SSLError, OSError, ValueError) as e:
        if getattr(e, "reason", None) == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"{holder} does not belong to the certificate in {shown(cert)}: give the pair") from None
        if asked:
            what = "its password is wrong" if password else "it is encrypted, and no password is given"
            raise ConfigError(f"{holder}: {what}") from None
        raise ConfigError(
            f"{names[0]}={shown(cert)}, {holder}: a certificate and its key in PEM are needed ({_reason(e)})"
        ) from None


def check_readable(path: str, name: str) -> None:
    """Raise ConfigError for a file that cannot be read."""
    try:
        with open(path, "rb") as file:
            file.read(1)
    except (OSError, ValueError) as e:
        raise ConfigError(f"{name}={shown(path)} cannot be read: {getattr(e, 'strerror', None) or e}") from None


def _reason(error: Exception) -> str:
    text = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return str(text).replace("_", " ").lower()
