"""Defects planted into the running program, each with the rule of `checker` that has to notice it.

Rule: the function that holds `text` is compiled anew with `defect` in its place, in the child that runs the seed alone.
`python -m tests.simulation.run --scenario tests.simulation.mutants:NAME --seed N` runs one.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import textwrap
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.simulation.disk import replace_everywhere
from tests.simulation.world import World

import rocketspark

PACKAGE = Path(rocketspark.__file__).parent
Scenario = Callable[[World], Coroutine[Any, Any, Any]]


class Planted(NamedTuple):
    """`text` of `file` (below src/rocketspark) becomes `defect`; then `rules`, by commas, break in a run of `seed`.

    `shape`: what the run has to be like for the defect to show, as arguments of `mixed.run`; or `scenario`, a
    module:name of tests.simulation, is run in its place.
    """

    rules: str
    file: str
    text: str
    defect: str
    seed: int | str = 1
    shape: dict[str, Any] = {}
    scenario: str = ""


# The first master hears no other server for longer than the controller waits, and clients hear it all the time.
SPLIT = {"replicas": 2, "retries": 0, "splits": [{"at": 10.0, "node": "broker-a-1", "seconds": 9.0}]}
# One broker without a fault, and two.
ALONE = {"replicas": 1, "retries": 0, "splits": []}
PAIR = {"replicas": 2, "retries": 0, "splits": []}
# The answers of a broker take long, and the connections break while they are on their way.
BREAKS = {
    **ALONE,
    "faults": [
        {"kind": kind, "at": at, "seconds": seconds, "node": "broker-a-1", "other": f"producer-{number}", "value": 0.3}
        for number in range(3)
        for kind, at, seconds in [("slow", 6.0, 34.0), *(("break", 7.0 + turn * 1.7, 0.1) for turn in range(18))]
    ],
}
# A part alone.
RESETS, FAILING, ORDERED, LIVES, ONCE, USERS = (
    {"parts": [part], **ALONE} for part in ("resets", "dead letters", "ordered", "topics", "once", "users")
)
COMPACTED, LITE, TIERED, URGENT = ({"parts": [part], **ALONE} for part in ("compacted", "lite", "tiered", "urgent"))
IN_SYNC = "broker/replication/in_sync_set.py"
TABLE: dict[str, Planted] = {
    "a_send_waits_for_no_slave": Planted(
        "acknowledged is there,keys keep their order,the log is in the order of time",
        "broker/replication/waits.py",
        "            return ALL_IN_SYNC if sync_set_size > 1 else NOBODY\n",
        "            return NOBODY\n",
        shape=SPLIT,
    ),
    "the_set_is_forgotten_while_it_is_asked_for": Planted(
        "acknowledged is there,keys keep their order",
        IN_SYNC,
        "return len(self.all_members)",
        "return 1",
        shape=SPLIT,
    ),
    "readers_see_what_is_not_confirmed": Planted(
        "a place means one message",
        "store/record_lookup.py",
        "        self._confirmed_end = position\n",
        "        self._confirmed_end = None\n",
        shape=SPLIT,
    ),
    "a_slave_keeps_what_its_master_has_not": Planted(
        "it settles",
        "broker/replication/link/links.py",
        "            log.truncate(point)\n",
        "            pass\n",
        shape=SPLIT,
    ),
    "a_pull_passes_over_a_message": Planted(
        "reads go on,groups read everything",
        "client/consumer/puller.py",
        "count as read.\n        self.process_queue.next_offset = next_offset\n",
        "count as read.\n        self.process_queue.next_offset = next_offset + (next_offset % 5 == 4)\n",
        shape=ALONE,
    ),
    "a_commit_is_one_too_far": Planted(
        "commits are of what was given",
        "client/consumer/handed_out.py",
        "        return puller.done\n",
        "        return puller.done + (puller.done > 0)\n",
        shape=ALONE,
    ),
    "what_was_popped_comes_too_soon": Planted(
        "popped is out of sight",
        "broker/pop/in_flight.py",
        "        record = CheckPointRecord(key, invisible_time_ms, tuple(offsets))\n",
        "        record = CheckPointRecord(key, invisible_time_ms // 8, tuple(offsets))\n",
        shape=ALONE,
    ),
    "a_batch_is_stored_twice": Planted(
        "sent once is stored once",
        "broker/handlers/send_message.py",
        "                batch = self._put_message.accept_batch(h, queue_id, body, pairs, peer.packed_host, read)\n",
        "                self._put_message.accept_batch(h, queue_id, body, pairs, peer.packed_host, read)\n"
        "                batch = self._put_message.accept_batch(h, queue_id, body, pairs, peer.packed_host, read)\n",
        shape=ALONE,
    ),
    "what_is_stored_again_has_another_body": Planted(
        "nothing comes from nowhere",
        "broker/messages/put_message.py",
        "            kept.body,\n",
        '            b"x" + kept.body,\n',
        shape=ALONE,
    ),
    "a_copy_is_not_the_master_s": Planted(
        "replicas are equal",
        "store/replica.py",
        "        self._received = position + len(data)\n        self._find_whole(view, start)\n",
        "        self._received = position + len(data)\n        self._find_whole(view, start)\n"
        "        view[at + len(data) - 1] ^= 1\n",
        shape=PAIR,
    ),
    "a_timer_message_is_early": Planted(
        "later messages come once and in time",
        "broker/messages/timers/timer_messages.py",
        "            due = self._slots[0] if self._slots and self._slots[0] + self._precision_ms <= now else None\n",
        "            due = self._slots[0] if self._slots and self._slots[0] - 1900 <= now else None\n",
        shape=ALONE,
    ),
    "a_rollback_commits": Planted(
        "transactions end one way",
        "broker/messages/transactions/transactions.py",
        "        if outcome == sysflags.TRANSACTION_COMMIT:\n            end = self._commit(half, known.position)\n",
        "        if outcome:\n            end = self._commit(half, known.position)\n",
        shape=ALONE,
    ),
    "nobody_is_asked_how_it_ended": Planted(
        "transactions end one way",
        "broker/messages/transactions/transaction_checks.py",
        "        return now - half.since_ms >= max(",
        "        return now - half.since_ms >= 1 << 50 + max(",
    ),
    "a_commit_is_not_remembered": Planted(
        "transactions end one way",
        "broker/messages/transactions/transactions.py",
        "        self._open.pop(key, None)\n        self._op_messages.add(known.queue_offset)\n        if known.aside:",
        "        if known.aside:",
    ),
    "who_was_away_does_not_come_back": Planted(
        "it settles",
        IN_SYNC,
        "            if self.set.joined(replica_id, link.acked, confirmed=confirmed, epoch_start=start) is not None:\n",
        "            if last and last.epoch < 2 and self.set.joined("
        "replica_id, link.acked, confirmed=confirmed, epoch_start=start) is not None:\n",
        shape=SPLIT,
    ),
    "a_reset_goes_one_too_far": Planted(
        "reads go back by resets alone,resets are followed",
        "broker/handlers/admin/admin_groups.py",
        "        self._offsets.reset(h.group, h.topic, queue_id, target)\n",
        "        self._offsets.reset(h.group, h.topic, queue_id, target + 1)\n",
        seed=3,
        shape=RESETS,
    ),
    "a_reset_is_forgotten": Planted(
        "resets are followed",
        "broker/handlers/admin/admin_groups.py",
        "        self._offsets.reset(h.group, h.topic, queue_id, target)\n",
        "        pass\n",
        shape=RESETS,
    ),
    "a_pop_passes_over_what_a_reset_says": Planted(
        "resets are followed",
        "broker/pop/reading.py",
        "            return reset_to\n",
        "            return reset_to + 1\n",
        seed=3,
        shape=RESETS,
    ),
    "one_attempt_too_many": Planted(
        "failed messages are tried again until they are dead",
        "broker/messages/retry_and_dead_letter.py",
        "    dead = delay_level < 0 or times >= max_times\n",
        "    dead = delay_level < 0 or times > max_times\n",
        shape=FAILING,
    ),
    "attempts_are_not_counted": Planted(
        "failed messages are tried again until they are dead",
        "broker/messages/retry_and_dead_letter.py",
        "RetryMessage(topic_of(group), dead, stored, times + 1)",
        "RetryMessage(topic_of(group), dead, stored, times)",
        shape=FAILING,
    ),
    "what_failed_is_not_handed_back": Planted(
        "failed messages are tried again until they are dead",
        "client/consumer/push_consumer.py",
        "            self._returned.give_back(puller, message)\n",
        "            puller.process_queue.finish([message])\n",
        shape=FAILING,
    ),
    "who_fails_in_order_goes_on": Planted(
        "in order each is done before the next",
        "client/consumer/listeners.py",
        "        queue_calls.units.appendleft(unit)\n        if spent",
        "        queue_calls.units.append(unit)\n        if spent",
        shape=ORDERED,
    ),
    "a_lock_is_everybody_s": Planted(
        "no two work on one queue",
        "broker/consumers/rebalance_locks.py",
        "            if owner == client_id or now_ms - since_ms > self._expiry_ms:\n",
        "            if owner:\n",
        seed=4,
        shape=ORDERED,
    ),
    "what_was_deleted_is_there_again": Planted(
        "a topic holds what was sent to it since it was made",
        "broker/handlers/admin/admin_topics.py",
        "            self._store.delete_topic(name)\n",
        "            pass\n",
        seed=3,
        shape=LIVES,
    ),
    "a_pull_passes_over_a_message_of_a_new_topic": Planted(
        "groups are given what a topic holds",
        "client/consumer/puller.py",
        "count as read.\n        self.process_queue.next_offset = next_offset\n",
        "count as read.\n        self.process_queue.next_offset = next_offset + (next_offset % 5 == 4)\n",
        shape=LIVES,
    ),
    "a_deleted_topic_is_written": Planted(
        "what is deleted takes nothing",
        "broker/handlers/admin/admin_topics.py",
        "            self._topics.delete(name)\n",
        "            pass\n",
        seed=3,
        shape=LIVES,
    ),
    "a_batch_is_always_new": Planted(
        "each row is there once",
        "spark/exactly_once/commit_records.py",
        "        return BatchVerdict.REPEAT if batch == last_batch else BatchVerdict.NEW\n",
        "        return BatchVerdict.NEW\n",
        seed=13,
        shape=ONCE,
    ),
    "a_task_s_last_rows_are_forgotten": Planted(
        "each row is there once",
        "spark/exactly_once/end_transactions.py",
        "np.flatnonzero(of_row == number), outcome)\n",
        "np.flatnonzero(of_row == number)[:-1], outcome)\n",
        shape=ONCE,
    ),
    "a_broker_is_missed_by_a_clock_that_stands": Planted(
        "no send waits for a clock that stands",
        "controller/live_table.py",
        "        self._read_s = read_s\n        self._ticked_s = read_s()\n",
        "        self._read_s = read_s = machine.time\n        self._ticked_s = read_s()\n",
        shape={
            "replicas": 2,
            "retries": 0,
            "splits": [{"at": 5.0, "node": "broker-a-1", "seconds": 45.0}],
            "stands": [{"at": 4.5, "node": "controller", "seconds": 45.0, "is_set": False}],
        },
    ),
    "who_was_taken_out_is_kept": Planted(
        "who was taken out is known to nobody",
        "controller/replicas_info.py",
        "    return Decision(events=(Cleaned(h.broker_name, ids),))\n",
        "    return Decision()\n",
        shape=PAIR | {"moves": [{"at": 6.0, "leaves": "broker-a-1", "after_s": 1.0}]},
    ),
    "who_is_deleted_stays": Planted(
        "users do what they may",
        "access/tables.py",
        "        self.replace(_without(self.users, username), _without(self.acls, username))\n",
        "        pass\n",
        shape=USERS,
    ),
    "a_slave_does_not_know_its_master_s_users": Planted(
        "users do what they may",
        "broker/replication/slave_synchronize.py",
        "            access.replace(users, acls)\n",
        "            pass\n",
        shape={"parts": ["users"], "replicas": 2, "splits": [{"at": 12.0, "node": "broker-a-1", "seconds": 9.0}]},
    ),
    "a_fast_send_is_stored_twice": Planted(
        "sent once is stored once",
        "broker/handlers/send_fast_path.py",
        "        placed = self._put_message.accept_run(run.messages, peer.packed_host)\n",
        "        self._put_message.accept_run(run.messages, peer.packed_host)\n"
        "        placed = self._put_message.accept_run(run.messages, peer.packed_host)\n",
        shape=ALONE,
    ),
    "a_producer_makes_an_attempt_too_many": Planted(
        "sent once is stored once",
        "client/producer/in_flight_send.py",
        "        may = made < self.attempts and (\n",
        "        may = made <= self.attempts and (\n",
        shape=BREAKS,
    ),
    "a_recall_is_overheard": Planted(
        "later messages come once and in time",
        "broker/handlers/recall_message.py",
        'b"TIMER_DEL_UNIQKEY": handle.message_id.encode(),',
        'b"TIMER_DEL_UNIQKEY": b"x" + handle.message_id.encode()[1:],',
        shape=ALONE,
    ),
    "the_newest_of_a_key_goes": Planted(
        "the newest of each key is kept",
        "store/compaction/compaction_log.py",
        "        return unit.offset >= newest.get(key_of(stored), -1) and",
        "        return unit.offset > newest.get(key_of(stored), -1) and",
        shape=COMPACTED,
    ),
    "a_deletion_goes_before_what_it_deletes": Planted(
        "a key that was deleted does not come back",
        "store/compaction/compaction_log.py",
        "                if segment.has(unit):\n",
        "                if segment.has(unit) and record_layout.body_bytes_of(segment.record(unit)):\n",
        shape=COMPACTED,
    ),
    "a_batch_begins_where_readers_end": Planted(
        "a batch queue holds what its log says",
        "broker/messages/put_message.py",
        "        base = self._store.stored_range(h.topic, queue_id)[1]\n",
        "        base = self._store.queue_range(h.topic, queue_id)[1]\n",
        seed=8,
        scenario="parts.alone:batched",
    ),
    "a_batch_begins_where_another_is_not_shown": Planted(
        "who reads a batch queue on is led past no message",
        "broker/messages/put_message.py",
        "        base = self._store.stored_range(h.topic, queue_id)[1]\n",
        "        base = self._store.queue_range(h.topic, queue_id)[1]\n",
        seed=10,
        scenario="parts.alone:batched",
    ),
    "a_start_leaves_light_queues_out": Planted(
        "a light queue holds what names it",
        "store/recovery.py",
        "        if light and queues.light:\n",
        "        if False:\n",
        seed=5,
        scenario="parts.alone:light",
    ),
    "an_event_of_a_lite_topic_is_lost": Planted(
        "each message of a lite topic comes",
        "broker/lite/events.py",
        "        self.names[queue] = None\n",
        "        if len(self.names) < 1:\n            self.names[queue] = None\n",
        shape=LITE,
    ),
    "a_lite_topic_is_shown_backwards": Planted(
        "a lite topic keeps its order",
        "client/consumer/lite/lite_calls.py",
        "        return [message for message in given if message.lite_topic in self._subscriptions]\n",
        "        return [message for message in reversed(given) if message.lite_topic in self._subscriptions]\n",
        shape=LITE,
    ),
    "a_lite_topic_never_goes": Planted(
        "a lite topic without messages goes",
        "broker/lite/parts.py",
        "        return last_ms >= 0 and now_ms() - last_ms > kept_ms\n",
        "        return False\n",
        shape=LITE,
    ),
    "the_last_queue_is_one_further_down": Planted(
        "a priority is a queue",
        "broker/messages/send_rules.py",
        "        return max(min(number, config.write_queue_nums - 1), 0), stored\n",
        "        return max(min(number, config.write_queue_nums - 2), 0), stored\n",
        shape=URGENT,
    ),
    "pops_begin_anywhere": Planted(
        "the most urgent is popped first",
        "broker/pop/reading.py",
        "        queues = place.step(count, chance or 0)\n",
        "        queues = place.step(count, machine.randrange(100))\n",
        shape=URGENT,
    ),
    "a_store_does_not_wait_for_the_tier": Planted(
        "what only the tier has is read by offset",
        "broker/storage/tiering.py",
        "        lowest = store.written_position\n",
        "        return store.written_position\n",
        seed=3,
        shape=TIERED,
    ),
    "an_upload_has_no_number_of_its_owner": Planted(
        "what only the tier has is read by offset",
        "store/tiered/object_segments.py",
        "    for number in sorted(numbered, reverse=True):\n",
        "    for number in sorted(numbered, key=lambda number: (number % _UPLOADS, number), reverse=True):\n",
        seed=2,
        shape={"parts": ["objects"]},
    ),
    "a_proxy_asks_on_who_was_master": Planted(
        "groups read everything",
        "proxy/brokers.py",
        "        self._found |= found\n",
        "",
        seed=14,
        scenario="proxies:clients",
    ),
    "a_pop_does_not_look_into_the_tier": Planted(
        "groups are given what only the tier has",
        "broker/pop/reading.py",
        "        if read is not None and not tiering.has(*queue, offset):\n",
        "        if read is not None:\n",
        seed=3,
        shape=TIERED,
    ),
}


def plant(file: str, text: str, defect: str) -> None:
    """Compile the function that holds `text` anew. Raises ValueError if not one function holds it once."""
    source = (PACKAGE / file).read_text()
    if source.count(text) != 1:
        raise ValueError(f"{file} holds {text!r} {source.count(text)} times")
    line = source[: source.index(text.lstrip(" "))].count("\n") + 1
    tree = ast.parse(source)
    places = [(None, node) for node in tree.body] + [
        (outer, node) for outer in tree.body if isinstance(outer, ast.ClassDef) for node in outer.body
    ]
    outer, node = next(
        (outer, node)
        for outer, node in places
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
    )
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    lines = "".join(source.splitlines(keepends=True)[first - 1 : node.end_lineno])
    module = importlib.import_module("rocketspark." + file.removesuffix(".py").replace("/", "."))
    made: dict[str, Any] = {}
    code = compile(
        textwrap.dedent(lines.replace(text, defect)),
        f"planted/{file}",
        "exec",
        flags=__future__.annotations.compiler_flag,
        dont_inherit=True,
    )
    exec(code, module.__dict__, made)
    planted = made[node.name]
    if outer is not None:
        setattr(getattr(module, outer.name), node.name, planted)
        return
    replace_everywhere(getattr(module, node.name), planted)


def scenario_of(planted: Planted) -> Scenario:
    """Return what runs a planted defect."""
    # Not before: the table is read by who runs no world, too.
    if planted.scenario:
        module, _, function = planted.scenario.partition(":")
        run = getattr(importlib.import_module(f"tests.simulation.{module}"), function)
    else:
        from tests.simulation import mixed

        run = partial(mixed.run, adds=False, **planted.shape)

    async def scenario(world: World) -> Any:
        plant(planted.file, planted.text, planted.defect)
        return await run(world)

    return scenario


def __getattr__(name: str) -> Scenario:
    """Return the scenario of a planted defect."""
    if name not in TABLE:
        raise AttributeError(name)
    return scenario_of(TABLE[name])
