"""Files of certificates and keys, and self-signed pairs of both that servers make for a try.

Rule: what is wrong with a file is said in a line that names it, never its content; a pair that is made is for every
name and address by which a client may dial the server.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rocketspark.errors import ConfigError
from rocketspark.model.text import shown

if TYPE_CHECKING:
    from cryptography.x509 import GeneralName


Stamp = tuple[int, int, int]


def stamp(path: str) -> Stamp | None:
    """Return a value that changes when the file is replaced; None if it is not there."""
    if not path:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def trust(context: ssl.SSLContext, path: str, name: str) -> None:
    """Have a TLS context trust the certificates in a PEM file. `name`: the setting that names the file. Raises
    ConfigError.
    """
    check_readable(path, name)
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError, ValueError) as e:
        raise ConfigError(f"{name}={shown(path)}: no certificates in PEM are in it ({_reason(e)})") from None


def load_pair(
    context: ssl.SSLContext, cert: str, key: str, password: str, names: tuple[str, str] = ("certificate", "key")
) -> None:
    """Load the certificate (with its chain) and the key that a TLS context shows. With `key` empty it is in the file
    `cert`.

    `names`: the settings that name the two files. Raises ConfigError.
    """
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


DAYS = 365
_ALWAYS = ("localhost", "127.0.0.1", "::1")
_ANY = frozenset(("", "0.0.0.0", "::"))


class Pair(NamedTuple):
    """A certificate and its key in PEM; `names`: whom it is for."""

    certificate: bytes
    key: bytes
    names: tuple[str, ...]


def make_pair(names: Iterable[str] = (), *, days: int = DAYS) -> Pair:
    """Return a new pair for this machine's name, loopback, and the names and addresses given.

    Raises ConfigError if the package cryptography is not there.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise ConfigError(
            "a certificate is to be made, which needs the package cryptography: pip install 'rocketspark[tls]', or give"
            " files (tls.server.certPath, tls.server.keyPath)"
        ) from None
    wanted = [name.strip("[]") for name in (*_ALWAYS, socket.gethostname(), *names)]
    found = tuple(dict.fromkeys(name for name in wanted if name not in _ANY and name.isascii()))
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "rocketspark self-signed")])
    now = datetime.datetime.now(datetime.UTC)
    usage = x509.KeyUsage(True, False, False, False, False, True, False, False, False)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in found]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return Pair(built.public_bytes(serialization.Encoding.PEM), secret, found)


def _general_name(name: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def write_pair(pair: Pair, folder: Path) -> tuple[Path, Path]:
    """Write a pair into a folder, the key readable by its owner alone; return (certificate, key)."""
    folder.mkdir(parents=True, exist_ok=True)
    cert, key = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(pair.certificate)
    key.unlink(missing_ok=True)
    with open(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pair.key)
    return cert, key
