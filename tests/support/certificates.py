"""Certificates of tests: an issuer of their own, pairs good and bad. Keys are small and quick."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

NOW = datetime.datetime.now(datetime.UTC)
HERE = ("127.0.0.1", "localhost")


class Pair(NamedTuple):
    """Files of a certificate and its key."""

    cert: str
    key: str


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class Issuer:
    """A certificate authority with its files in a folder. `ca`: what those that trust it are given."""

    def __init__(self, folder: Path, name: str = "tests") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        built = (
            self._begun(name, name, self._key, -1, 30)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = str(folder / f"{name}-ca.pem")
        Path(self.ca).write_bytes(built.public_bytes(serialization.Encoding.PEM))

    @staticmethod
    def _begun(
        subject: str, issuer: str, key: ec.EllipticCurvePrivateKey, from_days: int, to_days: int
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(_name(subject))
            .issuer_name(_name(issuer))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW + datetime.timedelta(days=from_days))
            .not_valid_after(NOW + datetime.timedelta(days=to_days))
        )

    def pair(
        self,
        file: str = "server",
        *,
        names: Iterable[str] = HERE,
        from_days: int = -1,
        to_days: int = 30,
        password: str = "",
    ) -> Pair:
        """Write a pair; valid between the days, counted from today. The key is PKCS#8."""
        key = ec.generate_private_key(ec.SECP256R1())
        built = (
            self._begun(file, self._name, key, from_days, to_days)
            .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        cert_path, key_path = self._folder / f"{file}.pem", self._folder / f"{file}.key"
        hidden: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password:
            hidden = serialization.BestAvailableEncryption(password.encode())
        cert_path.write_bytes(built.public_bytes(serialization.Encoding.PEM))
        pkcs8 = serialization.PrivateFormat.PKCS8
        key_path.write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, hidden))
        return Pair(str(cert_path), str(key_path))
