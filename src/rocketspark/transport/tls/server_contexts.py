"""A server's certificate, and the new one once its files are replaced. Rule: what cannot be used changes nothing.

Connections that are open keep what they began with.
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from rocketspark import machine
from rocketspark.errors import ConfigError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.transport.loose_threads import in_thread
from rocketspark.transport.tls import certificate_files
from rocketspark.transport.tls.settings import TlsSettings

log = LimitedLog("rocketspark.transport")

# Rule: FileWatchService, 5.x.
LOOK_S = 0.5
# A file whose time is younger may change once more without its time showing it.
YOUNG_S = 1.0

Stamps = tuple[certificate_files.Stamp | None, ...]


class ServerContexts:
    """A server's TLS context for new connections, made anew when the certificate's files change; None without a
    certificate.

    `alpn`: protocols offered to clients that ask which ones the server speaks (none for remoting).
    """

    def __init__(self, settings: TlsSettings, *, alpn: Sequence[str] = ()) -> None:
        self.settings = settings
        self._alpn = list(alpn)
        self.context: ssl.SSLContext | None = None
        # Of the files, before they were read.
        self._known: Stamps | None = None
        self._watching: asyncio.Task[None] | None = None
        self._complaint = ""

    def load(self, names: Iterable[str] = ()) -> None:
        """Read the certificate's files. Raises ConfigError if they cannot be used.

        `names`: the names and addresses that the test mode's certificate is for.
        """
        s = self.settings
        self._known = self._stamps()
        if s.mode == "disabled":
            return
        if s.test_mode:
            self.context = self._of_test_mode(list(names))
        elif s.cert_path or s.key_path:
            self.context = self._made()
        elif s.mode == "enforcing":
            raise ConfigError(
                "tls.server.mode=enforcing needs a certificate: tls.server.certPath and tls.server.keyPath, or"
                " tls.test.mode.enable=true for a try"
            )

    def _of_test_mode(self, names: list[str]) -> ssl.SSLContext:
        pair = certificate_files.make_pair(names)
        log.info(
            "clients that use TLS get a certificate that was made for this start alone, which nobody can check (its"
            " names: %s); give your own by --tls-cert and --tls-key, of a proxy by --port-tls-cert and --port-tls-key",
            ", ".join(pair.names),
        )
        with tempfile.TemporaryDirectory() as folder:
            cert, key = certificate_files.write_pair(pair, Path(folder))
            return self._made(str(cert), str(key))

    def _made(self, cert: str = "", key: str = "") -> ssl.SSLContext:
        context = _context(self.settings, cert, key)
        if self._alpn:
            context.set_alpn_protocols(self._alpn)
        return context

    def watch(self) -> None:
        """Look from now on, in the background, whether the files were replaced."""
        s = self.settings
        if self.context is not None and self._watching is None and not s.test_mode:
            self._watching = asyncio.create_task(self._watch())

    def _stamps(self) -> Stamps:
        s = self.settings
        return tuple(certificate_files.stamp(path) for path in (s.cert_path, s.key_path, s.trust_path))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            found = self._stamps()
            if found == self._known:
                continue
            is_taken = await self._reload()
            newest_s = max((stamp[0] for stamp in found if stamp), default=0) / 1e9
            # What could not be read, for want of a descriptor say, may be readable soon without a change.
            self._known = found if is_taken and abs(machine.time() - newest_s) >= YOUNG_S else None

    async def _reload(self) -> bool:
        """Take the files as they are now; tells whether they could be used."""
        try:
            # Nobody waits at the end for a disk that hangs.
            context = await in_thread(self._made, "rocketspark-certificates")
        except Exception as e:
            # Whatever it is: later files are looked at too.
            text = str(e) if isinstance(e, ConfigError) else f"{type(e).__name__}: {e}"
            if text != self._complaint:
                self._complaint = text
                log.warning("the new certificate cannot be used, the one before stays: %s", text)
            return False
        self._complaint = ""
        self.context = context
        log.info("new certificate from %s: new connections get it", self.settings.cert_path)
        return True

    def stop(self) -> None:
        """Stop watching the certificate files."""
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None


def _context(s: TlsSettings, cert: str = "", key: str = "") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    s.limit(context)
    names = ("tls.server.certPath", "tls.server.keyPath")
    certificate_files.load_pair(context, cert or s.cert_path, key or s.key_path, s.key_password, names)
    if s.need_client_auth != "none":
        certificate_files.trust(context, s.trust_path, "tls.server.trustCertPath")
        required = s.need_client_auth == "require"
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context
