"""Checks requests about pops. Rule: codes, remarks and their order are those of RocketMQ 5.5.0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocketspark.broker.consumers.subscription_groups import check_consumes
from rocketspark.broker.parts import Tables
from rocketspark.broker.pop.in_flight import InFlightMessages
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ProtocolError, ServerError
from rocketspark.model.route import PERM_READ
from rocketspark.model.text import shown
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers import Header, PopHeader, Request
from rocketspark.protocol.headers.pop import ATTEMPT_ID_MAX
from rocketspark.protocol.json.bodies import TopicConfig
from rocketspark.protocol.pop_answers import ReceiptHandle
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer
from rocketspark.transport.request_frames import reply

# RocketMQ's limit of one pop.
COUNT_MAX = 32


# The remark of RocketMQ's replies that set none.
NO_REMARK = "not set any response code"


def refusing(request: Request[Any], header: Header, answer: Callable[[], Answer]) -> Answer:
    """Return the result of `answer`, or, if that raises ServerError, a reply with the code and this header.

    `header`: a reply header whose numbers are 0, which RocketMQ sends with a refusal too.
    """
    try:
        return answer()
    except ServerError as e:
        return reply(request.opaque, e.code, header, remark=e.remark)


class PopChecks:
    """Checks requests; each method raises ServerError."""

    def __init__(self, settings: BrokerSettings, tables: Tables, pops: InFlightMessages) -> None:
        self._settings = settings
        self._topics = tables.topics
        self._groups = tables.groups
        self._pops = pops

    def check_pop(self, peer: Peer, h: PopHeader) -> TopicConfig:
        """Check a pop; return its topic's settings."""
        s = self._settings
        self.check_what_is_asked(h.count_max, h.invisible_time_ms, h.attempt_id)
        if not s.timers_enabled:
            remark = f"the broker[{s.host}] pop message is forbidden because timerWheelEnable is false"
            raise ServerError(ResponseCode.SYSTEM_ERROR, remark)
        config = self.check_queue(peer, h.topic, h.queue_id)
        self.check_group(peer, h.group, h.topic)
        return config

    def check_what_is_asked(self, count_max: int, invisible_time_ms: int, attempt_id: str | None) -> None:
        """Refuse a pop that this broker may not answer, and one of a wrong number of messages or invisible time, or
        with a long attempt id, which an ordered one would leave here.
        """
        s = self._settings
        if not s.broker_permission & PERM_READ:
            raise ServerError(ResponseCode.NO_PERMISSION, f"the broker[{s.host}] pop message is forbidden")
        if count_max > COUNT_MAX:
            remark = f"the broker[{s.host}] pop message's num is greater than {COUNT_MAX}"
            raise ServerError(ResponseCode.INVALID_PARAMETER, remark)
        # RocketMQ holds a request for no message, and ends with an exception for fewer.
        if count_max < 1:
            remark = f"the broker[{s.host}] pop message's num is less than 1"
            raise ServerError(ResponseCode.INVALID_PARAMETER, remark)
        if attempt_id is not None and len(attempt_id) > ATTEMPT_ID_MAX:
            remark = f"the attempt's id has {len(attempt_id)} characters, more than {ATTEMPT_ID_MAX}"
            raise ServerError(ResponseCode.INVALID_PARAMETER, remark)
        self.check_invisible_time(invisible_time_ms)

    def check_invisible_time(self, invisible_time_ms: int) -> None:
        """Refuse an invisible time that is too long for the timer wheel; RocketMQ then finds no message."""
        most_ms = self._settings.timer_delay_max_s * 1000
        if not 0 <= invisible_time_ms <= most_ms:
            raise ServerError(
                ResponseCode.INVALID_PARAMETER,
                f"the invisible time of {invisible_time_ms} ms is not from 0 to {most_ms} (timerMaxDelaySec)",
            )

    def check_readable(self) -> None:
        """Refuse the request if brokerPermission does not let the broker be read."""
        s = self._settings
        if not s.broker_permission & PERM_READ:
            raise ServerError(ResponseCode.NO_PERMISSION, f"the broker[{s.host}] peeking message is forbidden")

    def check_queue(self, peer: Peer, topic: str, queue_id: int) -> TopicConfig:
        """Check the topic and queue of a request; a queue id below 0 stands for all. Return the topic's settings."""
        config = self._topic(topic)
        if not config.perm & PERM_READ:
            raise ServerError(ResponseCode.NO_PERMISSION, f"the topic[{topic}] peeking message is forbidden")
        if queue_id >= config.read_queue_nums:
            raise self._illegal_queue(peer, config, queue_id, ResponseCode.INVALID_PARAMETER)
        return config

    def _topic(self, topic: str) -> TopicConfig:
        config = self._topics.get(topic)
        if config is not None and topic not in self._topics.table:
            raise ServerError(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"light queues such as {shown(topic)} are pulled, not popped"
            )
        if config is None:
            raise ServerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")
        return config

    @staticmethod
    def _illegal_queue(peer: Peer, config: TopicConfig, queue_id: int, code: int) -> ServerError:
        return ServerError(
            code,
            f"queueId[{queue_id}] is illegal, topic:[{config.topic_name}] topicConfig.readQueueNums:"
            f"[{config.read_queue_nums}] consumer:[/{peer.address}]",
        )

    def check_group(self, peer: Peer, name: str, topic: str) -> None:
        """Check that a group may read a topic."""
        check_consumes(self._groups.get(name, by=peer.address), name)
        if self._groups.forbidden and not self._groups.readable(name, topic):
            raise ServerError(ResponseCode.NO_PERMISSION, f"the consumer group[{name}] is forbidden for topic[{topic}]")

    def check_again(self, topic: str, group: str) -> None:
        """Check topic and group once more, as they may have changed while a request was held; neither is created."""
        config = self._topics.table.get(topic)
        if config is None:
            raise ServerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")
        check_consumes(self._groups.table.get(group), group)
        if not config.perm & PERM_READ:
            raise ServerError(ResponseCode.NO_PERMISSION, f"the topic[{topic}] peeking message is forbidden")

    def check_popped(self, peer: Peer, topic: str, queue_id: int) -> TopicConfig:
        """Check the topic and queue from which a message is said to be popped; return the topic's settings."""
        config = self._topic(topic)
        if not 0 <= queue_id < config.read_queue_nums:
            raise self._illegal_queue(peer, config, queue_id, ResponseCode.MESSAGE_ILLEGAL)
        self.check_master()
        return config

    @property
    def is_master(self) -> bool:
        """Whether messages are popped here."""
        return self._pops.serving

    def is_current(self, config: TopicConfig) -> bool:
        """Tell whether these are still the settings of their topic."""
        return self._topics.table.get(config.topic_name) is config

    def check_master(self) -> None:
        """Refuse a pop or acknowledgement on a broker that is not the master, as it cannot store check points."""
        if not self._pops.serving:
            remark = "this broker is no master: nothing is popped or acknowledged here"
            raise ServerError(ResponseCode.SERVICE_NOT_AVAILABLE, remark)

    @staticmethod
    def handle(text: str) -> ReceiptHandle:
        """Decode a receipt handle; clients may leave out its last field, the offset."""
        if text.count(" ") == 6:
            text += " -1"
        try:
            return ReceiptHandle.decode(text)
        except ProtocolError as e:
            raise ServerError(ResponseCode.INVALID_PARAMETER, f"{e}: {shown(text)!r}"[:400]) from e
