"""What protection costs: sends and connections over TLS, ours beside the Java broker, with certificates for tries."""

from __future__ import annotations

import json
import ssl
import time
from functools import partial

from bench import raw_send
from bench.load import Load, connect, pump
from bench.measure import compare
from bench.peers import Servers, apache, both, end_rows, ours
from bench.plan import Plan
from bench.report import Row, show
from rocketspark.protocol import frames
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.frames import Frame
from rocketspark.transport.tls import ClientTls

KEY = ("admin", "secret-of-admin")
WINDOWS = (1, 64, 256)
# Little is done for it.
ASKED = frames.encode(Frame(code=int(RequestCode.GET_MIN_OFFSET), opaque=1, ext={"topic": "none", "queueId": "0"}))


def trusting() -> ssl.SSLContext:
    """Of a client that checks nothing: what is measured is the server."""
    return ClientTls(verify="none").context()


def send(servers: Servers, *, window: int, seconds: float, tls: ssl.SSLContext | None) -> Load:
    """One round of sends."""
    return raw_send.run(servers.broker, raw_send.TOPIC, window=window, body_bytes=128, seconds=seconds, tls=tls)


def come_and_go(servers: Servers, *, seconds: float, tls: ssl.SSLContext | None) -> Load:
    """Connections one after the other, one request each."""
    began, cpu_s, done = time.perf_counter(), time.thread_time(), 0
    while time.perf_counter() - began < seconds:
        with connect(servers.broker, tls) as s:
            s.sendall(ASKED)
            s.recv(1 << 16)
        done += 1
    return Load(done, 0, time.perf_counter() - began, time.thread_time() - cpu_s)


def run(plan: Plan) -> list[Row]:
    """Rows of TLS, then of signatures."""
    return tls_rows(plan) + signed_rows(plan)


def guarded(strategy: str, more: dict[str, str]) -> dict[str, str]:
    """What a broker.conf says of access control."""
    auth = "org.apache.rocketmq.auth"
    return more | {
        "authenticationEnabled": "true",
        "authenticationProvider": f"{auth}.authentication.provider.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": f"{auth}.authentication.provider.LocalAuthenticationMetadataProvider",
        "authenticationStrategy": f"{auth}.authentication.strategy.{strategy}AuthenticationStrategy",
        "authorizationEnabled": "true",
        "authorizationProvider": f"{auth}.authorization.provider.DefaultAuthorizationProvider",
        "authorizationMetadataProvider": f"{auth}.authorization.provider.LocalAuthorizationMetadataProvider",
        "authorizationStrategy": f"{auth}.authorization.strategy.{strategy}AuthorizationStrategy",
        "initAuthenticationUser": json.dumps({"username": KEY[0], "password": KEY[1]}),
    }


def signed_rows(plan: Plan) -> list[Row]:
    """Sends whose signatures are checked, each one or once a connection."""
    seconds = plan.of(1.0, 0.5, 0.05)
    rows: list[Row] = []
    for strategy in ("Stateless", "Stateful"):
        mine_config, java_config = guarded(strategy, plan.config), guarded(strategy, {})
        with both(plan.alone, ours(config=mine_config), apache(java_config)) as (mine, java):
            for servers in (java, mine):
                for window in plan.of((1, 64, 256), (64,), ()) if servers else ():
                    send_signed(servers, window=window, seconds=2.0)
            for window in WINDOWS:
                act = partial(send_signed, window=window, seconds=seconds)
                name = f"send, signed, {strategy.lower()}, {window} in flight"
                rows.append(compare(name, "msg/s", plan.rounds(5), mine, java, act))
                show(rows[-1:], heading=len(rows) == 1)
    return rows


def send_signed(servers: Servers, *, window: int, seconds: float) -> Load:
    """One round of sends with a signature each."""
    frames = raw_send.stream(raw_send.TOPIC, 128, key=KEY)
    return pump(servers.broker, frames, window=window, seconds=seconds)


def tls_rows(plan: Plan) -> list[Row]:
    """Sends by their number in flight, and connections, plain and over TLS."""
    seconds = plan.of(1.0, 0.5, 0.05)
    rows: list[Row] = []
    ways = (("TLS", trusting()), ("plain", None))
    with both(plan.alone, ours("--tls-test", config=plan.config)) as (mine, java):
        for servers in (java, mine):
            for window in plan.of((1, 64, 256), (64,), ()) if servers else ():
                send(servers, window=window, seconds=2.0, tls=ways[0][1])
        for way, tls in ways:
            for window in WINDOWS:
                act = partial(send, window=window, seconds=seconds, tls=tls)
                rows.append(compare(f"send, {way}, {window} in flight", "msg/s", plan.rounds(5), mine, java, act))
                show(rows[-1:], heading=len(rows) == 1)
            visit = partial(come_and_go, seconds=seconds, tls=tls)
            rows.append(compare(f"connections, {way}, a request each", "conn/s", plan.rounds(5), mine, java, visit))
            show(rows[-1:], heading=False)
        ends = end_rows(mine, java)
        show(ends, heading=False)
    return rows + ends
