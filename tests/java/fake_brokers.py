"""Brokers that a test plays by hand, frame by frame: they register at a NameServer and hear what it tells them.

Nothing of our code takes part, so that the same script runs against the official NameServer and ours.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
import zlib
from typing import Any, NamedTuple

from tests.java.apache import Answer
from tests.support.patience import LIMIT_S
from tests.support.raw_frames import read_frame, write_frame

CLUSTER = "c"


class Notice(NamedTuple):
    """A request that the NameServer sent to a broker."""

    code: int
    flag: int
    ext_fields: dict[str, str]


class Link:
    """A connection to a NameServer that stays open from request to request."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), LIMIT_S)
        self._opaque = 0

    def ask(
        self, code: int, ext_fields: dict[str, str] | None = None, body: bytes = b"", *, oneway: bool = False
    ) -> Answer | None:
        """One request; its answer, None for a oneway one."""
        self._opaque += 1
        fields = {"code": code, "language": "JAVA", "version": 513, "opaque": self._opaque, "flag": 2 if oneway else 0}
        write_frame(self._socket, fields | {"extFields": ext_fields or {}}, body)
        if oneway:
            return None
        answer, found = read_frame(self._socket)
        assert answer["opaque"] == self._opaque
        return Answer(answer["code"], answer.get("extFields") or {}, found)

    def ended(self) -> bool:
        """Wait for the other side to end the connection."""
        return self._socket.recv(1) == b""

    def close(self) -> None:
        self._socket.close()


class FakeBroker:
    """A broker with a port at which it hears notices, and one connection to the NameServer of the moment."""

    def __init__(self, name: str = "a") -> None:
        self.name = name
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.ha_address = f"127.0.0.1:{self._listening.getsockname()[1] + 1}"
        self.notices: queue.Queue[Notice] = queue.Queue()
        self._links: list[socket.socket] = []
        self._link: Link | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def connect(self, namesrv: str) -> None:
        """Open the connection to a NameServer; the one before is closed."""
        self.leave()
        self._link = Link(namesrv)

    def leave(self) -> None:
        """Close the connection to the NameServer."""
        if self._link is not None:
            self._link.close()

    @property
    def link(self) -> Link:
        assert self._link is not None
        return self._link

    def identity(self, broker_id: int) -> dict[str, str]:
        """The fields that name this broker."""
        return {
            "brokerName": self.name,
            "brokerAddr": self.address,
            "clusterName": CLUSTER,
            "brokerId": str(broker_id),
        }

    def register(
        self,
        broker_id: int,
        topics: dict[str, int],
        *,
        counter: int = 1,
        state_version: int = 0,
        acting: bool | None = True,
        expiry_ms: int = 600_000,
        zone: str | None = None,
    ) -> Answer:
        """REGISTER_BROKER with topics and their permissions."""
        body = json.dumps(registration(topics, counter, state_version)).encode()
        fields = {
            **self.identity(broker_id),
            "haServerAddr": self.ha_address,
            "heartbeatTimeoutMillis": str(expiry_ms),
            "compressed": "false",
            "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
        }
        if acting is not None:
            fields["enableActingMaster"] = str(acting).lower()
        if zone is not None:
            fields["__ZONE_NAME"] = zone
        answer = self.link.ask(103, fields, body)
        assert answer is not None
        return answer

    def heard(self) -> dict[str, str]:
        """The fields of the next 905 that came, which has to be oneway."""
        notice = self.notices.get(timeout=LIMIT_S)
        assert (notice.code, notice.flag & 3) == (905, 2)
        return notice.ext_fields

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listening.accept()
            except OSError:
                return
            self._links.append(link)
            threading.Thread(target=self._hear, args=(link,), daemon=True).start()

    def _hear(self, link: socket.socket) -> None:
        try:
            while True:
                header, _ = read_frame(link)
                self.notices.put(Notice(header["code"], header["flag"], header.get("extFields") or {}))
        except (OSError, ConnectionError):
            return

    def close(self) -> None:
        """Close every socket."""
        self.leave()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for link in self._links:
            link.close()


def registration(topics: dict[str, int], counter: int, state_version: int) -> dict[str, Any]:
    """The body of a registration: topics with their permissions, 4 queues each."""
    return {
        "filterServerList": [],
        "topicConfigSerializeWrapper": {
            "dataVersion": {"counter": counter, "stateVersion": state_version, "timestamp": 1},
            "topicConfigTable": {
                name: {
                    "order": False,
                    "perm": perm,
                    "readQueueNums": 4,
                    "topicFilterType": "SINGLE_TAG",
                    "topicName": name,
                    "topicSysFlag": 0,
                    "writeQueueNums": 4,
                }
                for name, perm in topics.items()
            },
        },
    }
