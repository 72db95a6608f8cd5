"""Prometheus metrics scraped over HTTP: names and labels of RocketMQ 5.5.0, numbers of what was done."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.java import lite_topics
from tests.live.support import GROUP, TOPIC, beat, broker, connected, create, pull, pulled, run, send, sent, until
from tests.live.test_replication import pair, producer
from tests.support.metric_load import scraped
from tests.support.ports import free_ports

from rocketspark import Producer, SimpleConsumer
from rocketspark.broker.access.settings import CLASSES, AccessSettings
from rocketspark.broker.lite import lags
from rocketspark.broker.operations import metrics
from rocketspark.broker.server import BrokerServer
from rocketspark.broker.statistics import histograms
from rocketspark.errors import ConfigError
from rocketspark.model import Message
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import (
    DeleteGroupHeader,
    EndTransactionHeader,
    SendReply,
    TopicHeader,
    UpdateConsumerOffsetHeader,
)
from rocketspark.testing import run_cluster
from rocketspark.transport.request_signer import inner_signer

pytestmark = pytest.mark.shows("Prometheus metrics, histograms and timers too")

BROKER = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}
STORAGE = {"storage_medium": "disk", "storage_type": "local"}
PLAIN = {"topic": TOPIC, "is_system": "false"}
LAG = PLAIN | {"consumer_group": GROUP, "is_retry": "false"}
# The gauges that a 5.5.0 broker gave out in the same use, and ours.
GAUGES = {
    "rocketspark_broker_epoch",
    "rocketspark_broker_role",
    "rocketmq_broker_permission",
    "rocketmq_consumer_connections",
    "rocketmq_consumer_group_number",
    "rocketmq_consumer_inflight_messages",
    "rocketmq_consumer_lag_latency_milliseconds",
    "rocketmq_consumer_lag_messages",
    "rocketmq_consumer_queueing_latency_milliseconds",
    "rocketmq_consumer_ready_messages",
    "rocketmq_half_messages",
    "rocketmq_pop_checkpoint_buffer_size",
    "rocketmq_pop_offset_buffer_size",
    "rocketmq_pop_revive_lag_milliseconds",
    "rocketmq_pop_revive_latency_milliseconds",
    "rocketmq_processor_watermark",
    "rocketmq_producer_connections",
    "rocketmq_storage_dispatch_behind_bytes",
    "rocketmq_storage_flush_behind_bytes",
    "rocketmq_storage_message_reserve_time_milliseconds",
    "rocketmq_storage_size_bytes",
    "rocketmq_timer_dequeue_lag",
    "rocketmq_timer_dequeue_latency_milliseconds",
    "rocketmq_timer_enqueue_lag",
    "rocketmq_timer_enqueue_latency_milliseconds",
    "rocketmq_timer_message_snapshot",
    "rocketmq_topic_number",
}


class Scrape:
    """What one scrape gave: names, and values by name and labels."""

    def __init__(self, text: str) -> None:
        families = list(text_string_to_metric_families(text))
        self.gauges = {f.name for f in families if f.type == "gauge"}
        self.histograms = {f.name for f in families if f.type == "histogram"}
        self._values = {
            (s.name, frozenset(s.labels.items())): s.value
            for f in families
            for s in f.samples
            if not s.name.endswith("_created")
        }

    def value(self, name: str, **labels: str) -> float | None:
        """None where there is no such row. Labels must be exactly these, beside the broker's own."""
        return self._values.get((name, frozenset((BROKER | labels).items())))

    def buckets(self, name: str, **labels: str) -> dict[str, float]:
        """How many lie up to each bound."""
        wanted = (BROKER | labels).items()
        rows = ((dict(key), value) for (n, key), value in self._values.items() if n == name + "_bucket")
        found = {row["le"]: value for row, value in rows if row.items() - {("le", row["le"])} == wanted}
        return dict(sorted(found.items(), key=lambda item: float(item[0])))

    def rows(self, name: str) -> int:
        return sum(1 for n, _ in self._values if n == name)


async def scrape(server: BrokerServer) -> Scrape:
    assert server.metrics is not None
    url = f"http://127.0.0.1:{server.metrics.port}/metrics"
    text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=60).read().decode())
    return Scrape(text)


def test_what_was_refused_and_left_out_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LimitedLog, "left_out_count", 0)

    async def main() -> None:
        async with (
            broker(tmp_path, metrics_exporter="PROM", metrics_port=0, connections_max=1) as server,
            connected(server.address) as peer,
        ):
            await create(peer, queues=1)
            server._long_polling.weights.owner_max = 0
            found = await scrape(server)
            assert found.rows("rocketspark_refused_total") == found.rows("rocketspark_log_lines_left_out_total") == 0
            assert (await pull(peer, sys_flag=6, suspend_ms=60_000)).code == 2
            for _ in range(3):
                async with connected(server.address) as other:
                    await other.wait_closed()
            found = await scrape(server)
            assert found.value("rocketspark_refused_total", kind="pull") == 1
            assert found.value("rocketspark_refused_total", kind="connection") == 3
            LimitedLog.left_out_count = 7
            assert (await scrape(server)).value("rocketspark_log_lines_left_out_total") == 7

    run(main())


def test_what_is_deleted_leaves_and_counts_anew(tmp_path: Path) -> None:
    sizes = PLAIN | {"message_type": "normal"}
    size, timed = "rocketmq_message_size_count", STORAGE | {"topic": TOPIC}

    async def main() -> None:
        async with (
            broker(tmp_path, metrics_exporter="PROM", metrics_port=0) as server,
            connected(server.address) as peer,
        ):
            await create(peer, queues=1)
            await beat(peer)
            for _ in range(3):
                await sent(peer)
            assert len(await pulled(peer)) == 3
            server._wheel.statistics.came(TOPIC, 1000)
            found = await scrape(server)
            assert found.value("rocketmq_messages_out_total", **PLAIN, consumer_group=GROUP) == 3
            assert (found.value(size, **sizes), found.value("rocketmq_timer_enqueue_total", **timed)) == (3, 1)
            group = DeleteGroupHeader(group=GROUP, clean_offsets=True)
            assert (await peer.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, group)).code == 0
            assert (await scrape(server)).rows("rocketmq_messages_out_total") == 0
            await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=TOPIC))
            found = await scrape(server)
            assert (found.value(size, **sizes), found.value("rocketmq_timer_enqueue_total", **timed)) == (None, None)
            await create(peer, queues=1)
            assert await sent(peer) == 0
            assert (await scrape(server)).value(size, **sizes) == 1

    run(main())


def test_a_look_at_many_queues_takes_turns_of_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told meanwhile is what the look before found."""
    monkeypatch.setattr(metrics, "LAGS_IN_TURN", 1)
    monkeypatch.setattr(histograms, "QUEUES_IN_TURN", 1)
    lag, size = "rocketmq_consumer_lag_messages", "rocketmq_message_size_count"

    async def main() -> None:
        async with (
            broker(tmp_path, metrics_exporter="PROM", metrics_port=0) as server,
            connected(server.address) as peer,
        ):
            for topic in (TOPIC, "other"):
                await create(peer, topic, queues=2)
                for queue_id in (0, 1):
                    await sent(peer, b"x", topic, queue_id)
            await beat(peer, topics={TOPIC: "*"})
            for queue_id in (0, 1):
                commit = UpdateConsumerOffsetHeader(group=GROUP, topic=TOPIC, queue_id=queue_id, commit_offset=0)
                (await peer.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).raise_for_code("commit")
            assert server._metrics is not None
            of = [row for family in server._metrics.collect().families if family.name == lag for row in family.rows]
            assert of == []
            # The topics that the broker has for itself come first.
            assert server._metrics.sizes.by_topic.keys() < {TOPIC, "other"}
            await until(lambda: server._metrics.sizes.by_topic.keys() == {TOPIC, "other"})
            found = await scrape(server)
            assert (found.value(lag, **LAG), found.value(size, **PLAIN, message_type="normal")) == (2, 2)

    run(main())


@pytest.mark.shows("lite topics: lag of each group in metrics")
def test_what_groups_lack_of_lite_topics_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    light: dict[str, Any] = {"lmq": True, "multi_dispatch": True, "lite_lag_metrics": True}
    lag, ready, age = (
        f"rocketmq_consumer_{each}" for each in ("lag_messages", "ready_messages", "lag_latency_milliseconds")
    )
    of = {"topic": lite_topics.TOPIC, "is_system": "false", "consumer_group": lite_topics.GROUP, "is_retry": "false"}

    def use(address: str) -> None:
        link = lite_topics.made(address)
        for name in ("a", "a", "a", "b"):
            assert link.send(name.encode(), name)["code"] == 0
        assert link.change("PARTIAL_ADD", ["a", "b"], offsetOption={"type": "POLICY", "value": 1}) == [0, None]
        popped = link.until(2, maxMsgNum="1")
        for each in popped:
            if each.rows:
                link.ack(each, 0)
        link.close()

    async def main() -> None:
        async with broker(tmp_path, metrics_exporter="PROM", metrics_port=0, **light) as server:
            assert (await scrape(server)).value(lag, **of) is None
            await asyncio.to_thread(use, server.address)
            found = await scrape(server)
            assert (found.value(lag, **of), found.value(ready, **of), found.value(age, **of)) == (2, 2, None)
            server.settings.lite_lag_time_metrics = True
            assert 0 < ((await scrape(server)).value(age, **of) or 0) < 600_000
            # What takes more than a turn is told of the look before.
            monkeypatch.setattr(lags, "ROWS_IN_TURN", 1)
            assert (await scrape(server)).value(lag, **of) == 2
            server.settings.lite_lag_metrics = server.settings.lite_lag_time_metrics = False
            assert (await scrape(server)).value(lag, **of) is None

    run(main())


@pytest.mark.shows("metrics by decision")
def test_what_access_control_decided_is_counted(tmp_path: Path) -> None:
    credentials = json.dumps({"accessKey": "root", "secretKey": "secret-of-root"})
    access = AccessSettings(
        authentication_metadata_provider=CLASSES["authenticationMetadataProvider"][0],
        inner_client_authentication_credentials=credentials,
    )

    async def main() -> None:
        async with (
            broker(
                tmp_path,
                metrics_exporter="PROM",
                metrics_port=0,
                authentication=True,
                authorization=True,
                access=access,
            ) as server,
            connected(server.address) as stranger,
            connected(server.address, hooks=inner_signer(credentials)) as peer,
        ):
            await create(peer, queues=1)
            for _ in range(2):
                topic = TopicHeader(topic=TOPIC)
                assert (await stranger.request(RequestCode.DELETE_TOPIC_IN_BROKER, topic)).code == 16
            found = await scrape(server)
            name, denied = "rocketspark_access_decisions_total", {"check": "authentication", "decision": "deny"}
            assert found.value(name, **denied, request_code="DELETE_TOPIC_IN_BROKER") == 2
            for check in ("authentication", "authorization"):
                assert (found.value(name, check=check, decision="allow", request_code="") or 0) >= 1
            done = {"request_code": "UPDATE_AND_CREATE_TOPIC", "outcome": "done"}
            assert found.value("rocketspark_admin_changes_total", **done) == 1
            assert found.value("rocketspark_audit_lines_total", outcome="lost") == 0

    run(main())


def test_numbers_are_those_of_what_was_done(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            broker(tmp_path, metrics_exporter="PROM", metrics_port=0, delay_levels="5s") as server,
            connected(server.address) as peer,
        ):
            await create(peer, queues=1)
            before = server.store.written_position
            for _ in range(5):
                await sent(peer, b"x" * 100)
            plain_bytes = server.store.written_position - before
            await sent(peer, b"later", pairs={"DELAY": "1"})
            await beat(peer, producer="P")
            got = await pulled(peer, count_max=3)
            assert len(got) == 3
            commit = UpdateConsumerOffsetHeader(group=GROUP, topic=TOPIC, queue_id=0, commit_offset=2)
            (await peer.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).raise_for_code("commit")
            found = await scrape(server)
            assert found.gauges == GAUGES
            assert found.value("rocketmq_messages_in_total", **PLAIN, message_type="normal") == 5
            assert found.value("rocketmq_throughput_in_total", **PLAIN, message_type="normal") == plain_bytes
            assert found.value("rocketmq_messages_in_total", **PLAIN, message_type="delay") == 1
            out = PLAIN | {"consumer_group": GROUP}
            assert found.value("rocketmq_messages_out_total", **out) == 3
            assert found.value("rocketmq_throughput_out_total", **out) == plain_bytes / 5 * 3
            assert found.value("rocketmq_consumer_lag_messages", **LAG) == 3
            assert found.value("rocketmq_consumer_inflight_messages", **LAG) == 1
            assert found.value("rocketmq_consumer_ready_messages", **LAG) == 2
            assert (found.value("rocketmq_consumer_lag_latency_milliseconds", **LAG) or 0) >= 0
            assert found.value("rocketmq_storage_size_bytes", **STORAGE) == server.store.written_position
            assert found.value("rocketmq_storage_dispatch_behind_bytes", **STORAGE) == 0
            assert found.value("rocketmq_broker_permission") == 6
            client = {"language": "python", "version": "v5_5_0", "protocol_type": "remoting"}
            assert found.value("rocketmq_producer_connections", **client) == 1
            consumer = {"consumer_group": GROUP, "consume_mode": "push", "is_system": "false"}
            assert found.value("rocketmq_consumer_connections", **client, **consumer) == 1
            assert found.rows("rocketmq_processor_watermark") == 12
            # Once delivered it is not counted again under its own topic.
            await until(lambda: server.store.queue_range(TOPIC, 0)[1] == 6)
            found = await scrape(server)
            assert found.value("rocketmq_messages_in_total", **PLAIN, message_type="normal") == 5
            parked = {"topic": "SCHEDULE_TOPIC_XXXX", "is_system": "true"}
            assert found.value("rocketmq_messages_in_total", **parked, message_type="delay") == 1
            assert found.value("rocketmq_messages_out_total", **parked, consumer_group="SCHEDULE_CONSUMER") == 1

    run(main())


def test_transactions(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            broker(tmp_path, metrics_exporter="PROM", metrics_port=0) as server,
            connected(server.address) as peer,
        ):
            await create(peer, queues=1)
            for outcome in (8, 12, None):
                reply = await peer.request(RequestCode.SEND_MESSAGE_V2, _half_header(), b"half")
                answer = reply.raise_for_code("prepare").header(SendReply)
                if outcome is not None:
                    end = EndTransactionHeader(
                        producer_group="P",
                        half_offset=answer.queue_offset,
                        physical_offset=int(answer.message_id[-16:], 16),
                        outcome=outcome,
                        message_id=answer.transaction_id,
                        transaction_id=answer.transaction_id,
                    )
                    (await peer.request(RequestCode.END_TRANSACTION, end)).raise_for_code("end")
            found = await scrape(server)
            assert found.value("rocketmq_messages_in_total", **PLAIN, message_type="transaction") == 3
            assert found.value("rocketmq_messages_in_total", **PLAIN, message_type="normal") is None
            assert found.value("rocketmq_commit_messages_total", topic=TOPIC) == 1
            assert found.value("rocketmq_rollback_messages_total", topic=TOPIC) == 1
            assert found.value("rocketmq_half_messages") == 1

    run(main())


def _half_header() -> object:
    from tests.live.support import send_header

    return send_header(TOPIC, 0, sys_flag=4, pairs={"TRAN_MSG": "true", "PGROUP": "P"})


def test_histograms(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            broker(tmp_path, metrics_exporter="PROM", metrics_port=0, flush_disk_type="SYNC_FLUSH") as server,
            connected(server.address) as peer,
        ):
            before = server.store.written_position
            await create(peer, queues=1)
            (await peer.request(200, None, b'{"groupName":"GG"}')).raise_for_code("create")
            for size in (10, 2000, 2000, 600_000):
                await sent(peer, b"x" * size)
            assert (await send(peer, b"x", "no topic")).code != 0
            await sent(peer, b"later", pairs={"DELAY": "5"})
            stored = server.store.queue_units(TOPIC, 0, 0, 4)
            held = asyncio.ensure_future(pull(peer, TOPIC, 0, 4, sys_flag=6, suspend_ms=10_000))
            await until(lambda: server._long_polling.waiting == 1)
            half = (await peer.request(RequestCode.SEND_MESSAGE_V2, _half_header(), b"half")).header(SendReply)
            end = EndTransactionHeader(
                producer_group="P", half_offset=0, physical_offset=int(half.message_id[-16:], 16), outcome=8
            )
            (await peer.request(RequestCode.END_TRANSACTION, end)).raise_for_code("end")
            assert (await held).code == 0
            found = await scrape(server)
            assert found.histograms == {
                "rocketmq_consumer_group_create_execution_time_milliseconds",
                "rocketmq_finish_message_latency_milliseconds",
                "rocketmq_message_size",
                "rocketmq_rpc_latency_milliseconds",
                "rocketmq_topic_create_execution_time_milliseconds",
            }
            plain = PLAIN | {"message_type": "normal"}
            assert found.buckets("rocketmq_message_size", **plain) == {
                "1024.0": 1,
                "4096.0": 3,
                "524288.0": 3,
                "1048576.0": 4,
                "2097152.0": 4,
                "4194304.0": 4,
                "+Inf": 4,
            }
            assert found.value("rocketmq_message_size_sum", **plain) == sum(size for _, size, _ in stored)
            for kind in ("delay", "transaction"):
                assert found.value("rocketmq_message_size_count", **PLAIN, message_type=kind) == 1
            assert server.store.written_position > before

            def answered(request: str, response: str, held: str = "false") -> float | None:
                labels = {"protocol_type": "remoting", "result": "success", "is_long_polling": held}
                return found.value(
                    "rocketmq_rpc_latency_milliseconds_count", request_code=request, response_code=response, **labels
                )

            # With SYNC_FLUSH all but the refused one are answered later.
            assert answered("send_message_v2", "success") == 6
            assert found.rows("rocketmq_rpc_latency_milliseconds_count") == 6
            assert answered("update_and_create_topic", "success") == 1
            assert answered("end_transaction", "success") == 1
            assert answered("pull_message", "success", "true") == 1
            assert answered("update_and_create_subscriptiongroup", "success") == 1
            made = {"invocation_status": "success"}
            name = "rocketmq_topic_create_execution_time_milliseconds"
            assert list(found.buckets(name, **made, is_system="false")) == [
                "10.0",
                "100.0",
                "1000.0",
                "3000.0",
                "5000.0",
                "+Inf",
            ]
            assert found.value(name + "_count", **made, is_system="false") == 1
            assert found.value("rocketmq_consumer_group_create_execution_time_milliseconds_count", **made) == 1
            assert found.value("rocketmq_finish_message_latency_milliseconds_count", topic=TOPIC) == 1

    run(main())


def test_timer_messages(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            broker(tmp_path, metrics_exporter="PROM", metrics_port=0, timer_precision_ms=100) as server,
            connected(server.address) as peer,
        ):
            await create(peer, queues=1)
            now = int(time.time() * 1000)
            for number, delay_s in enumerate((1, 40, 4000, 100_000)):
                properties = {"TIMER_DELIVER_MS": str(now + delay_s * 1000), "UNIQ_KEY": f"U{number}"}
                await sent(peer, pairs=properties, born_time_ms=now)
            await until(lambda: server.store.queue_range(TOPIC, 0)[1] == 1)
            found = await scrape(server)
            of_topic = STORAGE | {"topic": TOPIC}
            assert found.value("rocketmq_timer_enqueue_total", **of_topic) == 4
            assert found.value("rocketmq_timer_dequeue_total", **of_topic) == 1
            assert found.value("rocketmq_timing_messages", **of_topic) == 3
            assert found.value("rocketmq_timer_enqueue_lag", **STORAGE) == 0
            assert found.value("rocketmq_timer_enqueue_latency_milliseconds", **STORAGE) == 0
            assert found.value("rocketmq_timer_dequeue_lag", **STORAGE) == 0
            bounds = (300, 900, 3600, 14_400, 28_800, 86_400)
            waiting = {
                b: found.value("rocketmq_timer_message_snapshot", **STORAGE, timer_bound_s=str(b)) for b in bounds
            }
            # The last one is rolled on its way, after 17,280 s.
            assert [waiting[b] for b in bounds[1:]] == [0, 0, 1, 1, 0]
            assert found.buckets("rocketmq_delay_message_latency_seconds", **of_topic) == {
                "60.0": 2,
                "600.0": 2,
                "3600.0": 2,
                "43200.0": 3,
                "86400.0": 3,
                "259200.0": 4,
                "+Inf": 4,
            }
            shown = json.loads((await peer.request(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
            assert (shown["timerCongestNum"], shown["timerOffsetBehind"], shown["timerReadBehind"]) == ("3", "0", "0")

    run(main())


def test_pops() -> None:
    port = free_ports()
    with (
        run_cluster(metrics_exporter="PROM", metrics_port=port) as cluster,
        Producer(cluster.namesrv) as producer,
        SimpleConsumer(cluster.namesrv, GROUP, consume_from="first") as consumer,
    ):
        producer.create_topic(TOPIC, queue_count=1)
        for n in range(3):
            producer.send(TOPIC, b"%d" % n)
        consumer.subscribe(TOPIC)
        taken, pops = [], 0
        while len(taken) < 3:
            came = consumer.receive(count_max=16)
            taken += came
            pops += bool(came)
        consumer.ack(taken[0])
        consumer.ack(taken[1])
        found = Scrape(scraped(f"127.0.0.1:{port}"))
    of_group = {"topic": TOPIC, "consumer_group": GROUP}
    recorded = of_group | {"put_status": "PUT_OK"}
    name = "rocketmq_pop_revive_in_message_total"
    assert found.value(name, **recorded, revive_message_type="CK") == pops
    assert found.value(name, **recorded, revive_message_type="ACK") == 2
    assert found.value("rocketmq_messages_out_total", **of_group, is_system="false", is_retry="false") == 3


def test_it_listens_on_loopback_and_is_off_by_default(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server:
            assert server.metrics is None
        async with broker(tmp_path, metrics_exporter="PROM", metrics_port=0) as server:
            assert server.metrics is not None
            port = server.metrics.port
            with socket.create_connection(("127.0.0.1", port), 2) as link:
                assert link.getpeername()[0] == "127.0.0.1"
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", port), 2)

    run(main())


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(ConfigError, match=f"metricsPromExporterPort {port} on 127.0.0.1 cannot be had"):
                async with broker(tmp_path, metrics_exporter="PROM", metrics_port=port):
                    pass
        # Nothing was left behind: the store can be opened.
        async with broker(tmp_path):
            pass

    run(main())


@pytest.mark.shows(
    "metrics: role, epoch, lag of each slave in bytes and seconds, in sync, troubles, timeouts; a log line "
    "for every change of role with its reason"
)
def test_a_master_tells_how_far_its_slave_is_behind(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path, metrics_exporter="PROM", metrics_port=0) as p, producer(p.namesrv.address) as out:
            await out.send(Message(topic=TOPIC, body=b"x"))
            await p.equal()
            link = p.master.replication.listener.connections[0].link
            await until(lambda: link.acked == p.master.store.written_position)
            found = await scrape(p.master)
            assert found.value("rocketspark_broker_role", role="master") == 1
            assert found.value("rocketspark_broker_role", role="slave") == 0
            assert found.value("rocketspark_replication_lag_bytes", slave="127.0.0.1") == 0
            assert found.value("rocketspark_replication_in_sync", slave="127.0.0.1") == 1
            assert p.master._metrics is not None
            # At once: the slave says again how far it is.
            link.acked -= 7
            behind = {family.name: family.rows for family in p.master._metrics.collect().families}
            assert behind["rocketspark_replication_lag_bytes"] == [({"slave": "127.0.0.1"}, 7)]
            slave = await scrape(p.slave)
            assert slave.value("rocketspark_broker_role", role="slave") == 1
            assert slave.value("rocketspark_replication_connected") == 1

    run(main())
