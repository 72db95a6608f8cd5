"""The harness of pairs with an acting master, for which only tests of NameServers use it else: it acts, and gives back.

The other modes are shown by `test_client_failover`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.java.apache import max_offset
from tests.java.apache_pair import JavaPair, members, routed, until

from rocketspark.client import Producer
from rocketspark.model import Message, MessageQueue

pytestmark = pytest.mark.xdist_group("jvm")
TOPIC = "pairs"


@pytest.mark.soak
def test_a_slave_acts_as_the_master_until_that_is_back(tmp_path: Path) -> None:
    pair = JavaPair(tmp_path, "acting")
    try:
        pair.make_topic(TOPIC, 1)
        pair.wait_in_sync()
        with Producer(pair.namesrv, "pg", retries=20, send_timeout_ms=20_000) as producer:
            for number in range(10):
                producer.send(Message(topic=TOPIC, body=b"%d" % number), queue=MessageQueue(TOPIC, "broker-a", 0))
        until(lambda: max_offset(pair.second.broker, TOPIC, 0) == 10)
        assert members(pair.namesrv) == {0: pair.first.broker, 1: pair.second.broker}
        pair.first.kill()
        until(lambda: members(pair.namesrv) == {1: pair.second.broker})
        until(lambda: routed(pair.namesrv, TOPIC) == {0: pair.second.broker})
        pair.first.start()
        until(lambda: members(pair.namesrv) == {0: pair.first.broker, 1: pair.second.broker})
        until(lambda: routed(pair.namesrv, TOPIC) == {0: pair.first.broker, 1: pair.second.broker})
    finally:
        pair.close()
