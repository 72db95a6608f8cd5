"""RECALL_MESSAGE: a producer takes back a timer message that is not delivered yet."""

from __future__ import annotations

from rocketspark.broker import topic_names
from rocketspark.broker.messages.put_message import FixedFields, PutMessage, pairs_of
from rocketspark.broker.messages.timers.timer_rules import TimerRules
from rocketspark.broker.replication.waits import Durability
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.broker.topics import Topics
from rocketspark.errors import ServerError
from rocketspark.model.route import PERM_WRITE
from rocketspark.protocol import frames
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Request
from rocketspark.protocol.message import properties
from rocketspark.protocol.timers import RecallHeader
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply

RECALL_TAG = b"_RECALL_TAG_"


class TimerHandler:
    """Serves recalls. Order of the checks, codes and properties: RecallMessageProcessor, 5.5.0."""

    def __init__(
        self,
        settings: BrokerSettings,
        rules: TimerRules,
        put_message: PutMessage,
        topics: Topics,
        durability: Durability,
    ) -> None:
        self._settings = settings
        self._rules = rules
        self._put_message = put_message
        self._topics = topics
        self._durability = durability

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.RECALL_MESSAGE, self.recall, RecallHeader)

    def recall(self, peer: Peer, request: Request[RecallHeader], body: bytes) -> bytes | None:
        """RECALL_MESSAGE (370): store a marker due at the same time as the message, which then is not delivered."""
        ext = {"MSG_REGION": self._settings.region}
        try:
            message_id, end = self._store_marker(peer, request.ext)
        except ServerError as e:
            return reply(request.opaque, e.code, ext, remark=e.remark)
        ext["msgId"] = message_id
        if not self._durability.needed or request.flag & frames.ONEWAY_FLAG:
            return reply(request.opaque, 0, ext)
        self._durability.reply_when_durable(peer, request, end, lambda code: reply(request.opaque, code, ext))
        return None

    def _store_marker(self, peer: Peer, h: RecallHeader) -> tuple[str, int]:
        s = self._settings
        if not s.recall_enabled:
            raise ServerError(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
        if not s.broker_permission & PERM_WRITE and not s.recall_when_not_writable:
            raise ServerError(ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker service not available")
        if self._topics.get(h.topic) is None:
            raise ServerError(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{h.topic}] not exist")
        if h.topic in topic_names.NOT_SENDABLE or h.topic == topic_names.TIMER_TOPIC:
            raise ServerError(ResponseCode.NO_PERMISSION, f"recall failed, no timer message is of topic[{h.topic}]")
        now = now_ms()
        handle = self._rules.recalled(h.topic, h.handle, now)
        given = {
            b"TAGS": RECALL_TAG,
            b"TIMER_DEL_UNIQKEY": handle.message_id.encode(),
            b"UNIQ_KEY": handle.message_id.encode(),
            b"TIMER_DELIVER_MS": b"%d" % handle.deliver_ms,
            b"BORN_TIMESTAMP": b"%d" % now,
        }
        if h.group:
            given[b"PGROUP"] = h.group.encode()
        stored = properties.of_pairs(given)
        if pairs_of(stored) != given:
            # A handle or a group made by hand would bring properties of its own.
            raise ServerError(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid")
        _, _, end = self._put_message.accept(
            h.topic, 0, b"0", stored, pairs_of(stored), FixedFields(0, 0, now, peer.packed_host)
        )
        return handle.message_id, end
