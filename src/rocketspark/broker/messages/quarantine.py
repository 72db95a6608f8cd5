"""The quarantine: messages that the broker failed to deliver or check, and would fail again.

Rule: one bad message never stops the others of its kind. It stays in the log; its place and the reason are kept here,
in config/quarantine.json, before the progress of its kind is saved beyond it. After a full disk or a failed flush no
message goes into quarantine, as such trouble passes."""

from __future__ import annotations

from collections.abc import Callable

from rocketspark.broker.storage.json_tables import JsonFile, now_ms
from rocketspark.errors import ConfigError, MessageStays, RocketSparkError, ServerError, StoreError, TransportError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import shown
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json.bodies import Quarantined, QuarantineTable

log = LimitedLog("rocketspark.broker")

# When it is full the oldest place is forgotten, with a line in the log; the message itself stays where it is.
ENTRIES_MAX = 1000

Retry = Callable[[Quarantined], None]


def fails_again(error: Exception) -> bool:
    """Tell whether a message that failed with this error would fail again as long as the message itself is the same."""
    if isinstance(error, ServerError):
        return error.code != ResponseCode.SERVICE_NOT_AVAILABLE
    return not isinstance(error, StoreError | TransportError | MessageStays | OSError | MemoryError)


class Quarantine:
    """The quarantined messages of one broker by their places in the log, oldest first."""

    def __init__(self, file: JsonFile[QuarantineTable], *, clock: Callable[[], int] = now_ms) -> None:
        self._file = file
        self._clock = clock
        file.check_version(QuarantineTable().version)
        try:
            table = file.load() or QuarantineTable()
        except ConfigError as e:
            # A broken quarantine file must not keep the broker from starting.
            log.error("the quarantine cannot be read and begins empty: %s", e)
            table = QuarantineTable()
        self._entries = {entry.name: entry for entry in table.entries}
        self._changed = False
        self._retries: dict[str, Retry] = {}
        # Puts on the disk what a retry stored, before the item is forgotten.
        self.flush_log: Callable[[], object] = lambda: None
        # Set aside since the start, by kind.
        self.counts: dict[str, int] = {}

    def retries(self, kind: str, retry: Retry) -> None:
        """Set the function that retries a quarantined message of a kind; it raises the error if that fails again."""
        self._retries[kind] = retry

    def add(
        self, kind: str, topic: str, queue_id: int, queue_offset: int, physical_offset: int, reason: object
    ) -> Quarantined:
        """Put a message into the quarantine, and log it. If it is there already, one more attempt is counted."""
        text = _text(reason)
        name = f"{kind}-{physical_offset}"
        entry = self._entries.get(name)
        self._changed = True
        if entry is not None:
            entry.reason = text
            entry.attempts += 1
            return entry
        entry = Quarantined(
            name=name,
            kind=kind,
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            reason=text,
            first_seen_ms=self._clock(),
            attempts=1,
        )
        self.counts[kind] = self.counts.get(kind, 0) + 1
        log.error(
            "%s is set aside: topic %s, queue %d, offset %d, physical offset %d: %s; the others go on"
            " (rocketspark quarantine list)",
            name,
            shown(topic),
            queue_id,
            queue_offset,
            physical_offset,
            text,
        )
        while len(self._entries) >= ENTRIES_MAX:
            oldest = self._entries.pop(next(iter(self._entries)))
            log.error(
                "the quarantine is full (%d): %s of topic %s at physical offset %d is forgotten: %s",
                ENTRIES_MAX,
                oldest.name,
                shown(oldest.topic),
                oldest.physical_offset,
                oldest.reason,
            )
        self._entries[name] = entry
        return entry

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def entries(self) -> list[Quarantined]:
        """Return all quarantined messages, oldest first."""
        return list(self._entries.values())

    def take(self, entries: list[Quarantined]) -> None:
        """Replace the quarantine by the master's, on a slave; only the newest messages if there are too many."""
        taken = {entry.name: entry for entry in entries[-ENTRIES_MAX:]}
        if taken != self._entries:
            self._entries = taken
            self._changed = True

    def by_kind(self) -> dict[str, int]:
        """Return how many messages of each kind are in the quarantine now."""
        found = dict.fromkeys(self.counts, 0)
        for entry in self._entries.values():
            found[entry.kind] = found.get(entry.kind, 0) + 1
        return found

    def discard(self, name: str) -> None:
        """Remove a message from the quarantine, if it is there, because it came to an end in another way."""
        self._changed |= self._entries.pop(name, None) is not None

    def retry(self, name: str) -> None:
        """Retry a quarantined message. Raises ServerError 22 if there is none of this name.

        If it fails again it stays in the quarantine, and the error is raised.
        """
        entry = self._entry(name)
        retry = self._retries.get(entry.kind)
        if retry is None:
            raise ServerError(ResponseCode.SYSTEM_ERROR, f"nothing here handles {entry.kind!r}: drop it")
        try:
            retry(entry)
            self.flush_log()
        except Exception as e:
            entry.reason = _text(e)
            entry.attempts += 1
            self._changed = True
            raise
        log.info("%s was handled at attempt %d", name, entry.attempts + 1)
        self.discard(name)
        self.save()

    def drop(self, name: str) -> None:
        """Remove a message for good. Raises ServerError 22 if there is none, StoreError if the file is not writable."""
        entry = self._entry(name)
        log.warning("%s of topic %s is dropped from the quarantine: %s", name, shown(entry.topic), entry.reason)
        self.discard(name)
        self.save()

    def _entry(self, name: str) -> Quarantined:
        entry = self._entries.get(name)
        if entry is None:
            raise ServerError(ResponseCode.QUERY_NOT_FOUND, f"nothing named {shown(name)!r} is set aside")
        return entry

    def save(self) -> None:
        """Write the table if it changed. Raises StoreError."""
        if self._changed:
            self._file.save(QuarantineTable(entries=self.entries()))
            self._changed = False


def _text(reason: object) -> str:
    """Return the reason in one line."""
    if isinstance(reason, BaseException) and not isinstance(reason, RocketSparkError):
        return shown(f"{type(reason).__name__}: {reason}")
    return shown(reason)
