"""What `server --secure` makes and keeps: a certificate, an administrator, and the key of the brokers' own requests.

Rule: made once, in a folder that its owner alone may read; what is there is used again.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import secrets
import ssl
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rocketspark.access.tables import FILE_NAME as ACCESS_FILE
from rocketspark.broker.access.settings import CLASSES
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ConfigError, StoreUnwritable
from rocketspark.transport.request_signer import RequestSigner
from rocketspark.transport.tls import certificate_files
from rocketspark.transport.tls.settings import TlsSettings, from_values

ADMIN, INNER = "admin", "rocketspark-inner"
CERTIFICATE, KEY = "cert.pem", "key.pem"
ADMIN_SECRET, INNER_SECRET = "admin.secret", "inner.secret"
RANDOM_BYTES = 18
# A certificate that ends so soon is made anew.
DAYS_LEFT_MIN = 30
_SECRET_BYTES_MAX = 4096


@dataclass(frozen=True)
class SecureFolder:
    """The folder that `server --secure` made, and the secrets in it.

    `admin_password`: "" once the operator removed its file; `is_new`: the folder was made by this start.
    """

    folder: Path
    inner_secret: str = field(repr=False)
    admin_password: str = field(repr=False)
    is_new: bool = False

    @property
    def ca(self) -> Path:
        """Return the path of the certificate that clients have to trust."""
        return self.folder / CERTIFICATE

    def tls_values(self) -> dict[str, str]:
        """Return the settings of a server that takes nothing but TLS, by RocketMQ's names."""
        return {
            "tls.server.mode": "enforcing",
            "tls.server.certPath": str(self.ca),
            "tls.server.keyPath": str(self.folder / KEY),
            "tls.client.trustCertPath": str(self.ca),
        }

    def tls(self) -> TlsSettings:
        """Return the settings of `tls_values`, parsed."""
        return from_values(self.tls_values())

    def tls_over(self, settings: TlsSettings) -> TlsSettings:
        """Return `settings` so that TLS alone is taken, with this folder's certificate unless they name one themselves,
        which the servers' own connections trust then.
        """
        if not settings.cert_path:
            return from_values({**settings.given, **self.tls_values()})
        trusted = settings.client_trust_path or settings.cert_path
        given = {**settings.given, "tls.server.mode": "enforcing", "tls.client.trustCertPath": trusted}
        return msgspec.structs.replace(settings, mode="enforcing", client_trust_path=trusted, given=given)

    def signer(self) -> RequestSigner:
        """Return the signer of the requests that brokers, NameServers and controllers send each other."""
        return RequestSigner(INNER, self.inner_secret)

    def apply(self, settings: BrokerSettings, *, alone: bool = False) -> None:
        """Change a broker's settings so that it takes TLS and signed requests only, and signs its own requests.

        What the settings say already stays. `alone`: the broker has no replicas, so it opens no replication port unless
        its settings speak of replicas.
        """
        if alone and not (settings.ha_listen_port or settings.controller_mode or settings.slave_acting_master):
            settings.ha_listen = settings.broker_role != "ASYNC_MASTER"
        settings.tls = self.tls_over(settings.tls)
        settings.authentication = settings.authorization = True
        access = settings.access
        inner = json.dumps({"accessKey": INNER, "secretKey": self.inner_secret})
        admin = ""
        # A store that has users keeps them: one that was deleted does not come back.
        if self.admin_password and not Path(settings.store_root, "config", ACCESS_FILE).exists():
            admin = json.dumps({"username": ADMIN, "password": self.admin_password})
        settings.access = msgspec.structs.replace(
            access,
            authentication_metadata_provider=CLASSES["authenticationMetadataProvider"][0],
            authorization_metadata_provider=CLASSES["authorizationMetadataProvider"][0],
            inner_client_authentication_credentials=access.inner_client_authentication_credentials or inner,
            init_authentication_user=access.init_authentication_user or admin,
        )

    def namesrv_writers(self) -> dict[str, str]:
        """Return the secrets, by name, of those who may change what a NameServer knows: brokers and administrator."""
        return {INNER: self.inner_secret} | ({ADMIN: self.admin_password} if self.admin_password else {})

    def client_options(self) -> dict[str, Any]:
        """Return the keyword arguments with which a RocketSpark client connects as the administrator."""
        return {
            "access_key": ADMIN,
            "secret_key": self.admin_password,
            "use_tls": True,
            "tls_ca": str(self.ca),
        }


def prepare(folder: str | os.PathLike[str], names: Iterable[str] = ()) -> SecureFolder:
    """Make the certificate and secrets that the folder lacks. `names`: host names and addresses of the servers.

    Raises ConfigError without the package cryptography, or for a folder that others may write, StoreUnwritable if it
    cannot be written.
    """
    place = Path(folder).absolute()
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(place):
            _close_to_others(place)
            is_new = not (place / INNER_SECRET).exists()
            if not _pair_is_good(place, names):
                certificate_files.write_pair(certificate_files.make_pair(names), place)
            if is_new:
                if not (place / ADMIN_SECRET).exists():
                    _write_secret(place / ADMIN_SECRET)
                # Last: with it all is there.
                _write_secret(place / INNER_SECRET)
            return _loaded(place, is_new=is_new)
    except OSError as e:
        raise StoreUnwritable(f"{e.filename or place} cannot be written: {e.strerror or e}") from None


@contextlib.contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Let one process at a time make what is missing."""
    held = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _close_to_others(place: Path) -> None:
    """Let the owner alone look into the folder. Raises ConfigError where others could have put secrets of theirs."""
    found, me = place.stat(), os.geteuid()
    if found.st_uid not in (me, 0) and me != 0:
        raise ConfigError(f"{place} belongs to another user (number {found.st_uid}), who would know its secrets")
    if found.st_mode & 0o022:
        raise ConfigError(f"{place} may be written by others, who may have put secrets there: look, then chmod 700 it")
    if found.st_mode & 0o055 and found.st_uid == me:
        place.chmod(0o700)


def load(folder: str | os.PathLike[str]) -> SecureFolder:
    """Return what is in a folder that `prepare` made. Raises ConfigError if it is not there."""
    place = Path(folder).absolute()
    for name in (CERTIFICATE, KEY, INNER_SECRET):
        if not (place / name).is_file():
            raise ConfigError(f"{place} has no {name}: name the folder `secure` in the store of a `server --secure`")
    return _loaded(place, is_new=False)


def _loaded(place: Path, *, is_new: bool) -> SecureFolder:
    admin = _secret(place / ADMIN_SECRET) if (place / ADMIN_SECRET).exists() else ""
    return SecureFolder(place, _secret(place / INNER_SECRET), admin, is_new)


def _secret(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(_SECRET_BYTES_MAX).decode("utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} cannot be read: {getattr(e, 'strerror', None) or 'no UTF-8 text'}") from None
    if not text:
        raise ConfigError(f"{path} is empty: a password in its first line is needed; or remove the file")
    return text


def _write_secret(path: Path) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        # A leading - would be taken for an option.
        file.write("R" + secrets.token_urlsafe(RANDOM_BYTES) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _pair_is_good(place: Path, names: Iterable[str]) -> bool:
    """Tell whether there is a pair that belongs together, is for all names, and does not end soon."""
    cert, key = place / CERTIFICATE, place / KEY
    if not cert.exists() or not key.exists():
        return False
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
        from cryptography import x509
    except (OSError, ssl.SSLError):
        return False
    except ImportError:
        return True  # Nothing could be made anew.
    try:
        found = x509.load_pem_x509_certificate(cert.read_bytes())
        sans = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    known = {str(san.value) for san in sans}
    wanted = {name.strip("[]") for name in names} - {"", "0.0.0.0", "::"}
    left = found.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return wanted <= known and left > datetime.timedelta(days=DAYS_LEFT_MIN)
