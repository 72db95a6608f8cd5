"""One broker of ours and one official under a controller, ours and Apache's: masters killed and replaced under load.

What was answered is there, in the order of its key; the logs are equal; the old master truncates and rejoins.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.java.apache_pair import NAME, caught_up, log_end, members, until
from tests.java.mqadmin import MqAdmin, as_sync_state_set
from tests.support.access_rows import ADMIN, CONFIG, SECRET
from tests.support.failovers import Load, ReplicaSet, check, kill, stored, turn

from rocketspark.admin import Admin
from rocketspark.client import Producer
from rocketspark.model import Message

pytestmark = pytest.mark.xdist_group("jvm")

PAIRS = [("JP", "official"), ("PJ", "ours")]
# The other two are longer to wait for than they show more.
ALL_PAIRS = [
    *PAIRS,
    *(pytest.param(*pair, marks=pytest.mark.soak) for pair in (("PJ", "official"), ("JP", "ours"))),
]
TURNS = [4, pytest.param(10, marks=pytest.mark.soak)]


@pytest.mark.shows(
    "ours+ours, JP and PJ, under Apache's controller and ours: the master killed under sends by key, delay "
    "levels, timers and transactions",
    "the controller killed and started under load; a master that is back before it was missed",
)
@pytest.mark.parametrize(("kinds", "controller"), ALL_PAIRS)
def test_masters_killed_under_load(tmp_path: Path, kinds: str, controller: Any) -> None:
    """The one that began, after the controller was away: the other takes over, and the first one comes back."""
    pair = ReplicaSet(tmp_path, kinds, controller)
    try:
        load = Load(pair)
        try:
            load.wait_for_answers(300)
            before = pair.state()
            if controller == "ours":
                pair.control.kill()
                load.wait_for_answers(100)
                pair.control.start()
                pair.wait_heard()
                assert pair.state() == before
            assert pair.master() is pair.members[0]
            assert kill(pair, load) < 30
            assert pair.master() is pair.members[1]
            assert pair.state().epoch == before.epoch + 1
            load.end()
            # An official broker that takes over delivers again what was due in its last seconds.
            check(pair, load, twice=True)
        finally:
            load.close()
    finally:
        pair.close()


@pytest.mark.shows("electMaster ten times in turn under load")
@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize(("kinds", "controller"), [PAIRS[0], pytest.param(*PAIRS[1], marks=pytest.mark.soak)])
def test_masters_elected_in_turn_under_load(tmp_path: Path, kinds: str, controller: Any, turns: int) -> None:
    """Without open transactions: an official master that has some needs a minute to become a slave."""
    pair = ReplicaSet(tmp_path, kinds, controller)
    try:
        load = Load(pair, trades=b"")
        try:
            load.wait_for_answers(100)
            for _ in range(turns):
                turn(pair, load)
                load.wait_for_answers(20)
            assert pair.master() is pair.members[0]
            load.end()
            check(pair, load, twice=True)
        finally:
            load.close()
    finally:
        pair.close()


@pytest.mark.shows("mixed pairs under access control and a controller, ours and Apache's")
@pytest.mark.parametrize(("kinds", "controller"), [pytest.param(*PAIRS[0], marks=pytest.mark.soak), PAIRS[1]])
def test_a_pair_under_access_control_fails_over_both_ways(tmp_path: Path, kinds: str, controller: Any) -> None:
    """Each copies from the other, ours by haTrustedAddresses and signed, and all that was answered is on both."""
    pair = ReplicaSet(tmp_path, kinds, controller, CONFIG | {"haTrustedAddresses": "127.0.0.1"})
    answered = []
    try:
        with Producer(pair.namesrv, "p", retries=50, access_key=ADMIN, secret_key=SECRET) as producer:
            for number in range(3):
                for body in (b"%d before" % number, b"%d and more" % number):
                    producer.send(Message(topic="T", body=body))
                    answered.append(body)
                # A slave of ours connects anew once it has its master's tables: an official one drops it for a moment.
                before = pair.wait_in_sync()
                before.kill()
                other = pair.other(before).broker
                until(lambda other=other: members(pair.namesrv).get(0) == other)
                producer.send(Message(topic="T", body=b"%d after" % number))
                answered.append(b"%d after" % number)
                before.start()
                pair.wait_in_sync()
        until(lambda: pair.state().epoch == 4)
        for member in pair.members:
            member.kill()
        one, two = (stored(member.store) for member in pair.members)
        try:
            assert [r.body for r in one.iterate(0) if r.topic == b"T"] == answered
            assert bytes(one.log_bytes(0, one.written_position)) == bytes(two.log_bytes(0, two.written_position))
        finally:
            one.close()
            two.close()
    finally:
        pair.close()


@pytest.mark.shows(
    "`mqadmin` getBrokerEpoch, haStatus, electMaster, getSyncStateSet on brokers of ours under a controller",
)
def test_mqadmin_on_brokers_of_ours(tmp_path: Path) -> None:
    pair = ReplicaSet(tmp_path, "PP")
    mqadmin = None
    try:
        with Producer(pair.namesrv, "p") as producer:
            producer.send(Message(topic="T", body=b"1"))
        first, second = pair.members
        until(lambda: caught_up(first.broker))
        mqadmin = MqAdmin(tmp_path, pair.namesrv, first.broker)
        begun = log_end(first.broker)
        where = ("-a", pair.controller, "-bn", NAME, "-c", "DefaultCluster")
        elected = mqadmin.raw("electMaster", *where, "-b", "2")
        assert f"#BrokerMasterAddr {second.broker}" in [" ".join(line.split()) for line in elected]
        pair.wait_in_sync()
        until(lambda: members(pair.namesrv).get(0) == second.broker)
        with Producer(pair.namesrv, "p") as producer:
            producer.send(Message(topic="T", body=b"2"))
        until(lambda: caught_up(second.broker))
        end = log_end(second.broker)
        shown = mqadmin("getBrokerEpoch", "-b", NAME)
        print("\n".join(shown))
        wanted = [f"#Epoch: EpochEntry{{epoch=1, startOffset=0, endOffset={begun}}}"]
        wanted.append(f"#Epoch: EpochEntry{{epoch=2, startOffset={begun}, endOffset={end}}}")
        assert [line for line in shown if line.startswith("#Epoch")] == wanted * 2
        status = mqadmin("haStatus", "-b", second.broker)
        print("\n".join(status))
        assert f"#MasterAddr {second.broker}" in [" ".join(line.split()) for line in status]
        sets = mqadmin.raw("getSyncStateSet", "-a", pair.controller, "-b", NAME)
        assert "#MasterBrokerId 2" in [" ".join(line.split()) for line in sets]
        with Admin(pair.namesrv) as admin:
            told = admin.broker_epochs(NAME)
            assert told is not None
            assert [(e.epoch, e.start_offset, e.end_offset) for e in told.epoch_list[:1]] == [(1, 0, begun)]
            assert (told.epoch_list[1].epoch, told.epoch_list[1].start_offset, told.max_offset) == (2, begun, end)
            told_sets = as_sync_state_set(admin.replica_sets()[NAME])
            assert told_sets == [line.replace("BROKER", first.broker) for line in sets]
    finally:
        if mqadmin is not None:
            mqadmin.close()
        pair.close()
