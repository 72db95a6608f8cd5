"""Every port that listens with `--secure`, of every command in every mode, as a stranger finds it.

He is plain, half open, or in TLS without keys, and speaks each protocol that a port of ours may speak. Rule: he is told
nothing but that he may not, and what a NameServer tells everybody.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.patience import LIMIT_S

from rocketspark.broker.access import secure_folder
from rocketspark.broker.replication.link import greeting

pytestmark = pytest.mark.shows(
    "every port with --secure, as a stranger finds it",
    "controller and NameServer with a gate, an audit and `--secure`",
)

BROKER = {"28": 16, "34": 16, "10": 16, "310": 16, "25": 16}
# What everybody may ask a NameServer, over TLS.
NAMESRV = {"106": 0, "318": 16, "103": 16, "205": 16}
CONTROLLER = {str(code): 16 for code in (1001, 1002, 1003, 1004, 1005, 1006, 1009, 1010, 1011, 1012, 1013, 904)}
PROXY = {"34": 16, "310": 16}
HA_WORDS = [
    bytes(8),
    struct.pack(">ihhq", 1, 0, 1, 7),
    struct.pack(">ihhq", 1, 0, 0, 2) + struct.pack(">iq", 2, 0),
    greeting.frame(greeting.HELLO, bytes(16)) + greeting.frame(greeting.PROOF, bytes(32) + b"rocketspark-inner"),
    greeting.frame(greeting.PROOF, bytes(32) + b"rocketspark-inner"),
]


def frame(code: str) -> bytes:
    fields = {"topic": "T", "b": "T", "namesrv": "x", "brokerName": "broker-a", "clusterName": "DefaultCluster"}
    ext = fields | {"brokerId": "0", "masterBrokerId": "1", "masterEpoch": "1", "brokerAddr": "127.0.0.1:1"}
    header = {"code": int(code), "extFields": ext, "flag": 0, "language": "JAVA", "opaque": 1, "version": 513}
    text = json.dumps(header).encode()
    return struct.pack(">II", 4 + len(text) + 2, len(text)) + text + b"{}"


def heard(port: int, words: bytes, *, tls: bool, half: bool = False, answered: bool = False) -> bytes:
    """Say something; return all that comes until the other side ends, or says nothing more for a moment.

    `answered`: the other side has to say something, however long a busy machine takes for it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    came = b""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), LIMIT_S) as plain,
        context.wrap_socket(plain) if tls else plain as link,
    ):
        link.sendall(words)
        if half:
            link.shutdown(socket.SHUT_WR)
        link.settimeout(LIMIT_S if answered else 1.5)
        while piece := link.recv(1 << 16):
            came += piece
            if answered and is_whole(came):
                break
    return came


def is_whole(answer: bytes) -> bool:
    return len(answer) >= 8 and len(answer) >= 4 + int.from_bytes(answer[:4], "big")


def code_of(answer: bytes) -> int | None:
    if not is_whole(answer):
        return None
    size = int.from_bytes(answer[5:8], "big")
    return int(json.loads(answer[8 : 8 + size])["code"])


def listening(pid: int) -> set[int]:
    """The ports that a process and its children listen on."""
    pids, found = [pid], set()
    for each in pids:
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{each}/task").iterdir():
                pids += map(int, (thread / "children").read_text().split())
        inodes = set()
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{each}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes.add(os.readlink(link))
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{each}/net/{table}").read_text().splitlines()[1:]:
                parts = line.split()
                if parts[3] == "0A" and f"socket:[{parts[9]}]" in inodes:
                    found.add(int(parts[1].rpartition(":")[2], 16))
    return found


@contextlib.contextmanager
def command(*arguments: str) -> Iterator[tuple[set[int], dict[str, list[int]]]]:
    """Run a command; gives the ports it listens on, and those that its line names, by kind."""
    line = [sys.executable, "-m", "rocketspark.cli.main", *arguments, "--log-level", "error"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ROCKETMQ_")}
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        named = {
            kind: [int(port) for port in re.findall(r":(\d+)", addresses)]
            for kind, addresses in re.findall(r"(\w+)=(\S+)", ready)
        }
        assert named, ready
        yield listening(process.pid), named
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def told(words: bytes) -> bool:
    """Tell whether the door of replication said more than that it does not know somebody."""
    challenge = greeting.frame(greeting.CHALLENGE, bytes(16))[:7]
    rest = words[len(challenge) + 16 :] if words.startswith(challenge) else words
    return rest not in (b"", greeting.frame(greeting.REFUSED, b"this broker is not known to it"))


def wrong(pool: ThreadPoolExecutor, port: int, kind: str) -> Iterator[str]:
    """Try all words at once; give those with which a stranger got something."""
    answers = {"namesrv": NAMESRV, "controller": CONTROLLER, "broker": BROKER, "grpc": PROXY}.get(kind, {})
    spoken = [*map(frame, answers or BROKER), *HA_WORDS]
    plain = [(words, pool.submit(heard, port, words, tls=False)) for words in spoken]
    plain += [(b"half", pool.submit(heard, port, frame("28")[:20], tls=False, half=True))]
    asked = [(code, pool.submit(heard, port, frame(code), tls=True, answered=True)) for code in answers]
    door = [(words, pool.submit(heard, port, words, tls=True)) for words in HA_WORDS]
    for words, future in plain:
        if future.result():
            yield f"{kind} {port} answers plain to {words!r}: {future.result()!r}"
    for code, future in asked:
        if code_of(future.result()) != answers[code]:
            yield f"{kind} {port} answers {code_of(future.result())} to {code}"
    for words, future in door:
        if told(future.result()):
            yield f"{kind} {port} tells to {words!r}: {future.result()!r}"


MODES = {
    "server, gRPC": ("server", "--namesrv-port", "0", "--broker-port", "0", "--grpc-port", "0"),
    "server, two brokers": ("server", "--namesrv-port", "0", "--broker-port", "0", "--no-grpc", "--brokers", "2"),
    "server, replicas": (
        *("server", "--namesrv-port", "0", "--broker-port", "0", "--no-grpc", "--replicas", "2"),
        *("--controller-port", "0"),
    ),
}
ALONE = {
    "namesrv": ("namesrv", "--port", "0"),
    "controller": ("controller", "--listen", "127.0.0.1:0"),
    "broker": ("broker", "--port", "0", "-n", "127.0.0.1:1"),
}


@pytest.mark.parametrize("mode", [*MODES, *ALONE])
def test_a_stranger_finds_no_port_that_tells_him_anything(tmp_path: Path, mode: str) -> None:
    if mode in MODES:
        arguments = [*MODES[mode], "--secure", "--store", str(tmp_path)]
    else:
        folder = secure_folder.prepare(tmp_path / "secure").folder
        arguments = [*ALONE[mode], "--secure", str(folder)]
        arguments += [] if mode == "namesrv" else ["--store", str(tmp_path / "store")]
    with command(*arguments) as (ports, named):
        served = {port: kind for kind, its in named.items() for port in its}
        vips = {port - 2: "broker" for port in named.get("broker", []) if port - 2 in ports}
        others = ports - served.keys() - vips.keys()
        assert served.keys() <= ports
        if "replicas" not in mode and mode in MODES:
            # No port of replication: there are no replicas. The proxy has an inner port, of what passed its outer one.
            assert len(others) == ("grpc" in named)
            others = set()
        asked = [(port, served.get(port) or vips.get(port, "replication")) for port in {*served, *vips, *others}]
        with ThreadPoolExecutor(64) as pool:
            assert [found for each in asked for found in wrong(pool, *each)] == []
