"""What shells complete: names of topics, groups and brokers of the cluster that a command line means, and of contexts.

Rule: a name comes within 0.3 s or not at all; nothing is printed, no error told, no command run for a key, and a name
that a shell could take for more than a word is left out. Little is imported: a shell waits for all of it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import typer

from rocketspark.cli.options import ClusterAccess

# The time for asking the cluster, and how many names a person can still look through.
ANSWER_S = 0.3
NAMES_MAX = 1000
_SAFE = re.compile(r"[A-Za-z0-9_%][A-Za-z0-9_.%-]{0,254}")
_OWN = (
    *("%", "RMQ_SYS_", "rmq_sys_", "TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "SELF_TEST_TOPIC"),
    *("OFFSET_MOVED_EVENT", "TRANS_CHECK_MAX_TIME_TOPIC", "SYNC_BROKER_MEMBER_"),
)


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the topics that begin so; RocketMQ's own only once there is a beginning."""
    return [name for name in _asked(ctx, incomplete, _topics) if incomplete or not name.startswith(_OWN)]


def groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the consumer groups that begin so, without RocketMQ's own."""
    from rocketspark.model.namespace import is_system_group

    return [name for name in _asked(ctx, incomplete, _groups) if not is_system_group(name)]


def brokers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of brokers that begin so."""
    return _asked(ctx, incomplete, lambda access: list(_brokers(access)))


def contexts(incomplete: str) -> list[str]:
    """Return the names of contexts that begin so."""
    from rocketspark.cli.contexts import read_contexts
    from rocketspark.errors import RocketSparkError

    try:
        return sorted(name for name in read_contexts().contexts if name.startswith(incomplete))
    except RocketSparkError:
        return []


_NEEDED = (
    *("cli.passwords", "protocol.json.bodies", "protocol.json.java_json"),
    *("transport.connections", "transport.request_signer", "transport.tls.client_tls"),
)
# By the name of a command's argument or option.
COMPLETED: dict[str, Callable[..., list[str]]] = {
    "topic": topics,
    "group": groups,
    "broker": brokers,
    "context": contexts,
}


def _asked(ctx: typer.Context, incomplete: str, ask: Callable[[_Cluster], list[str]]) -> list[str]:
    """Return the names that begin so and are safe in a shell; none if they do not come in time."""
    found: list[str] = []

    def find() -> None:
        with contextlib.suppress(Exception):
            found.extend(ask(_Cluster(_access(ctx))))

    # A name server's address may be a name, and nothing ends a look for that.
    with contextlib.redirect_stderr(io.StringIO()):
        # Not in the time for asking.
        for module in _NEEDED:
            importlib.import_module(f"rocketspark.{module}")
        finding = threading.Thread(target=find, daemon=True)
        finding.start()
        finding.join(ANSWER_S)
    names = () if finding.is_alive() else {n for n in found if n.startswith(incomplete) and _SAFE.fullmatch(n)}
    return sorted(names)[:NAMES_MAX]


def _access(ctx: typer.Context) -> ClusterAccess:
    given = {name: ctx.params[name] for name in ClusterAccess._fields if name in ctx.params}
    sources = {name: getattr(ctx.get_parameter_source(name), "name", "") for name in given}
    named = {where: {n for n, source in sources.items() if source == where} for where in ("COMMANDLINE", "ENVIRONMENT")}
    return ClusterAccess(**given).in_context(named["COMMANDLINE"], named["ENVIRONMENT"])


class _Cluster:
    """A cluster that is asked by one request on each connection."""

    def __init__(self, at: ClusterAccess) -> None:
        from rocketspark.transport.connections import parse_addresses
        from rocketspark.transport.request_signer import RequestSigner
        from rocketspark.transport.tls.client_tls import client_tls

        if at.secret_key_command:
            raise PermissionError("a keyring may ask for a password")
        options = at.client_options()
        self._end_s = time.monotonic() + ANSWER_S
        keys = [options.pop(name, "") for name in ("access_key", "secret_key", "security_token")]
        self._signer = RequestSigner(*keys) if keys[0] else None
        self._tls = client_tls(options.pop("use_tls", False), **options)
        self.namesrvs = parse_addresses(at.namesrv)

    def ask(self, address: str, code: int, kind: type[Any]) -> Any:
        """Return the body of a reply. Raises OSError, RocketSparkError."""
        from rocketspark.protocol import frames
        from rocketspark.protocol.json import java_json
        from rocketspark.transport.connections import parse_address
        from rocketspark.transport.request_frames import request

        ext: dict[str, str] = {}
        if self._signer is not None:
            self._signer.before_request(address, code, ext, b"")
        host, port = parse_address(address)
        with contextlib.ExitStack() as opened:
            connection = opened.enter_context(socket.create_connection((host, port), self._left_s()))
            if self._tls is not None:
                connection = opened.enter_context(
                    self._tls.context().wrap_socket(connection, server_hostname=self._tls.name_of(host))
                )
            connection.sendall(request(code, ext, opaque=1))
            length = self._read(connection, 4)
            total = int.from_bytes(length, "big")
            frames.check_length(total)
            frame = frames.decode(length + self._read(connection, total))
        if frame.code:
            raise ValueError(f"code {frame.code}")
        return java_json.decode(frame.body, kind)

    def _left_s(self) -> float:
        return max(0.001, self._end_s - time.monotonic())

    def _read(self, connection: socket.socket, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            connection.settimeout(self._left_s())
            part = connection.recv(count - len(data))
            if not part:
                raise ConnectionError("the connection was closed")
            data += part
        return bytes(data)


def _topics(cluster: _Cluster) -> list[str]:
    from rocketspark.protocol.codes import RequestCode
    from rocketspark.protocol.json.bodies import TopicList

    code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
    names: list[str] = cluster.ask(cluster.namesrvs[0], code, TopicList).topic_list
    return names


def _brokers(cluster: _Cluster) -> dict[str, list[str]]:
    """Return the addresses of each broker name's brokers, the master first."""
    from rocketspark.protocol.codes import RequestCode
    from rocketspark.protocol.json.bodies import ClusterInfo

    told = cluster.ask(cluster.namesrvs[0], RequestCode.GET_BROKER_CLUSTER_INFO, ClusterInfo).broker_addr_table
    return {name: [address for _, address in sorted(one.broker_addrs.items())] for name, one in told.items()}


def _groups(cluster: _Cluster) -> list[str]:
    from rocketspark.protocol.codes import RequestCode
    from rocketspark.protocol.json.bodies import GroupConfigTable

    def ask() -> Iterator[str]:
        for addresses in _brokers(cluster).values():
            code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
            yield from cluster.ask(addresses[0], code, GroupConfigTable).subscription_group_table

    return list(ask())
