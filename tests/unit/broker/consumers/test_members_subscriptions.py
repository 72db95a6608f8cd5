"""What members of a group told stays while somebody's weight counts it; those who are silent go in turns."""

from __future__ import annotations

from typing import Any

import pytest

from rocketspark.broker.consumers.connected_clients import ConnectedClients, ConsumerGroup
from rocketspark.protocol.json.bodies import ConsumerData, Heartbeat, ProducerData, SubscriptionBody

pytestmark = pytest.mark.shows("memory of subscriptions: nothing of a member stays behind that no weight counts")


class Connection:
    remote_host, sender, is_open, is_writable = "10.0.0.1", None, True, True

    def __init__(self, number: int) -> None:
        self.address = f"10.0.0.1:{number}"


def told(clients: ConnectedClients, peer: Any, *, codes: int, version: int, client_id: str = "") -> ConsumerGroup:
    one = SubscriptionBody(topic="t", code_set=[*range(codes)], sub_version=version)
    data = ConsumerData(group_name="g", subscription_data_set=[one])
    beat = Heartbeat(client_id=client_id or peer.address, consumer_data_set=[data])
    clients.beat(peer, beat, "JAVA", 1, 0)
    return clients.consumers["g"]


def test_what_a_member_told_at_length_goes_with_it() -> None:
    clients = ConnectedClients(lambda group: None)
    light, heavy = Connection(1), Connection(2)
    told(clients, light, codes=0, version=1)
    group = told(clients, heavy, codes=1000, version=2)
    assert (len(group.subscriptions["t"].codes), clients.weight > 100) == (1000, True)
    clients.leave(heavy, consumer_group="g")
    assert group.subscriptions == {}
    assert len(told(clients, light, codes=0, version=1).subscriptions["t"].codes) == 0
    # The same where it tells less of itself, and where it comes back over another connection.
    assert len(told(clients, heavy, codes=1000, version=2).subscriptions["t"].codes) == 1000
    assert len(told(clients, heavy, codes=0, version=1).subscriptions["t"].codes) == 0
    told(clients, heavy, codes=1000, version=2, client_id="c")
    heavy.is_open = False
    assert len(told(clients, Connection(3), codes=0, version=1, client_id="c").subscriptions["t"].codes) == 0


def test_members_are_told_of_new_ones_other_topics_and_other_expressions_alone() -> None:
    changes: list[ConsumerGroup] = []
    clients = ConnectedClients(changes.append)
    peer: Any = Connection(1)

    def tells(version: int, **expressions: str) -> int:
        wanted = [SubscriptionBody(topic=t, sub_string=e, sub_version=version) for t, e in expressions.items()]
        data = ConsumerData(group_name="g", subscription_data_set=wanted)
        clients.beat(peer, Heartbeat(client_id="c", consumer_data_set=[data]), "JAVA", 1, 0)
        count = len(changes)
        changes.clear()
        return count

    assert tells(1, t="a", u="*") == 1
    assert (tells(1, t="a", u="*"), tells(2, t="a", u="*")) == (0, 0)
    assert tells(3, t="b", u="*") == 1
    # An older one changes nothing, whatever it says.
    assert tells(2, t="a", u="*") == 0
    assert clients.consumers["g"].subscriptions["t"].expression == "b"
    assert (tells(3, t="b", u="*", v="*"), tells(3, t="b", v="*")) == (1, 1)


def test_what_others_told_as_well_stays() -> None:
    clients = ConnectedClients(lambda group: None)
    one, other = Connection(1), Connection(2)
    for peer, codes in ((one, 600), (other, 1000)):
        group = told(clients, peer, codes=codes, version=codes)
    clients.leave(other, consumer_group="g")
    assert len(group.subscriptions["t"].codes) == 1000
    # Few tags of one that is gone stay as in RocketMQ: the newest counts.
    clients = ConnectedClients(lambda group: None)
    told(clients, one, codes=0, version=1)
    group = told(clients, other, codes=3, version=2)
    clients.leave(other, consumer_group="g")
    assert len(group.subscriptions["t"].codes) == 3


def test_what_those_who_stay_told_themselves_stays_when_one_of_many_topics_goes() -> None:
    """Their pulls name no filter, and their next heartbeat may be half a minute away."""
    clients = ConnectedClients(lambda group: None)
    topics = ["t", "%RETRY%g", *map(str, range(200))]
    for number, count in ((1, 2), (2, 202)):
        wanted = [SubscriptionBody(topic=topic, sub_string="a", tags_set=["a"], code_set=[97]) for topic in topics]
        wanted[1] = SubscriptionBody(topic="%RETRY%g")
        data = ConsumerData(group_name="g", subscription_data_set=wanted[:count])
        peer: Any = Connection(number)
        clients.beat(peer, Heartbeat(client_id=peer.address, consumer_data_set=[data]), "JAVA", 1, 0)
    clients.leave(peer, consumer_group="g")
    assert list(clients.consumers["g"].subscriptions) == topics[:2]


def test_a_long_kind_of_a_filter_that_others_know_goes_with_who_told_it() -> None:
    clients = ConnectedClients(lambda group: None)
    for number, kind in ((1, "TAG"), (2, "x" * 100_000)):
        wanted = [SubscriptionBody(topic="t", expression_type=kind, sub_version=number)]
        data = ConsumerData(group_name="g", subscription_data_set=wanted)
        peer: Any = Connection(number)
        clients.beat(peer, Heartbeat(client_id=peer.address, consumer_data_set=[data]), "JAVA", 1, 0)
    assert len(clients.consumers["g"].subscriptions["t"].expression_type) == 100_000
    clients.leave(peer, consumer_group="g")
    assert clients.consumers["g"].subscriptions == {}


def test_many_who_are_silent_are_dropped_over_several_turns() -> None:
    clients = ConnectedClients(lambda group: None)
    names = [ProducerData(group_name=f"p{n}") for n in range(5000)]
    clients.beat(Connection(1), Heartbeat(client_id="c", producer_data_set=names), "JAVA", 1, 0)
    assert sum(1 for _ in clients.expire_steps(1 << 60)) >= 9
    assert (clients.producers, clients.weight) == ({}, 0)
