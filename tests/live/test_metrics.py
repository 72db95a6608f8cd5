"""Prometheus metrics scraped over HTTP: names and labels of RocketMQ 5.5.0, numbers of what was done."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.live.support import GROUP, TOPIC, beat, broker, connected, create, pulled, run, sent, until

from rocketspark.broker.server import BrokerServer
from rocketspark.errors import ConfigError
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import EndTransactionHeader, SendReply, UpdateConsumerOffsetHeader

BROKER = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}
STORAGE = {"storage_medium": "disk", "storage_type": "local"}
PLAIN = {"topic": TOPIC, "is_system": "false"}
LAG = PLAIN | {"consumer_group": GROUP, "is_retry": "false"}
# The gauges that a 5.5.0 broker gave out in the same use; POP, timer and histograms are not there.
GAUGES = {
    "rocketmq_broker_permission",
    "rocketmq_consumer_connections",
    "rocketmq_consumer_group_number",
    "rocketmq_consumer_inflight_messages",
    "rocketmq_consumer_lag_latency_milliseconds",
    "rocketmq_consumer_lag_messages",
    "rocketmq_consumer_queueing_latency_milliseconds",
    "rocketmq_consumer_ready_messages",
    "rocketmq_half_messages",
    "rocketmq_processor_watermark",
    "rocketmq_producer_connections",
    "rocketmq_storage_dispatch_behind_bytes",
    "rocketmq_storage_flush_behind_bytes",
    "rocketmq_storage_message_reserve_time_milliseconds",
    "rocketmq_storage_size_bytes",
    "rocketmq_topic_number",
}


class Scrape:
    """What one scrape gave: names, and values by name and labels."""

    def __init__(self, text: str) -> None:
        families = list(text_string_to_metric_families(text))
        self.gauges = {f.name for f in families if f.type == "gauge"}
        self._values = {
            (s.name, frozenset(s.labels.items())): s.value
            for f in families
            for s in f.samples
            if not s.name.endswith("_created")
        }

    def value(self, name: str, **labels: str) -> float | None:
        """None where there is no such row. Labels must be exactly these, beside the broker's own."""
        return self._values.get((name, frozenset((BROKER | labels).items())))

    def rows(self, name: str) -> int:
        return sum(1 for n, _ in self._values if n == name)


async def scrape(server: BrokerServer) -> Scrape:
    assert server.metrics is not None
    url = f"http://127.0.0.1:{server.metrics.port}/metrics"
    text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read().decode())
    return Scrape(text)


def test_numbers_are_those_of_what_was_done(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            broker(tmp_path, metrics_exporter="PROM", metrics_port=0, delay_levels="1s") as server,
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
                        log_position=int(answer.message_id[-16:], 16),
                        outcome=outcome,
                        message_id=answer.transaction_id,
                        transaction_id=answer.transaction_id,
                    )
                    (await peer.request(RequestCode.END_TRANSACTION, end)).raise_for_code("end")
            found = await scrape(server)
            assert found.value("rocketmq_messages_in_total", **PLAIN, message_type="transaction") == 3
            assert found.value("rocketmq_messages_in_total", **PLAIN, message_type="normal") is None
            assert found.value("rocketmq_commit_messages_total", **PLAIN) == 1
            assert found.value("rocketmq_rollback_messages_total", **PLAIN) == 1
            assert found.value("rocketmq_half_messages") == 1

    run(main())


def _half_header() -> object:
    from tests.live.support import send_header

    return send_header(TOPIC, 0, sys_flag=4, pairs={"TRAN_MSG": "true", "PGROUP": "P"})


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
