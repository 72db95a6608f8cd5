"""Who may be sent what a broker sends of itself to clients: the table beside that of requests.

Rule: a client is sent what he might ask for himself, by the rules of that moment, for the user whose heartbeat made him
a member. Every code that goes to clients stands in `NEEDED`; without a gate everybody may be sent everything.
"""

from __future__ import annotations

from collections.abc import Callable

from rocketspark.access.policies import GROUP, PUB, SUB, bare_group
from rocketspark.access.request_contexts import Context, of_others, topic_context
from rocketspark.broker.access.gate import BrokerGate
from rocketspark.protocol.codes import RequestCode as Code
from rocketspark.transport.gate import Sender


def _publishes(topic: str, group: str) -> list[Context]:
    needed = topic_context(topic, PUB)
    return [needed, *of_others(needed)]


def _is_member(topic: str, group: str) -> list[Context]:
    return [Context(GROUP, bare_group(group), (SUB,))]


def _reads(topic: str, group: str) -> list[Context]:
    needed = topic_context(topic, SUB)
    return [*_is_member(topic, group), needed, *of_others(needed)]


# What each needs, by the topic that it is about and the group whose member is told.
NEEDED: dict[int, Callable[[str, str], list[Context]]] = {
    # The whole half message, for its own topic.
    Code.CHECK_TRANSACTION_STATE: _publishes,
    Code.NOTIFY_CONSUMER_IDS_CHANGED: _is_member,
    Code.GET_CONSUMER_RUNNING_INFO: _is_member,
    # Places in the queues of a topic.
    Code.RESET_CONSUMER_CLIENT_OFFSET: _reads,
    Code.GET_CONSUMER_STATUS_FROM_CLIENT: _reads,
    # A whole message.
    Code.CONSUME_MESSAGE_DIRECTLY: _reads,
}


class Recipients:
    """Asks the checks of a broker."""

    def __init__(self, gate: BrokerGate | None) -> None:
        self._checks = gate.checks if gate is not None else []

    def may_be_sent(self, code: int, sender: Sender | None, topic: str, group: str) -> bool:
        """Return whether a client may be sent this; `sender`: whose heartbeat made him a member."""
        if not self._checks:
            return True
        if sender is None:
            return False
        if code == Code.PUSH_REPLY_MESSAGE_TO_CLIENT:
            # Whose request a reply is for nobody knows; who may send none can have sent no request.
            return all(check.publishes(sender) for check in self._checks)
        needed = NEEDED[code](topic, group)
        return all(check.may(sender, needed) for check in self._checks)
