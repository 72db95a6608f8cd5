"""Brokers before 5.0 tell the settings of all topics and groups alone: the requests for one are unknown there."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.client.fake import Fake, in_loop

from rocketspark.admin.groups import GroupSettings
from rocketspark.admin.operations import AsyncAdmin
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers.topics import TopicPageHeader
from rocketspark.protocol.json import bodies, java_json, metadata
from rocketspark.transport.request_frames import reply

pytestmark = pytest.mark.shows("clients and commands on RocketMQ 4.9")

UNKNOWN = (3, "request type not supported")


def before_5(fake: Fake, topics: list[bodies.TopicConfig], groups: list[bodies.GroupConfig]) -> dict[str, Any]:
    """Let the broker know these settings alone, as one before 5.0. Returns the groups that are put."""
    put: dict[str, Any] = {config.group_name: config for config in groups}

    def all_topics(peer: Any, asked: Any, body: bytes) -> bytes:
        table = bodies.TopicConfigTable(topic_config_table={t.topic_name: t for t in topics})
        return reply(asked.opaque, 0, None, bodies.encode(table))

    def all_groups(peer: Any, asked: Any, body: bytes) -> bytes:
        return reply(asked.opaque, 0, None, bodies.encode(metadata.GroupPage(subscription_group_table=put)))

    def put_group(peer: Any, asked: Any, body: bytes) -> bytes:
        config = java_json.decode(body, bodies.GroupConfig)
        put[config.group_name] = config
        return reply(asked.opaque)

    broker = fake.broker
    for code in (RequestCode.GET_TOPIC_CONFIG, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG):
        broker.rules[code] = lambda header, body: UNKNOWN
    broker.routes.add(RequestCode.GET_ALL_TOPIC_CONFIG, all_topics, TopicPageHeader)
    broker.routes.add(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, all_groups)
    broker.routes.add(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, put_group)
    return put


@in_loop
async def test_settings_of_a_topic_and_a_group_are_read_and_changed() -> None:
    async with Fake(1, t=3) as fake, AsyncAdmin(fake.namesrv) as admin:
        topic = bodies.TopicConfig(topic_name="t", read_queue_nums=3, write_queue_nums=2, perm=4)
        kept = bodies.GroupConfig(group_name="g", retry_max_times=7, consume_message_orderly=True)
        put = before_5(fake, [topic], [kept])
        found = await admin.topic_configs("t")
        assert [(name, c.read_queue_nums, c.write_queue_nums, c.perm) for name, c in found.items()] == [
            ("broker-a", 3, 2, 4)
        ]
        assert await admin.topic_configs("unknown") == {}
        assert await admin.show_group("unknown") == {}
        changed = await admin.put_group("g", GroupSettings(consume_enabled=False))
        assert (changed["broker-a"].retry_max_times, changed["broker-a"].consume_enable) == (7, False)
        assert put["g"].consume_message_orderly
        assert not put["g"].consume_enable
        await admin.put_group("new", GroupSettings(retry_max_times=3))
        assert put["new"].retry_max_times == 3
