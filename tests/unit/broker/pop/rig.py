"""The pops of one broker without sockets or loop, by a clock set by hand; it can be stopped and killed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import settings as broker_settings
from tests.support.stand_ins import like
from tests.unit.broker.offline import quarantine_in

from rocketspark import machine
from rocketspark.broker.consumers.consumer_offsets import ConsumerOffsets, encode_offsets
from rocketspark.broker.consumers.long_polling import LongPolling
from rocketspark.broker.consumers.subscription_groups import SubscriptionGroups
from rocketspark.broker.messages import put_message as put_message_module
from rocketspark.broker.messages.put_message import FixedFields, PutMessage, pairs_of
from rocketspark.broker.messages.schedule_messages import ScheduleMessages
from rocketspark.broker.messages.send_rules import MessageSettings, SendRules
from rocketspark.broker.messages.timers.timer_messages import TimerMessages
from rocketspark.broker.messages.timers.timer_rules import TimerRules
from rocketspark.broker.pop.in_flight import Changed, InFlightMessages
from rocketspark.broker.pop.lifecycle import PopLifecycle
from rocketspark.broker.pop.revive import Revive
from rocketspark.broker.statistics.stats import Stats
from rocketspark.broker.storage.json_tables import JsonFile
from rocketspark.broker.topics import Topics
from rocketspark.errors import ServerError
from rocketspark.protocol.json import bodies
from rocketspark.protocol.json.pop_records import CheckPointKey
from rocketspark.protocol.message import properties, record
from rocketspark.protocol.pop_answers import ReceiptHandle
from rocketspark.protocol.timers import TimerCounts
from rocketspark.store import Store, StoreSettings
from rocketspark.store.timers.timer_files import TimerFiles

NOW = 1_795_214_512_000
BORN = bytes.fromhex("7f0000010000c001")
TOPIC, GROUP = "T", "G"
RETRY = "%RETRY%G_T"
REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.now_ms = NOW

    def __call__(self) -> int:
        return self.now_ms


def clock_of(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that the store's times follow."""
    made = Clock()
    monkeypatch.setattr(put_message_module, "machine", like(machine, time=lambda: made.now_ms / 1000))
    return made


class Rig:
    """A store, its intake, its timers and its pops."""

    def __init__(self, root: Path, clock: Clock, **changes: Any) -> None:
        self.root, self.clock, self.changes = root, clock, changes
        self.settings = s = broker_settings(root, **changes)
        self.store = Store(
            StoreSettings(
                root=str(root), index_slots=100, index_entries=400, log_file_bytes=1 << 20, queue_file_units=1000
            )
        )
        self.store.open()
        config = root / "config"
        stats = Stats("C", self.store.take_stored, clock())
        self.quarantine = quarantine_in(root)
        self.topics = Topics(s, JsonFile(config / "topics.json", bodies.TopicConfigTable))
        self.groups = SubscriptionGroups(s, JsonFile(config / "subscriptionGroup.json", bodies.GroupConfigTable))
        self.offsets = ConsumerOffsets(JsonFile(config / "consumerOffset.json", bodies.OffsetTable, encode_offsets))
        self.topics.ensure(TOPIC, 2)
        delays = ScheduleMessages(
            self.store, (1000,), JsonFile(config / "delayOffset.json", bodies.DelayOffsetTable), self.quarantine
        )
        rules = TimerRules(broker_name=s.broker_name, enabled=True, precision_ms=1000, delay_max_ms=3 * 86_400_000)
        send_rules = SendRules(self.store, self.topics, MessageSettings.of(s))
        self.put_message = PutMessage(self.store, send_rules, LongPolling(), delays, stats, rules)
        self.timers = TimerMessages(
            self.store,
            self.put_message,
            TimerFiles(str(root), log_file_bytes=104_000),
            JsonFile(config / "timermetrics", TimerCounts),
            stats,
            self.quarantine,
            clock=clock,
        )
        self.pops = InFlightMessages(
            s, self.put_message, self.offsets, lambda: self.store.flushed_position, clock=clock
        )
        self.revive = Revive(
            s,
            self.store,
            self.put_message,
            self.topics,
            self.groups,
            self.offsets,
            self.pops,
            self.quarantine,
            clock=clock,
        )
        self.service = PopLifecycle(self.store, self.timers, self.pops, self.revive, self.offsets, s.broker_name)
        self.revived: list[tuple[str, str]] = []
        self.pops.revived = lambda topic, group: self.revived.append((topic, group))
        self.timers.open()
        self.service.begin()
        self.told: list[tuple[int, ServerError | None]] = []

    def send(self, key: str, topic: str = TOPIC, queue_id: int = 0, **pairs: str) -> None:
        stored = properties.encode({"UNIQ_KEY": key} | pairs).encode()
        given = pairs_of(stored)
        self.put_message.accept(topic, queue_id, key.encode(), stored, given, FixedFields(0, 0, self.clock(), BORN))

    def pop(
        self, count: int = 32, *, topic: str = TOPIC, queue_id: int = 0, invisible_ms: int = 10_000
    ) -> list[tuple[str, ReceiptHandle]]:
        """Pop as the handler does; returns (key, handle) of each message."""
        start = self.pops.next_offset(topic, GROUP, queue_id)
        if start is None:
            start = self.offsets.get(GROUP, topic, queue_id) or 0
        found = self.store.read(topic, queue_id, start, count, 1 << 20)
        records = [r for chunk in found.records for r in record.decode_all(chunk)]
        if not records:
            return []
        revive_queue = self.pops.next_revive_queue()
        offsets = [r.queue_offset for r in records]
        now = self.clock()
        while (topic, GROUP, queue_id, start, now) in {p.record.key[:5] for p in self.pops.check_points}:
            now += 1
        self.pops.record_pop(
            CheckPointKey(topic, GROUP, queue_id, start, now, self.settings.broker_name),
            offsets,
            invisible_time_ms=invisible_ms,
            revive_queue_id=revive_queue,
            next_offset=found.next_offset,
        )
        flag = "1" if topic.startswith("%RETRY%") else "0"
        return [
            (
                key_of(r),
                ReceiptHandle(
                    start_offset=start,
                    pop_time_ms=now,
                    invisible_time_ms=invisible_ms,
                    revive_queue_id=revive_queue,
                    retry_flag=flag,
                    broker_name=self.settings.broker_name,
                    queue_id=queue_id,
                    queue_offset=r.queue_offset,
                ),
            )
            for r in records
        ]

    def ack(self, *handles: ReceiptHandle) -> list[ServerError | None]:
        """Acknowledge in one turn; returns what each was told."""
        told: list[ServerError | None] = []
        for h in handles:
            topic = RETRY if h.retry_flag == "1" else TOPIC
            self.pops.ack(topic, GROUP, h.queue_id, h, h.queue_offset, lambda end, error: told.append(error))
        self.pops.write_acks()
        assert len(told) == len(handles)
        return told

    def change(self, h: ReceiptHandle, invisible_ms: int) -> Changed:
        told: list[ServerError | None] = []
        topic = RETRY if h.retry_flag == "1" else TOPIC
        changed = self.pops.change_invisible_time(
            topic, GROUP, h.queue_id, h, h.queue_offset, invisible_ms, lambda end, error: told.append(error)
        )
        self.pops.write_acks()
        assert told == [None]
        return changed

    def settle(self) -> None:
        """Do all that is due now."""
        while self.timers.work() == 0.0:
            pass
        while self.revive.work() == 0.0:
            pass

    def at(self, now_ms: int) -> Rig:
        """Go on to a time, second by second, as a broker that runs does."""
        while self.clock.now_ms < now_ms:
            self.clock.now_ms = min(now_ms, self.clock.now_ms + 1000)
            self.settle()
        return self

    async def pass_until(self, now_ms: int) -> None:
        """Go on to a time as `at` does; each second others are asked for messages, and answer."""
        while self.clock.now_ms < now_ms:
            self.at(self.clock.now_ms + 1000)
            for _ in range(3):
                await asyncio.sleep(0)

    def records(self, topic: str, queue_id: int = 0) -> list[record.Record]:
        found: list[record.Record] = []
        low, high = self.store.stored_range(topic, queue_id)
        while low < high:
            read = self.store.read(topic, queue_id, low, 32, 1 << 20, unconfirmed=True)
            found += [r for chunk in read.records for r in record.decode_all(chunk)]
            low = read.next_offset
        return found

    def keys(self, topic: str = RETRY) -> list[str]:
        return [key_of(r) for r in self.records(topic)]

    def revive_records(self) -> list[tuple[bytes, bytes]]:
        """(tag, body) of what came to the revive topic."""
        return [
            (properties.find(r.properties, b"TAGS") or b"", r.body)
            for queue_id in range(8)
            for r in self.records(REVIVE, queue_id)
        ]

    def stop(self) -> None:
        self.service.stop()
        self.store.flush_log()
        self.timers.finish()
        self.service.finish()
        self.topics.unsaved.flush()
        self.groups.unsaved.flush()
        self.offsets.finish()
        self.quarantine.save()
        self.timers.close()
        self.store.close()

    def save(self) -> None:
        """What a broker does every few seconds."""
        self.store.flush_log()
        self.timers.finish()
        self.pops.offsets.commit_flushed()
        for _ in range(2):  # What was noted before, and the rest.
            self.revive.commit()
        self.offsets.changes += 1
        self.offsets.save()
        path = self.root / "config" / "consumerOffset.json"
        os.utime(path, (self.clock() / 1000, self.clock() / 1000))

    def restarted(self) -> Rig:
        self.stop()
        return Rig(self.root, self.clock, **self.changes)

    def killed(self) -> Rig:
        """The same store after SIGKILL: with what is in files and maps, and nothing else."""
        self.timers.close()
        self.store.abandon()
        return Rig(self.root, self.clock, **self.changes)

    def without_power(self) -> Rig:
        """The same store after a power cut: the log ends where it was on the disk, what was written since is zeros."""
        flushed, size = self.store.flushed_position, self.store.log.file_bytes
        self.timers.close()
        self.store.abandon()
        for path in (self.root / "commitlog").iterdir():
            with path.open("r+b") as file:
                kept = min(max(flushed - int(path.name), 0), size)
                file.seek(kept)
                file.write(bytes(size - kept))
        (self.root / "abort").write_text("of another run of the machine")
        return Rig(self.root, self.clock, **self.changes)


def key_of(stored: record.Record) -> str:
    return (properties.find(stored.properties, b"UNIQ_KEY") or b"").decode()
