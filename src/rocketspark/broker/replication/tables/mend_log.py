"""What is damaged in a slave's log, taken from its master. Rule: only whole records that fill the damage exactly count.

A broker finds damage at its start. As a slave it would else be in sync with the hole, and be elected with it.
"""

from __future__ import annotations

from rocketspark.errors import RecordError, RocketSparkError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import ViewMessageHeader
from rocketspark.protocol.message import record
from rocketspark.store.store import Store
from rocketspark.transport.connections import Connections

log = LimitedLog("rocketspark.broker.replication")

TIMEOUT_MS = 3000
# Longer damage is no matter of some records: the store has to be copied anew.
BYTES_MAX = 16 << 20


async def mend_log(store: Store, connections: Connections, master: str) -> None:
    """Take the records of each damaged stretch from the master at an address; what it does not have stays damaged."""
    for begin, end in store.log.damaged:
        try:
            found = await _records(connections, master, begin, end)
        except RocketSparkError as e:
            log.warning(
                "%d bytes of the log at %d are damaged, and were not taken from the master at %s: %s. If the master has"
                " these messages, stop this broker, remove its store and start it again",
                end - begin,
                begin,
                master,
                e,
            )
            continue
        if store.mend(begin, found):
            log.warning(
                "%d damaged bytes of the log at %d are mended with the master's: check the disk", end - begin, begin
            )


async def _records(connections: Connections, master: str, begin: int, end: int) -> bytes:
    """Return the master's records from one position to the other. Raises RocketSparkError if they do not fill it."""
    if end - begin > BYTES_MAX:
        raise RecordError(f"more than {BYTES_MAX} bytes are not taken one record after the other")
    found = b""
    peer = await connections.get(master)
    while begin + len(found) < end:
        at = begin + len(found)
        header = ViewMessageHeader(physical_offset=at)
        reply = await peer.request(RequestCode.VIEW_MESSAGE_BY_ID, header, timeout_ms=TIMEOUT_MS)
        body = bytes(reply.raise_for_code(f"view of the message at {at}").body)
        there = record.decode(body)
        if (there.position, there.size) != (at, len(body)) or at + len(body) > end:
            raise RecordError(f"what the master has at {at} is no record that was here")
        found += body
    return found
