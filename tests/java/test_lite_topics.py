"""Lite topics on the official broker: it answers as the vectors say, which our broker is held to in tests/live."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.java import lite_topics
from tests.java.apache import ApacheCluster

pytestmark = pytest.mark.shows("lite topics: every request's answer is that of RocketMQ 5.5.0")


def test_the_official_broker_answers_so(tmp_path: Path) -> None:
    cluster = ApacheCluster(tmp_path, config=lite_topics.SETTINGS)
    try:
        assert lite_topics.everything(cluster.broker) == lite_topics.golden()
    finally:
        cluster.close()
