"""Calls count until gRPC has done with them: what is asked at once, and what is answered and not read, is bounded."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from tests.unit.proxy.conftest import RawClient, RunningProxy
from tests.unit.proxy.consuming.test_consuming import wait_until
from tests.unit.proxy.stalled import Stalled

from rocketspark.proxy import service as service_module
from rocketspark.proxy.health import HEALTH
from rocketspark.proxy.service import COUNTED_BYTES_MIN, REFUSAL_BYTES, AtWork, Work
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import Code
from rocketspark.proxy.wire.statuses import Refused

pytestmark = pytest.mark.shows(
    "gRPC: calls, streams, requests and unread answers of one host leave room for others; what is sent behind a request"
)

ACK = f"/{messages.SERVICE}/AckMessage"


class Context:
    """What gRPC gives a call: it ends when the test says so."""

    def __init__(self) -> None:
        self.done: list[Callable[[Any], None]] = []
        self.aborted = ""

    def add_done_callback(self, act: Callable[[Any], None]) -> None:
        self.done.append(act)

    async def abort(self, code: grpc.StatusCode, text: str) -> None:
        self.aborted = text
        raise grpc.aio.AbortError

    def end(self) -> None:
        for act in self.done:
            act(self)


async def begun(calls: AtWork, host: str, size: int) -> tuple[Context, Work]:
    context = Context()
    work = calls.begin(context)
    work.host, work.address = host, f"{host}:1"
    await calls.admit(work, context, size)
    return context, work


def test_one_host_leaves_calls_to_others_and_a_refusal_counts_too() -> None:
    async def main() -> None:
        calls = AtWork(4)
        calls.refusals.most = 5 * REFUSAL_BYTES
        first = [await begun(calls, "a", 1) for _ in range(3)]
        refused = []
        for _ in range(3):
            context = Context()
            work = calls.begin(context)
            work.host = "a"
            with pytest.raises(Refused, match="as many calls are at work") as caught:
                await calls.admit(work, context, 1)
            assert caught.value.code == Code.TOO_MANY_REQUESTS
            refused.append(context)
        # Nothing is left for an answer.
        with pytest.raises(grpc.aio.AbortError):
            await begun(calls, "a", 1)
        await begun(calls, "b", 1)
        for context in (*(context for context, _ in first), *refused):
            context.end()
        assert (calls.calls.of_host, calls.refusals.total) == ({"b": 1}, 0)

    asyncio.run(main())


def test_the_addresses_of_one_network_of_ipv6_are_one_host() -> None:
    async def main() -> None:
        calls = AtWork(4)
        held = [await begun(calls, f"2001:db8::{number}", 1) for number in range(3)]
        with pytest.raises(Refused, match="as many calls are at work"):
            await begun(calls, "2001:db8::ffff", 1)
        await begun(calls, "2001:db8:0:1::1", 1)
        for context, _ in held:
            context.end()
        assert calls.calls.of_host == {"2001:db8:0:1::/64": 1}

    asyncio.run(main())


def test_large_requests_and_answers_count_until_the_call_is_over() -> None:
    async def main() -> None:
        calls = AtWork()
        calls.requests.most = calls.answers.most = 4 * COUNTED_BYTES_MIN
        context, work = await begun(calls, "a", 3 * COUNTED_BYTES_MIN)
        with pytest.raises(Refused, match="as much is asked"):
            await begun(calls, "a", COUNTED_BYTES_MIN)
        small, other = await begun(calls, "a", COUNTED_BYTES_MIN - 1)
        calls.answered(work, 3 * COUNTED_BYTES_MIN)
        with pytest.raises(Refused, match="as much waits"):
            calls.answered(other, COUNTED_BYTES_MIN)
        context.end()
        small.end()
        assert not calls.requests.total
        assert not calls.answers.total
        assert not calls._answered

    asyncio.run(main())


def test_who_leaves_an_answer_unread_loses_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        calls, closed = AtWork(), list[str]()
        calls.close = closed.append
        _, late = await begun(calls, "a", 1)
        calls.answered(late, 1)
        calls.sweep()
        assert not closed
        monkeypatch.setattr(service_module, "UNREAD_S", 0.0)
        _, waits = await begun(calls, "b", 1)
        await asyncio.sleep(0.001)
        calls.sweep()
        assert closed == ["a:1"]
        assert not waits.answered_s

    asyncio.run(main())


def test_answers_that_nobody_reads_are_refused_past_their_bound_and_end(
    proxy: RunningProxy, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An acknowledgement's answer says again what it was asked, 4 MiB of it."""
    calls = proxy.server.service.work
    wait_until(lambda: not calls.calls.total)
    monkeypatch.setattr(calls.answers, "most", 40_000)
    entry = {"message_id": "x" * 8000, "receipt_handle": "x"}
    request = messages.AckMessageRequest(group={"name": "G"}, topic={"name": "T"}, entries=[entry])
    stalled = Stalled(proxy.address)
    for _ in range(6):
        stalled.call(ACK, request.SerializeToString())
    # Three of 8 KB and three refusals.
    wait_until(lambda: len(calls._answered) == 6)
    assert (calls.calls.total, calls.answers.total // 8000) == (6, 3)
    monkeypatch.setattr(service_module, "UNREAD_S", 0.0)
    proxy.run(swept(calls))
    wait_until(lambda: not calls.calls.total)
    assert (calls.answers.total, calls.requests.total) == (0, 0)
    while stalled.socket.recv(1 << 16):
        pass
    stalled.socket.close()
    assert client.call("AckMessage", request).status.code == Code.INVALID_RECEIPT_HANDLE


def swept(calls: AtWork) -> Callable[[], Any]:
    async def sweep() -> None:
        await asyncio.sleep(0.001)
        calls.sweep()

    return sweep


def test_checks_of_health_that_nobody_reads_count_as_calls(proxy: RunningProxy) -> None:
    calls = proxy.server.service.work
    wait_until(lambda: not calls.calls.total)
    stalled = Stalled(proxy.address)
    for _ in range(3):
        stalled.call(f"/{HEALTH}/Check", b"")
    wait_until(lambda: calls.calls.total == len(calls._answered) == 3)
    stalled.socket.close()
    wait_until(lambda: not calls.calls.total)


def test_what_is_sent_behind_a_request_is_not_taken(proxy: RunningProxy) -> None:
    """A receive waits for some seconds; gRPC would take up to 64 MiB that nobody asks for meanwhile."""
    calls = proxy.server.service.work
    wait_until(lambda: not calls.calls.total)
    stalled = Stalled(proxy.address)
    request = b""
    stalled.call(
        f"/{messages.SERVICE}/ReceiveMessage", request, behind=b"\0" + struct.pack(">I", 1 << 20) + b"x" * 60_000
    )
    wait_until(lambda: calls.calls.total == 1)
    seen = stalled.frames_until_ping()
    settings = [payload for kind, stream, payload in seen if kind == 4 and payload]
    told = {key: value for payload in settings for key, value in struct.iter_unpack(">HI", payload)}
    # 4: the window of a stream's beginning, 65,535 where nothing is told.
    assert told.get(4, 65_535) <= 1 << 16
    given = [int.from_bytes(payload, "big") for kind, stream, payload in seen if (kind, stream) == (8, 1)]
    assert sum(given) < 1 << 16
    stalled.socket.close()
    wait_until(lambda: not calls.calls.total)
