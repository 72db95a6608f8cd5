"""A broker that is killed while it deletes a topic ends the deletion at its next start."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import TOPIC, broker, connected, create, run, sent

from rocketspark.broker.lite import parts
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import TopicHeader

pytestmark = pytest.mark.shows("a topic whose deletion a kill broke off is gone after the next start, whole")

LIGHT: dict[str, Any] = {"lmq": True, "multi_dispatch": True}
LITE = [f"%LMQ%$T${name}" for name in "abcd"]
QUEUES = [(TOPIC, 0), *((name, 0) for name in LITE), ("T2", 0), ("%LMQ%$T2$a", 0)]
OTHERS = [("T2", 0), ("%LMQ%$T2$a", 0)]


async def deleted(root: Path, copy: Path, monkeypatch: pytest.MonkeyPatch, kill_at: str) -> None:
    """Delete T, and copy the store's files at a moment of it, as a kill would leave them."""

    def copied() -> None:
        if not copy.exists():
            shutil.copytree(root, copy)

    async with broker(root, **LIGHT) as server, connected(server.address) as peer:
        for topic in (TOPIC, "T2"):
            await create(peer, topic, 1)
            await sent(peer, b"old", topic, 0)
        for name in LITE:
            await sent(peer, b"old", TOPIC, 0, pairs={"INNER_MULTI_DISPATCH": name})
        await sent(peer, b"old", "T2", 0, pairs={"INNER_MULTI_DISPATCH": "%LMQ%$T2$a"})
        for topic, queue_id in QUEUES:
            server._offsets.commit("g", topic, queue_id, 1)
        await server._offsets.saved()
        for place, name in ((server._topics, "delete"), (server.store, "delete_topic"), (server._lite, "_drop")):
            real = getattr(place, name)

            def acts(*of: Any, name: str = name, real: Any = real) -> None:
                if name == kill_at and (name != "_drop" or of[0][0] == LITE[2]):
                    copied()
                real(*of)

            monkeypatch.setattr(place, name, acts)
        (await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=TOPIC))).raise_for_code("delete")
        if kill_at == "end":
            copied()
        assert sorted(server.store.queues()) == sorted(name for name, _ in OTHERS)


@pytest.mark.parametrize("kill_at", ["delete", "delete_topic", "_drop", "end"])
def test_a_kill_within_a_deletion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill_at: str) -> None:
    monkeypatch.setattr(parts, "QUEUES_IN_TURN", 1)
    copy = tmp_path / "copy"

    async def main() -> None:
        await deleted(tmp_path / "store", copy, monkeypatch, kill_at)
        # Nothing was deleted as long as the topic had its settings.
        left = QUEUES if kill_at == "delete" else OTHERS
        async with broker(copy, **LIGHT) as server, connected(server.address) as peer:
            assert sorted(server.store.queues()) == sorted(name for name, _ in left)
            assert [queue for queue in QUEUES if server._offsets.get("g", *queue) is not None] == left
            assert (server._topics.get(TOPIC) is not None) == (kill_at == "delete")
            await create(peer, TOPIC, 1)
            await sent(peer, b"new", TOPIC, 0, pairs={"INNER_MULTI_DISPATCH": LITE[3]})
        async with broker(copy, **LIGHT) as server:
            # What was sent since stays.
            ends = [server.store.queue_range(topic, 0)[1] for topic in (TOPIC, *LITE)]
            assert ends == ([6, 1, 1, 1, 2] if kill_at == "delete" else [1, 0, 0, 0, 1])

    run(main())
