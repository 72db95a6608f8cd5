"""Defects planted where a rack, a group of controllers or a disk whose bits flip is run, each with its rule.

`python -m tests.simulation.run --scenario tests.simulation.group_mutants:NAME --seed N` runs one.
"""

from __future__ import annotations

from tests.simulation.mutants import Planted, Scenario, scenario_of

JOURNAL = "controller/group/group_journal.py"
TABLE = {
    "a_decision_is_answered_before_it_is_agreed_on": Planted(
        "what was decided stays,none decides alone",
        JOURNAL,
        "            outcome = await self._outcome(functools.partial(self._thread.propose, entry))\n",
        "            self._thread.propose(entry, lambda outcome: None)\n            outcome = True\n",
        seed=3,
        scenario="group:council",
    ),
    "who_is_elected_is_told_the_epoch_before": Planted(
        "an epoch has one master",
        "controller/replicas_info.py",
        "        master_epoch=s.master_epoch + 1,\n",
        "        master_epoch=s.master_epoch,\n",
        scenario="group:council",
    ),
    "what_changes_nothing_is_answered_at_once": Planted(
        "what was decided stays",
        JOURNAL,
        "            outcome = await self._outcome(functools.partial(self._thread.propose, entry))\n",
        "            outcome = not (events or looked) or await self._outcome(\n"
        "                functools.partial(self._thread.propose, entry)\n            )\n",
        seed=3,
        scenario="group:a_leader_was_asleep",
    ),
    "who_has_an_empty_disk_votes": Planted(
        "none decides alone",
        "controller/group/raft_member.py",
        "        if self._log.standing == LEARNER and (",
        "        if not kind and (",
        scenario="group:a_disk_is_lost",
    ),
    "an_entry_is_told_before_it_is_on_the_disk": Planted(
        "it goes on",
        "controller/group/raft_log.py",
        "            self._files.sync_file(self.path)\n        except OSError as e:\n            # What could not be",
        "            pass\n        except OSError as e:\n            # What could not be",
        scenario="group:all_lose_power",
    ),
    "a_master_without_controllers_gives_way": Planted(
        "sends in sync go on",
        "broker/replication/replicas_manager.py",
        '            done = await self._tried("look at the controller\'s data", self._look)\n',
        '            done = await self._tried("look at the controller\'s data", self._look)\n'
        "            if not done and self._role.epoch:\n"
        '                await self._controlled.become_slave("10.9.9.9:1", self._role.epoch)\n',
        scenario="group:two_of_three_are_lost",
    ),
    "a_flush_is_not_waited_for": Planted(
        "acknowledged messages are not where they were",
        "broker/replication/waits.py",
        "        self.flushes = s.sync_flush\n"
        "        self._flush_service.show_flushed(s.sync_flush and self._role.is_master)\n",
        "        self.flushes = False\n",
        scenario="rack:alone",
    ),
    "readers_see_what_is_not_flushed": Planted(
        "reads go on",
        "broker/replication/waits.py",
        "        self._flush_service.show_flushed(s.sync_flush and self._role.is_master)\n",
        "        self._flush_service.show_flushed(False)\n",
        seed=9,
        scenario="rack:all_kinds",
    ),
    "what_a_failed_flush_left_is_taken_for_flushed": Planted(
        "messages are said to be there",
        "store/recovery.py",
        "        log.mapped_files.write_again(max(safe, at.queues_position), found.end)\n",
        "        pass\n",
        seed=9,
        scenario="rack:failed_flushes",
    ),
    "who_lost_its_power_goes_on_in_its_epoch": Planted(
        "the logs of broker-a-1 and broker-a-2 differ",
        "controller/replicas_info.py",
        "    begins_anew = found == h.broker_id and h.may_lack and h.designate_elect\n",
        "    begins_anew = False\n",
        seed=52,
        scenario="rack:among_faults",
    ),
    "damage_ends_the_log": Planted(
        "damage takes nothing else with it",
        "store/recovery.py",
        "    covered = min(max(at.queues_position, log.proven_end()), log.mapped_files.end())\n",
        "    covered = oldest\n",
        seed=4,
        scenario="flips:alone",
    ),
    "damage_is_not_told": Planted(
        "damage is told",
        "store/recovery.py",
        "        if self.skipped:\n            begin",
        "        if not lines and self.missing:\n            begin",
        seed=4,
        scenario="flips:alone",
    ),
    "a_slot_that_is_lost_stays_lost": Planted(
        "damage takes no timers with it",
        "store/timers/timer_files.py",
        "            if position not in linked and self.log",
        "            if position < 0 and self.log",
        seed=4,
        scenario="table_flips:alone",
    ),
    "a_table_that_is_damaged_is_all_there_is": Planted(
        "and its .bak cannot be read",
        "broker/storage/json_tables.py",
        "        for read in (config_files.read_whole, config_files.read_backup):\n",
        "        for read in (config_files.read_whole,):\n",
        seed=28,
        scenario="table_flips:alone",
    ),
    "a_damaged_table_is_the_version_before": Planted(
        "and its .bak cannot be read",
        "store/files/config_files.py",
        "        return crc == zlib.crc32(text.encode())\n",
        "        return crc > 0\n",
        seed=18,
        scenario="table_flips:while_running",
    ),
    "a_unit_that_leads_astray_takes_its_message_along": Planted(
        "damage takes nothing else with it",
        "store/tiered/queue_tier.py",
        "        for at in places:\n",
        "        for at in places[:1]:\n",
        seed=8,
        scenario="tier_flips:folder",
    ),
    "a_damaged_body_of_the_tier_is_given_out": Planted(
        "what is given is what was sent",
        "store/tiered/queue_tier.py",
        "            found = record.decode(stored)\n",
        "            found = record.decode(stored, check_crc=False)\n",
        seed=1,
        scenario="tier_flips:objects",
    ),
    "a_receive_that_waits_asks_once_who_may": Planted(
        "who may no more is given nothing",
        "proxy/consuming/receive.py",
        "            if call.check_again is not None:\n",
        "            if call.check_again is not None and not found:\n",
        seed=2,
        scenario="grpc_users:clients",
    ),
    "who_comes_while_users_are_fetched_waits_for_nothing": Planted(
        "who may no more is given nothing",
        "proxy/guard.py",
        "and now_s - self._fetched_s >= limit_s and tried_since_s < WAIT_S:\n",
        "and now_s < 0:\n",
        seed=56,
        scenario="grpc_users:clients",
    ),
    "a_slave_keeps_its_damage": Planted(
        "damage takes nothing else with it",
        "store/replica.py",
        "        if not log.is_replica or not log.may_be_mended(begin, end):\n",
        "        if log.damaged:\n",
        seed=4,
        scenario="flips:of_a_slave",
    ),
}


def __getattr__(name: str) -> Scenario:
    """Return the scenario of a planted defect."""
    if name not in TABLE:
        raise AttributeError(name)
    return scenario_of(TABLE[name])
