"""The second tier in an object store (moto's S3), and a broker that does not reach it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.live.support import TOPIC, connected, create, create_group, pull, run, until
from tests.live.test_broker_retention import Disk
from tests.live.test_tiered import COUNT, clean, filled, numbers, tiered, uploaded
from tests.spark.lakehouse.s3 import s3_store

from rocketspark.errors import StoreUnwritable
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.message import record
from rocketspark.store.tiered.object_segments import ObjectSegments, object_segments

pytestmark = pytest.mark.shows("second tier: an object store (S3) holds it, and failures of the network lose nothing")


def opened(endpoint: str) -> ObjectSegments:
    return object_segments("s3://bucket/tier", endpoint, "any", "any")


def test_segments_grow_by_parts() -> None:
    with s3_store("bucket") as store:
        segments = opened(f"http://127.0.0.1:{store.port}")
        segments.append("a/b", 0, b"0123456789")
        segments.append("a/b", 10, b"abcdefghij")
        segments.append("a/c", 0, b"x")
        for found in (segments, opened(f"http://127.0.0.1:{store.port}")):
            assert found.read("a/b", 8, 5) == b"89abc"
            assert found.read("a/b", 15, 100) == b"fghij"
            assert found.read("a/b", 20, 1) == found.read("none", 0, 1) == b""
            assert sorted(found.sizes("a/")) == [("a/b", 20), ("a/c", 1)]
        # An upload that was cut within a part: what follows takes the place of all behind.
        segments.append("a/b", 5, b"new")
        for found in (segments, opened(f"http://127.0.0.1:{store.port}")):
            assert dict(found.sizes("a/")) == {"a/b": 8, "a/c": 1}
            assert found.read("a/b", 0, 100) == b"01234new"
        # A listing that is behind.
        behind = opened(f"http://127.0.0.1:{store.port}")
        assert (behind.probe("a/b", 5), behind.probe("a/b", 0), behind.probe("a/none", 0)) == (8, 8, 0)
        segments.remove("a/b")
        segments.remove("a/b")
        assert dict(segments.sizes("")) == {"a/c": 1}
        with pytest.raises(StoreUnwritable, match="shorter than the 5 bytes"):
            segments.append("a/c", 5, b"hole")
    with pytest.raises(StoreUnwritable, match=r"cannot list bucket/tier/a"):
        list(opened("http://127.0.0.1:1").sizes("a/"))


def test_old_messages_are_read_from_an_object_store(tmp_path: Path) -> None:
    async def main(endpoint: str) -> None:
        disk = Disk()
        place = {
            "tiered_store_file_path": "s3://bucket/tier",
            "object_store_endpoint": endpoint,
            "object_store_access_key": "any",
            "object_store_secret_key": "any",
        }
        async with tiered(tmp_path, disk, **place) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await create_group(peer)
            await filled(peer)
            await uploaded(server)
            assert await clean(server, disk) == 5
            assert await numbers(peer) == list(range(COUNT))
        async with tiered(tmp_path, disk, **place) as server, connected(server.address) as peer:
            await uploaded(server)
            assert await numbers(peer, subscription="B", sys_flag=4) == list(range(1, COUNT, 2))
            found = headers.QueryMessageHeader(topic=TOPIC, key="k3", count_max=64, begin_ms=0, end_ms=1 << 60)
            reply = (await peer.request(RequestCode.QUERY_MESSAGE, found)).raise_for_code("query")
            assert [int(m.body[:4]) for m in record.decode_all(reply.body)] == [3]

    with s3_store("bucket") as store:
        run(main(f"http://127.0.0.1:{store.port}"))


def test_a_broker_starts_and_takes_messages_without_its_object_store(tmp_path: Path) -> None:
    async def main() -> None:
        place = {"tiered_store_file_path": "s3://bucket/tier", "object_store_endpoint": "http://127.0.0.1:1"}
        keys = {"object_store_access_key": "any", "object_store_secret_key": "any"}
        began = time.monotonic()
        async with tiered(tmp_path, Disk(), **place, **keys) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await create_group(peer)
            await filled(peer, 0, 5)
            assert await numbers(peer) == [0, 1, 2, 3, 4]
            tiering = server._tiering
            assert tiering is not None
            await until(lambda: tiering._failures)
            assert await tiering.kept_from() == server.store.min_position
            assert (await pull(peer, TOPIC, 0, 0)).code == ResponseCode.SUCCESS
        assert time.monotonic() - began < 60

    run(main())
