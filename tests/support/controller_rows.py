"""A script of raw requests to a controller, written out by hand, and what came back row by row.

The same script runs against Apache's controller and ours: the answers must be the same.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.patience import LIMIT_S
from tests.support.raw_frames import read_frame, write_frame

CLUSTER, SET = "c1", "broker-a"
ADDRESSES = {1: "127.0.0.1:11", 2: "127.0.0.1:21", 3: "127.0.0.1:31"}

ALTER, ELECT, REGISTER, REPLICAS, METADATA, SYNC_STATE = 1001, 1002, 1003, 1004, 1005, 1006
UPDATE_CONFIG, CONFIG, CLEAN, NEXT_ID, APPLY_ID, HEARTBEAT = 1009, 1010, 1011, 1012, 1013, 904
NOT_SERVED = 1007


class Row(NamedTuple):
    """One answer: its code, remark, ext fields and body (parsed if it is JSON)."""

    code: int
    remark: str | None
    ext: dict[str, str]
    body: Any


def _parsed(body: bytes) -> Any:
    """JSON in RocketMQ's dialect, sets in order; other bytes as text."""
    text = re.sub(r"([{,])(-?\d+):", r'\1"\2":', body.decode())
    try:
        return _in_order(json.loads(text)) if text else None
    except ValueError:
        return text


def _in_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _in_order(value[key]) for key in sorted(value)}
    return sorted(map(_in_order, value), key=str) if isinstance(value, list) else value


class Link:
    """One kept connection: its end is a broker's end to a controller."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._address = address
        self._socket = socket.create_connection((host, int(port)), LIMIT_S)
        self._opaque = 0

    def ask(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> Row:
        """Send a request and wait for its answer."""
        self._opaque += 1
        fields = {name: value if isinstance(value, str) else json.dumps(value) for name, value in (ext or {}).items()}
        head = {"code": code, "language": "JAVA", "version": 513, "opaque": self._opaque, "flag": 0}
        write_frame(self._socket, head | ({"extFields": fields} if fields else {}), body)
        answer, data = read_frame(self._socket)
        found = json.loads(json.dumps(answer).replace(self._address, "CONTROLLER"))
        ext = dict(sorted((found.get("extFields") or {}).items()))
        return Row(found["code"], found.get("remark") or None, ext, _parsed(data))

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


class Script:
    """One run of the script. `rows`: the answers by what was asked."""

    def __init__(self, address: str, links: ExitStack) -> None:
        self.rows: dict[str, Row] = {}
        self._address = address
        self._open = links
        self.admin = self.link()

    def link(self) -> Link:
        """One more connection."""
        return self._open.enter_context(closing(Link(self._address)))

    def ask(self, label: str, code: int, ext: dict[str, Any] | None = None, body: Any = None, link: Any = None) -> Row:
        """Send a request and keep the answer under its label."""
        assert label not in self.rows
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        row = self.rows[label] = (link or self.admin).ask(code, ext, content)
        return row

    def until(self, label: str, code: int, ext: dict[str, Any], found: Callable[[Row], bool]) -> None:
        """Ask until the answer is as wanted, and keep it."""
        deadline = time.monotonic() + LIMIT_S
        while not found(row := self.admin.ask(code, ext)):
            assert time.monotonic() < deadline, (label, row)
            time.sleep(0.05)
        self.rows[label] = row

    # -- requests ------------------------------------------------------------------------------------------------

    def next_id(self, label: str, name: str = SET) -> Row:
        return self.ask(label, NEXT_ID, {"clusterName": CLUSTER, "brokerName": name})

    def apply(self, label: str, broker_id: int, code: str = "", name: str = SET) -> Row:
        code = code or f"{ADDRESSES[broker_id]};{1700000000000 + broker_id}"
        ext = {"clusterName": CLUSTER, "brokerName": name, "appliedBrokerId": broker_id, "registerCheckCode": code}
        return self.ask(label, APPLY_ID, ext)

    def register(self, label: str, broker_id: int, address: str = "", name: str = SET) -> Row:
        ext = {"clusterName": CLUSTER, "brokerName": name, "brokerId": broker_id, "invokeTime": 0}
        return self.ask(label, REGISTER, ext | {"brokerAddress": address or ADDRESSES[broker_id]})

    def heartbeat(
        self, label: str, link: Link, broker_id: int, epoch: int, end: int, name: str = SET, **more: Any
    ) -> Row:
        ext = {"clusterName": CLUSTER, "brokerName": name, "brokerAddr": ADDRESSES[broker_id], "brokerId": broker_id}
        ext |= {"epoch": epoch, "maxOffset": end, "confirmOffset": end, "heartbeatTimeoutMills": 600_000}
        return self.ask(label, HEARTBEAT, ext | more, link=link)

    def elect(self, label: str, broker_id: int, designate: bool = False, name: str = SET) -> Row:
        ext = {"clusterName": CLUSTER, "brokerName": name, "brokerId": broker_id, "designateElect": designate}
        return self.ask(label, ELECT, ext | {"invokeTime": 0})

    def alter(self, label: str, master: int, epoch: int, members: list[int], set_epoch: int, name: str = SET) -> Row:
        ext = {"brokerName": name, "masterBrokerId": master, "masterEpoch": epoch, "invokeTime": 0}
        return self.ask(label, ALTER, ext, {"syncStateSet": members, "syncStateSetEpoch": set_epoch})

    def replicas(self, label: str, name: str = SET) -> Row:
        return self.ask(label, REPLICAS, {"brokerName": name})

    def sync_state(self, label: str, *names: str) -> Row:
        return self.ask(label, SYNC_STATE, None, list(names))

    def clean(self, label: str, ids: str | None = None, living: bool = False, name: str = SET, **more: Any) -> Row:
        ext = {"clusterName": CLUSTER, "brokerName": name, "isCleanLivingBroker": living, "invokeTime": 0} | more
        return self.ask(label, CLEAN, ext | ({"brokerControllerIdsToClean": ids} if ids is not None else {}))

    # -- the script ----------------------------------------------------------------------------------------------

    def unknown(self) -> None:
        """What is answered while no broker is known."""
        self.ask("metadata", METADATA)
        self.ask("a code that is not served", NOT_SERVED)
        self.replicas("replicas of an unknown set")
        self.sync_state("sync state of an unknown set", SET)
        self.ask("sync state of no sets", SYNC_STATE, None, [])
        self.ask("sync state without a body", SYNC_STATE)
        self.register("register in an unknown set", 1)
        self.elect("elect in an unknown set", 1)
        self.alter("alter in an unknown set", 1, 1, [1], 1)
        self.clean("clean an unknown set")
        self.clean("clean an id of an unknown set", "1")
        no_id = {"clusterName": CLUSTER, "brokerName": SET, "brokerAddr": ADDRESSES[1]}
        self.ask("heartbeat without an id", HEARTBEAT, no_id)

    def join(self) -> None:
        """Ids are given to three brokers; the first to ask becomes the master."""
        self.next_id("next id of an unknown set")
        self.apply("apply 2 in an unknown set", 2)
        self.apply("apply 1", 1)
        self.apply("apply 1 again with its code", 1)
        self.apply("apply 1 with another code", 1, "127.0.0.1:99;5")
        self.next_id("next id after 1")
        self.replicas("replicas without a master")
        self.sync_state("sync state without a master", SET)
        self.register("register 1 without a master", 1)
        self.register("register an unknown id", 3)
        self.alter("alter without a master", 1, 0, [1], 0)
        self.one = self.link()
        self.heartbeat("heartbeat of 1", self.one, 1, 0, 0)
        self.elect("first election", 1)
        self.elect("first election again", 1)
        self.replicas("replicas of master 1")
        self.apply("apply 2", 2)
        self.next_id("next id after 2")
        self.apply("apply 3", 3)
        self.register("register 2 with a live master", 2)
        self.register("register 3 with another address", 3, "127.0.0.1:32")
        self.sync_state("sync state of three, one alive", SET, "broker-b")

    def sets(self) -> None:
        """The master changes the in-sync set."""
        self.alter("alter to a member that is not alive", 1, 1, [1, 2], 1)
        self.two, self.three = self.link(), self.link()
        self.heartbeat("heartbeat of 2", self.two, 2, 1, 500, electionPriority=1)
        self.heartbeat("heartbeat of 3", self.three, 3, 1, 700)
        self.alter("alter to the same set", 1, 1, [1], 1)
        self.alter("alter by a slave", 2, 1, [1, 2], 1)
        self.alter("alter in another master epoch", 1, 2, [1, 2], 1)
        self.alter("alter in another set epoch", 1, 1, [1, 2], 0)
        self.alter("alter to an unknown id", 1, 1, [1, 9], 1)
        self.alter("alter to a set without the master", 1, 1, [2], 1)
        self.alter("alter to the empty set", 1, 1, [], 1)
        self.alter("alter to 1 and 2", 1, 1, [1, 2], 1)
        self.alter("alter to all", 1, 1, [3, 2, 1], 2)
        self.replicas("replicas of all in sync")
        self.elect("elect with a live master, asked by 2", 2)
        self.elect("elect with a live master, asked by the controller", -1)
        self.elect("elect the master by name", 1, designate=True)
        self.elect("elect an unknown id by name", 9, designate=True)
        self.elect("elect 2 by name", 2, designate=True)
        self.replicas("replicas of master 2")
        self.elect("elect one that is not in sync by name", 3, designate=True)
        self.alter("alter by the former master", 1, 1, [1, 2, 3], 3)
        self.alter("alter by master 2", 2, 2, [2, 1, 3], 4)
        self.sync_state("sync state of all in sync", SET)

    def failures(self) -> None:
        """Masters leave: the others are elected, at last none."""
        self.heartbeat("heartbeat of 1 far behind", self.one, 1, 2, 3_000_000_100)
        self.heartbeat("heartbeat of 3 ahead", self.three, 3, 2, 3_000_000_200)
        self.two.close()
        self.until("replicas once 2 left", REPLICAS, {"brokerName": SET}, lambda r: r.ext.get("masterEpoch") == "3")
        self.sync_state("sync state once 2 left", SET)
        self.clean("clean a set with a master")
        self.clean("clean a live id", "1;2")
        self.clean("clean no number", "1;x")
        self.clean("clean 2", "2")
        self.next_id("next id after 2 was cleaned")
        self.sync_state("sync state without 2", SET)
        self.elect("elect by 1, which is not in sync", 1)
        self.clean("clean all of a live set", living=True)
        self.replicas("replicas of a cleaned set")
        self.next_id("next id of a cleaned set")
        self.apply("apply 1 after all was cleaned", 1)
        self.register("register 1 after all was cleaned", 1)
        self.elect("first election after all was cleaned", 1)


def play(address: str) -> dict[str, Row]:
    """Run the script on the controller at an address; returns the answers by label."""
    with ExitStack() as links:
        script = Script(address, links)
        script.unknown()
        script.join()
        script.sets()
        script.failures()
        return script.rows


def comparable(rows: dict[str, Row]) -> dict[str, Any]:
    """The answers as the vector file holds them: of a remark only whether a refusal has one."""
    return {
        label: {"code": row.code, "remark": row.code != 0 and row.remark is not None, "ext": row.ext, "body": row.body}
        for label, row in rows.items()
    }


VECTORS = Path(__file__).parents[1] / "vectors" / "controller_5.5.0.json"


def recorded() -> dict[str, Any]:
    """What Apache's controller 5.5.0 answered."""
    return dict(json.loads(VECTORS.read_text("utf-8")))
