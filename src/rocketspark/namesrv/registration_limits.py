"""Limits on what a NameServer takes from brokers. Pure. Rule: nothing is kept that clients or tools cannot handle.

RocketMQ takes anything; clients then make as many queues as they are told of, and tools print the names.
"""

from __future__ import annotations

from rocketspark.errors import ServerError
from rocketspark.model.text import INT_MAX, LONG_MAX, shown
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json.bodies import DataVersion, QueueDataBody, QueueMapping, TopicConfig

NAME_CHARACTERS_MAX = 255
# Of one topic on one broker: clients make each of them an object.
QUEUES_MAX = 65_536
BROKERS_MAX = 10_000
# Of one name: each change of the lowest id is told to all of them.
REPLICAS_MAX = 500
# Of all topics, each on each of its brokers.
TOPICS_MAX = 1_000_000


def is_name(text: str) -> bool:
    """Tell whether a text can name a topic, broker, cluster or address: it is short, and all of it is printable."""
    if text.isascii() and text.isprintable():  # Nearly all are such, and a registration may bring 100,000.
        return 0 < len(text) <= NAME_CHARACTERS_MAX
    return 0 < len(text) <= NAME_CHARACTERS_MAX and shown(text, characters_max=NAME_CHARACTERS_MAX) == text


def is_topic(topic: str, data: TopicConfig | QueueDataBody) -> bool:
    """Tell whether a topic's name and numbers are valid for a broker."""
    return (
        is_name(topic)
        and 0 <= data.read_queue_nums <= QUEUES_MAX
        and 0 <= data.write_queue_nums <= QUEUES_MAX
        and 0 <= data.perm <= INT_MAX
        and 0 <= data.topic_sys_flag <= INT_MAX
    )


def is_mapping(mapping: QueueMapping) -> bool:
    """Tell whether the names and numbers of a static topic's mapping are valid for a broker."""
    return (
        all(map(is_name, (mapping.topic, mapping.bname, mapping.scope)))
        and 0 <= mapping.total_queues <= QUEUES_MAX
        and len(mapping.curr_id_map) <= QUEUES_MAX
    )


def check_broker(cluster: str, broker_name: str, broker_id: int, address: str, ha_address: str, zone: str = "") -> None:
    """Raise ServerError 29 for an invalid name or address of a broker."""
    for what, text in (("clusterName", cluster), ("brokerName", broker_name), ("brokerAddr", address)):
        if not is_name(text):
            raise _illegal(what, text)
    for what, text in (("haServerAddr", ha_address), ("__ZONE_NAME", zone)):
        if text and not is_name(text):
            raise _illegal(what, text)
    if not 0 <= broker_id <= LONG_MAX:
        raise ServerError(ResponseCode.INVALID_PARAMETER, "brokerId: a number from 0 to 2^63-1 is needed")


def check_version(version: DataVersion) -> None:
    """Raise ServerError 29 for a data version with a number of more than 64 bits, which no Java client could read."""
    for number in (version.state_version, version.timestamp, version.counter):
        if not -LONG_MAX - 1 <= number <= LONG_MAX:
            raise ServerError(ResponseCode.INVALID_PARAMETER, "dataVersion: numbers of 64 bits are needed")


def _illegal(what: str, text: str) -> ServerError:
    name = shown(text, characters_max=60)
    return ServerError(
        ResponseCode.INVALID_PARAMETER,
        f"{what} {name!r}: 1 to {NAME_CHARACTERS_MAX} characters are needed, all of them to be seen",
    )
