"""Official consumers of RocketMQ 5 whose proxy is started again: they tell their settings after minutes, but go on."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.java.apache import max_offset
from tests.support.commanded import body_of
from tests.support.patience import LIMIT_MS
from tests.unit.proxy.consuming.test_consuming import wait_until
from tests.v5 import drivers
from tests.v5.conftest import need
from tests.v5.scenarios import Play
from tests.v5.servers import BROKER, OURS_QUICK, Servers, our_proxy

from rocketspark.testing.process import run_server_process

pytestmark = pytest.mark.shows("official Python and Go push consumers go on after their proxy was started again")


@pytest.mark.parametrize("language", ["python", "go"])
def test_a_push_consumer_goes_on_after_its_proxy_was_started_again(language: str, tmp_path: Path) -> None:
    need(language)
    with run_server_process(tmp_path / "store", config=BROKER) as cluster:
        client = drivers.start(language, tmp_path)
        try:
            with our_proxy(cluster.namesrv, **OURS_QUICK) as proxy:
                port = proxy.port
                play = Play(Servers("ours", proxy.address, cluster.namesrv, cluster.broker), client)
                topic, group = play.topic(), play.group()
                producer = play.start("producer", topics=[topic])
                consumer = play.start("push", group=group, subscriptions={topic: "*"})
                play.send(producer, topic, "before")
                play.call("push_await", consumer, count=1, wait_ms=LIMIT_MS)
                wait_until(lambda: proxy.consuming.renewals.count == 0)
            with our_proxy(cluster.namesrv, port=port, **OURS_QUICK) as proxy:
                play.send(producer, topic, "after")
                found = play.call("push_await", consumer, count=2, wait_ms=60_000)
                assert sorted(map(body_of, found)) == [b"after", b"before"]
                # None of them has told its settings again.
                assert [one.has_told for one in proxy.clients.all() if one.group == group] == [False]
        finally:
            client.close()


@pytest.mark.shows("handles renewed; a client that ends or vanishes frees its push messages")
@pytest.mark.parametrize("language", ["python", "java"])
def test_a_listener_at_work_keeps_its_messages_when_its_connection_breaks(language: str, tmp_path: Path) -> None:
    """It is back after 1.0 to 1.4 s, and until then nobody gets what it has: in order one works at a time."""
    need(language)
    with run_server_process(tmp_path / "store", config=BROKER) as cluster, our_proxy(cluster.namesrv) as proxy:
        client = drivers.start(language, tmp_path)
        try:
            play = Play(Servers("ours", proxy.address, cluster.namesrv, cluster.broker), client)
            topic, group = play.topic("FIFO"), play.group(consumeMessageOrderly=True, retryMaxTimes=0)
            producer = play.start("producer", topics=[topic])
            consumer = play.start("push", group=group, subscriptions={topic: "*"}, pause_ms=7000)
            for body in ("first", "second"):
                play.send(producer, topic, body, group="k")
            play.call("push_await", consumer, count=1, wait_ms=LIMIT_MS)
            assert proxy.consuming._task is not None
            loop = proxy.consuming._task.get_loop()
            for relay in list(proxy.front.clients.open):
                loop.call_soon_threadsafe(relay.abort)
            found = play.call("push_await", consumer, count=2, wait_ms=LIMIT_MS)
            assert [body_of(one) for one in found] == [b"first", b"second"]
            wait_until(lambda: proxy.consuming.renewals.count == 0)
            assert len(play.call("push_await", consumer, count=3, wait_ms=0)) == 2
            assert max_offset(cluster.broker, f"%DLQ%{group}", 0) == 0
        finally:
            client.close()
