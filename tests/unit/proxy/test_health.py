"""Health and reflection, asked as tools ask: by the bytes on the wire."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from tests.unit.proxy.conftest import RawClient, RunningProxy
from tests.unit.proxy.consuming.test_consuming import wait_until

from rocketspark.proxy import health
from rocketspark.proxy.service import Service
from rocketspark.proxy.wire import messages

pytestmark = pytest.mark.shows("health, reflection v1 and v1alpha", "unfinished gRPC messages, reflection")


def text(field: int, value: str) -> bytes:
    return bytes([field << 3 | 2, len(value)]) + value.encode()


def test_health(client: RawClient) -> None:
    check = client.channel.unary_unary("/grpc.health.v1.Health/Check")
    assert check(b"", timeout=5) == b"\x08\x01"
    assert check(text(1, messages.SERVICE), timeout=5) == b"\x08\x01"
    with pytest.raises(grpc.RpcError) as caught:
        check(text(1, "nobody"), timeout=5)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    watch = client.channel.unary_stream("/grpc.health.v1.Health/Watch")(text(1, "nobody"), timeout=5)
    assert next(watch) == b"\x08\x03"
    watch.cancel()


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection(proxy: RunningProxy, client: RawClient, version: str) -> None:
    ask = client.channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")
    asked = [text(7, "*"), text(4, messages.SERVICE), text(3, "no.proto"), b""]
    names, files, missing, nothing = list(ask(iter(asked), timeout=5))
    assert messages.SERVICE.encode() in names
    assert files.startswith(b"\x12")
    # The answer's field 4 is a message of files, field 1 of it the bytes of each.
    at = 2 + files[1]
    assert files[at] == 4 << 3 | 2
    assert b"MessagingService" in files
    assert b"google/protobuf/duration.proto" in files
    for refused in (missing, nothing):
        assert b"nothing of that name" in refused


REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


def long(field: int, size: int) -> bytes:
    return bytes([field << 3 | 2, size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + b"h" * size


def test_a_long_question_is_not_read(client: RawClient) -> None:
    (answer,) = client.channel.stream_stream(REFLECTION)(iter([long(1, 1 << 20) + text(7, "*")]), timeout=5)
    assert b"nothing of that name" in answer
    assert len(answer) < 100
    (answer,) = client.channel.stream_stream(REFLECTION)(iter([long(1, 4000) + text(7, "*")]), timeout=5)
    assert messages.SERVICE.encode() in answer
    with pytest.raises(grpc.RpcError) as caught:
        client.channel.unary_unary("/grpc.health.v1.Health/Check")(long(2, 1 << 20), timeout=5)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


@pytest.mark.shows("mended: each question to the proxy's health or reflection that was none wrote a traceback")
def test_a_question_that_is_none_writes_nothing_into_the_log(
    client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    none, channel = b"\x0a\x05x", client.channel
    (answer,) = channel.stream_stream(REFLECTION)(iter([none]), timeout=5)
    assert b"nothing of that name" in answer
    watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(none, timeout=5)
    assert next(watch) == b"\x08\x03"
    watch.cancel()
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/grpc.health.v1.Health/Check")(none, timeout=5)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert not caplog.records


def test_so_many_ask_at_a_time_and_for_so_long(
    proxy: RunningProxy, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Three quarters are for one host.
    monkeypatch.setattr(proxy.server.tools._reflecting, "most", 3)
    monkeypatch.setattr(health, "REFLECTING_S", 0.5)
    end = threading.Event()

    def questions() -> Iterator[bytes]:
        yield text(7, "*")
        end.wait(60)

    ask = client.channel.stream_stream(REFLECTION)
    try:
        asking = [ask(questions(), timeout=30) for _ in range(2)]
        assert all(next(call) for call in asking)
        with pytest.raises(grpc.RpcError) as refused:
            list(ask(questions(), timeout=30))
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        for call in asking:
            with pytest.raises(grpc.RpcError) as ended:
                next(call)
            assert "long enough" in ended.value.details()
        assert next(ask(questions(), timeout=30))
    finally:
        end.set()


def test_all_who_ask_are_answered_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """75 that ask at once held all calls up for two seconds."""
    tools, sleep = health.Tools(Service()), asyncio.sleep
    inside = [0]
    spans: list[float] = []

    async def pause(span_s: float) -> None:
        spans.append(span_s)
        inside.append(inside[-1] + 1)
        await sleep(0)
        inside.append(inside[-1] - 1)

    async def questions() -> AsyncIterator[Any]:
        for _ in range(3):
            yield health._question("Ask")(text(7, "*"))

    async def one() -> int:
        return len([answer async for answer in tools._answers(questions())])

    async def main() -> list[int]:
        return await asyncio.gather(*(one() for _ in range(5)))

    monkeypatch.setattr(asyncio, "sleep", pause)
    assert asyncio.run(main()) == [3] * 5
    assert spans == [health.APART_S] * 15
    assert max(inside) == 1


def test_who_watches_leaves_places_to_other_hosts(
    proxy: RunningProxy, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = proxy.server.tools._watching
    monkeypatch.setattr(watching, "most", 3)
    watch = client.channel.unary_stream("/grpc.health.v1.Health/Watch")
    calls = [watch(b"", timeout=30) for _ in range(2)]
    assert [next(call) for call in calls] == [b"\x08\x01"] * 2
    with pytest.raises(grpc.RpcError) as refused:
        list(watch(b"", timeout=30))
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    watching.check("203.0.113.9")
    for call in calls:
        call.cancel()
    wait_until(lambda: watching.total == 0)


def test_no_message_is_unpacked_before_its_sender_is_known(client: RawClient) -> None:
    """128 KiB of a packed message would be 128 MiB."""
    send = client.channel.unary_unary(f"/{messages.SERVICE}/SendMessage")
    with pytest.raises(grpc.RpcError) as caught:
        send(b"\x0a\x00" * 1000, timeout=5, compression=grpc.Compression.Gzip)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
