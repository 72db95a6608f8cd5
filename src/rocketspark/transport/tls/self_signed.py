"""Pairs of key and certificate that sign themselves, for tries and tests. Rule: every name and address is in them."""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rocketspark.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.x509 import GeneralName

DAYS = 365
_ALWAYS = ("localhost", "127.0.0.1", "::1")
_ANY = frozenset(("", "0.0.0.0", "::"))


class Pair(NamedTuple):
    """A certificate and its key in PEM; `names`: whom it is for."""

    certificate: bytes
    key: bytes
    names: tuple[str, ...]


def make(names: Iterable[str] = (), *, days: int = DAYS) -> Pair:
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


def write(pair: Pair, folder: Path) -> tuple[Path, Path]:
    """Write a pair into a folder, the key readable by its owner alone; return (certificate, key)."""
    folder.mkdir(parents=True, exist_ok=True)
    cert, key = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(pair.certificate)
    key.unlink(missing_ok=True)
    with open(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pair.key)
    return cert, key
