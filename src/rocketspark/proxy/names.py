"""Names of topics and groups as the proxy takes them. Rule: those of Apache's proxy, 5.5.0."""

from __future__ import annotations

import re
from functools import lru_cache

from rocketspark.model.text import shown
from rocketspark.proxy.calls.statuses import Refused
from rocketspark.proxy.wire.codes import Code

TOPIC_CHARACTERS_MAX, GROUP_CHARACTERS_MAX = 127, 120
SYSTEM_GROUP = "CID_RMQ_SYS_"
SYSTEM_TOPICS = frozenset(
    """TBW102 SCHEDULE_TOPIC_XXXX BenchmarkTest RMQ_SYS_TRANS_HALF_TOPIC RMQ_SYS_TRACE_TOPIC RMQ_SYS_TRANS_OP_HALF_TOPIC
    TRANS_CHECK_MAX_TIME_TOPIC SELF_TEST_TOPIC OFFSET_MOVED_EVENT CHECKPOINT_TOPIC RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC
    RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC""".split()
)
SYSTEM_TOPIC = "rmq_sys_"
_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+\Z")


@lru_cache(maxsize=4096)
def checked_topic(name: str) -> str:
    """Return a topic's name. Raises Refused if it is none, or a system topic's."""
    _check("topic", name, TOPIC_CHARACTERS_MAX, Code.ILLEGAL_TOPIC)
    if name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC):
        raise Refused(Code.ILLEGAL_TOPIC, f"topic {name} is a system topic")
    return name


@lru_cache(maxsize=4096)
def checked_group(name: str) -> str:
    """Return a consumer group's name. Raises Refused if it is none, or a system group's."""
    _check("consumer group", name, GROUP_CHARACTERS_MAX, Code.ILLEGAL_CONSUMER_GROUP)
    if name.startswith(SYSTEM_GROUP):
        raise Refused(Code.ILLEGAL_CONSUMER_GROUP, f"consumer group {name} is a system group")
    return name


def _check(what: str, name: str, characters_max: int, code: Code) -> None:
    if not name.strip():
        raise Refused(code, f"{what} is blank: name one")
    if len(name) > characters_max:
        raise Refused(code, f"{what} has {len(name)} characters: {characters_max} at most")
    if not _ALLOWED.match(name):
        raise Refused(code, f"{what} {shown(name)} holds other characters than letters, digits, %, |, - and _")
