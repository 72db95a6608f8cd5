"""Topics that parked messages go to, on a broker that was elected; which topics have compaction."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.live.support import settings

from rocketspark.broker.messages.send_rules import MessageSettings, SendRules
from rocketspark.broker.storage.json_tables import JsonFile
from rocketspark.broker.topics import Topics
from rocketspark.protocol.json.bodies import TopicConfig, TopicConfigTable
from rocketspark.protocol.topic_attributes import CLEANUP_POLICY, COMPACTION, DELETE


def test_a_topic_that_a_parked_message_alone_knows_is_made_once_elected(tmp_path: Any) -> None:
    how = settings(tmp_path)
    topics = Topics(how, JsonFile(tmp_path / "topics.json", Any))
    store: Any = SimpleNamespace(consume_queues=None, deleted_topics=lambda: {"gone": 500, "anew": 500})
    rules = SendRules(store, topics, MessageSettings.of(how))
    rules.admit_parked("before", 5, 100)
    assert "before" not in topics.table
    topics.elected_at = 1000
    for topic, position in {"known": 100, "gone": 499, "anew": 500, "after": 1000, "%RETRY%g": 100}.items():
        rules.admit_parked(topic, 5, position)
    made = {name: topics.table[name].read_queue_nums for name in ("known", "anew", "%RETRY%g") if name in topics.table}
    assert made == {"known": 8, "anew": 8, "%RETRY%g": 6}
    assert {"gone", "after", "before"}.isdisjoint(topics.table)


def test_topics_with_compaction_are_known_whatever_changes(tmp_path: Any) -> None:
    def config(name: str, policy: str) -> TopicConfig:
        return TopicConfig(topic_name=name, attributes={CLEANUP_POLICY: policy})

    file = JsonFile(tmp_path / "topics.json", TopicConfigTable)
    topics = Topics(settings(tmp_path), file)
    assert topics.compacted() == frozenset()
    topics.put_all([config("a", COMPACTION), config("b", DELETE), config("c", COMPACTION)])
    assert topics.compacted() == {"a", "c"}
    assert Topics(settings(tmp_path), file).compacted() == {"a", "c"}
    topics.delete("a")
    topics.put(config("c", DELETE))
    assert topics.compacted() == frozenset()
    topics.put(config("c", COMPACTION))
    topics.take({"b": config("b", COMPACTION), "d": config("d", DELETE)}, topics.version)
    assert topics.compacted() == {"b"}
