"""A schema registry of the tests: Confluent's REST interface as far as a reader of bodies asks, over HTTP or TLS."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

_KEPT: list[socket.socket] = []


class RegistryServer:
    """Schemas by id and by subject. `paths`: what was asked; `failures`: status codes that the next answers have."""

    def __init__(self, user: str = "", password: str = "", tls: ssl.SSLContext | None = None, token: str = "") -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.paths: list[str] = []
        self.failures: list[int] = []
        self._wanted = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}" if user else None
        if token:
            self._wanted = f"Bearer {token}"
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, answer = registry.answer(self.path, self.headers.get("Authorization"))
                body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def add(
        self,
        subject: str,
        schema: str,
        kind: str = "AVRO",
        references: Sequence[tuple[str, str, int]] = (),
        schema_id: int | None = None,
    ) -> int:
        """Register a version of a subject; return its id."""
        number = schema_id or len(self.schemas) + 1
        names = [{"name": name, "subject": other, "version": version} for name, other, version in references]
        self.schemas[number] = {"schema": schema, "references": names} | (
            {} if kind == "AVRO" else {"schemaType": kind}
        )
        self.subjects.setdefault(subject, []).append(number)
        return number

    def answer(self, path: str, authorization: str | None) -> tuple[int, Any]:
        """Return the status and the JSON of an answer."""
        self.paths.append(path)
        if self.failures:
            return self.failures.pop(0), {"error_code": 50001, "message": "Error in the backend datastore"}
        if self._wanted is not None and authorization != self._wanted:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]
        if parts[:2] == ["schemas", "ids"]:
            found = self.schemas.get(int(parts[2]))
            return (200, found) if found else (404, {"error_code": 40403, "message": "Schema not found"})
        if parts[0] == "subjects" and parts[1] in self.subjects:
            ids = self.subjects[parts[1]]
            version = len(ids) if parts[3] == "latest" else int(parts[3])
            if 0 < version <= len(ids):
                number = ids[version - 1]
                return 200, {"subject": parts[1], "version": version, "id": number} | self.schemas[number]
        return 404, {"error_code": 40401, "message": "Subject not found"}

    def close(self) -> None:
        address = self._server.server_address[:2]
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
        # No other one gets this address: decoders keep what a registry told them for as long as the process lives.
        kept = socket.socket()
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(address)
        _KEPT.append(kept)


@contextmanager
def registry_server(**options: Any) -> Iterator[RegistryServer]:
    """A registry that ends with the block."""
    server = RegistryServer(**options)
    try:
        yield server
    finally:
        server.close()
