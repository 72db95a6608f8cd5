"""Health and reflection, asked as tools ask: by the bytes on the wire."""

from __future__ import annotations

import grpc
import pytest
from tests.unit.proxy.conftest import RawClient, RunningProxy

from rocketspark.proxy.wire import messages


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
