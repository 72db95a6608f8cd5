"""How large a request may be: looked at before anybody is asked who sent it, and what he may do. Pure.

Rule: whatever is done for each entry of a request is done in turns of the loop, and for so many entries at most.
"""

from __future__ import annotations

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
