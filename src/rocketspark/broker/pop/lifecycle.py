"""Starts and stops the pops of a broker, from what is in its log, each time it becomes or stops being the master."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from rocketspark.broker.consumers.consumer_offsets import ConsumerOffsets
from rocketspark.broker.messages.timers.timer_messages import TimerMessages
from rocketspark.broker.parts import Messages, StoreReads, Tables
from rocketspark.broker.pop.in_flight import InFlightMessages
from rocketspark.broker.pop.popped_messages import Asks
from rocketspark.broker.pop.rebuild import Rebuild, saved_ms
from rocketspark.broker.pop.revive import Revive
from rocketspark.broker.settings import BrokerSettings
from rocketspark.model.text import whole_number
from rocketspark.store.files import config_files
from rocketspark.store.store import Store

log = logging.getLogger("rocketspark.broker")

# Holds an end of the log: the offsets of pops before it are all written, or an operator set others since.
NOTE = "popOffsetsEnd"


class PopLifecycle:
    """Starts and stops the pops of one broker, several times while it runs."""

    def __init__(
        self,
        store: Store,
        timers: TimerMessages,
        in_flight: InFlightMessages,
        revive: Revive,
        consumer_offsets: ConsumerOffsets,
        broker_name: str,
    ) -> None:
        self._store = store
        self._timers = timers
        self._in_flight = in_flight
        self._revive = revive
        self._consumer_offsets = consumer_offsets
        self._rebuild = Rebuild(store, timers, in_flight, revive, broker_name)
        self._offsets_path = f"{store.settings.root}/config/consumerOffset.json"
        self._note = Path(store.settings.root) / "config" / NOTE
        self._served = False
        self._stopped_at = -1
        consumer_offsets.set_by_hand = self._set_by_hand
        timers.doubt(in_flight.topic, in_flight.check_points.is_unneeded)
        timers.send_on(revive.names.topic_now)
        in_flight.check_points.read_all = revive.read_all
        revive.late.wheel_ms = lambda: timers.read_ms

    def start(self) -> None:
        """Start on the running loop; timer messages must have started before. Raises StoreError."""
        self.begin()
        self._revive.start()

    def begin(self) -> None:
        """Find the messages that are in flight, and serve pops from now on."""
        self._in_flight.offsets.clear()
        self._in_flight.check_points.rolled_ms = self._timers.window_ms
        self._rebuild.take_over(self._consumer_offsets)
        self._revive.begin()
        self._rebuild.run()
        noted, end = self._noted(), self._store.written_position
        if self._served or noted != end:
            # Beyond the end it is of another log.
            since = noted if noted <= end else 0
            self._rebuild.offsets(self._consumer_offsets, saved_ms(self._offsets_path), since)
        self._in_flight.serving = self._served = True

    def _noted(self) -> int:
        """Return the log's end for which the offsets were written; 0 if that is not known."""
        try:
            return whole_number(self._note.read_text()) or 0
        except (OSError, ValueError):
            return 0

    async def _set_by_hand(self) -> Callable[[], None]:
        """Note that an operator sets offsets: those that earlier pops led to must not come back after a kill.

        So the offsets of other pops, which wait for the disk, are to be written with them; and the log has that end on
        the disk, or a power cut would leave a note that seems to be of another log.
        """
        end, offsets = self._store.written_position, self._in_flight.offsets
        if offsets.is_waiting or self._store.flushed_position < end:
            await asyncio.get_running_loop().run_in_executor(None, self._store.flush_log)
            offsets.commit_flushed()
        return lambda: config_files.write(str(self._note), str(end), keep_before=False)

    def stop(self) -> None:
        """Serve no more pops; acknowledgements of this turn of the loop are stored, or answered with an error."""
        if self._in_flight.serving:
            self._in_flight.write_acks()
            self._in_flight.serving = False
            self._stopped_at = self._store.written_position
        self._revive.stop()
        self._in_flight.offsets.stop()

    def finish(self) -> None:
        """Commit all offsets of pops; called after the store's last flush."""
        self._in_flight.offsets.commit_flushed(everything=True)
        self._revive.commit(everything=True)
        if self._store.written_position != self._stopped_at:
            return  # It was a slave since, whose offsets are older than its log.
        try:
            self._note.write_text(str(self._store.written_position))
        except OSError as e:
            log.warning("%s cannot be written: %s; pops are looked through at the next start", self._note, e.strerror)


def pop_lifecycle(
    settings: BrokerSettings, reads: StoreReads, tables: Tables, messages: Messages, others: Asks
) -> PopLifecycle:
    """Make what starts and stops a broker's pops. `others`: asks the other brokers for messages."""
    store = reads.store
    revive = Revive(
        settings,
        store,
        messages.put_message,
        tables.topics,
        tables.groups,
        tables.offsets,
        messages.pops,
        messages.quarantine,
    )
    revive.messages.others, revive.messages.tiering = others, reads.tiering
    return PopLifecycle(store, messages.timers, messages.pops, revive, tables.offsets, settings.broker_name)
