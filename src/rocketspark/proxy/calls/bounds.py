"""How large a request may be: looked at before anybody is asked who sent it, and what he may do. Pure.

Rule: whatever is done for each entry of a request is done in turns of the loop, and for so many entries at most.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from rocketspark.proxy.calls.statuses import Refused
from rocketspark.proxy.wire.codes import Code

# Messages or handles of one call: a broker's reply names each of a batch, in a header of 1 MiB at most.
ENTRIES_MAX = 16_384
# Entries that are worked on in one turn of the loop.
TURN = 256
# Of any request but messages, whose bodies and properties have bounds of their own.
REQUEST_BYTES_MAX = 4 << 20
# What a client may tell of itself.
SETTINGS_BYTES_MAX = 256 << 10
TOPICS_MAX = 1000
_LISTED = {"SendMessage": "messages", "AckMessage": "entries", "SyncLiteSubscription": "lite_topic_set"}


# Of what all clients together may have, those of one host have so much at most.
OF_HOST = 0.75


class Shares:
    """What clients have of something, by host. `most`: of all together; `refusal`: what one is told who asks for more.

    Its methods raise Refused 42900.
    """

    def __init__(self, most: int, refusal: str) -> None:
        self.most, self._refusal = most, refusal
        self.total, self.of_host = 0, Counter[str]()

    def check(self, host: str, size: int = 1) -> None:
        """See that so much more may be had."""
        if self.total + size > self.most or self.of_host[host] + size > self.most * OF_HOST:
            raise Refused(Code.TOO_MANY_REQUESTS, f"flow limit: {self._refusal}")

    def take(self, host: str, size: int) -> None:
        """Count what is had, if it may be."""
        if size > 0:
            self.check(host, size)
        self.total += size
        self.of_host[host] += size

    def give(self, host: str, size: int) -> None:
        """Count what is had no more."""
        self.total -= size
        self.of_host[host] -= size
        if not self.of_host[host]:
            del self.of_host[host]


def check_size(rpc: str, request: Any) -> None:
    """Raise Refused for a request that is too large."""
    listed = _LISTED.get(rpc)
    if listed is not None and (count := len(getattr(request, listed))) > ENTRIES_MAX:
        code = Code.MESSAGE_CORRUPTED if rpc == "SendMessage" else Code.BAD_REQUEST
        raise Refused(code, f"{listed}: there are {count}, at most {ENTRIES_MAX} go together")
    if rpc == "SendMessage":
        return
    if (size := request.ByteSize()) > REQUEST_BYTES_MAX:
        raise Refused(Code.BAD_REQUEST, f"the request has {size} bytes, at most {REQUEST_BYTES_MAX} are allowed")
    if rpc == "Telemetry" and request.HasField("settings"):
        _check_settings(request.settings)


def _check_settings(told: Any) -> None:
    if (size := told.ByteSize()) > SETTINGS_BYTES_MAX:
        raise Refused(Code.BAD_REQUEST, f"settings have {size} bytes, at most {SETTINGS_BYTES_MAX} are allowed")
    if (count := len(told.publishing.topics) + len(told.subscription.subscriptions)) > TOPICS_MAX:
        raise Refused(Code.BAD_REQUEST, f"settings name {count} topics, at most {TOPICS_MAX} are allowed")
