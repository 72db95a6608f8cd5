"""The producer that a reply is for, of any number of members: found by its id, whatever came and went before."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rocketspark.broker.consumers.connected_clients import ConnectedClients
from rocketspark.protocol.json.bodies import Heartbeat, ProducerData

NAMES = st.integers(0, 3)
BEAT, LEAVE, END = "beat", "leave", "end"
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just(BEAT), NAMES, NAMES, st.lists(NAMES, max_size=3)),
        st.tuples(st.just(LEAVE), NAMES, NAMES, st.just([])),
        st.tuples(st.just(END), NAMES, NAMES, st.just([])),
    ),
    max_size=40,
)


class Connection:
    remote_host, sender, is_open, is_writable = "10.0.0.1", None, True, True

    def __init__(self, number: int) -> None:
        self.address = f"10.0.0.1:{number}"


@given(STEPS)
def test_it_is_one_of_those_that_say_the_id_and_the_last_of_them(steps: list[tuple[str, int, int, list[int]]]) -> None:
    clients = ConnectedClients(lambda group: None)
    peers: list[Any] = [Connection(number) for number in range(4)]
    for now, (what, peer, name, groups) in enumerate(steps):
        if what == BEAT:
            beat = Heartbeat(client_id=f"c{name}", producer_data_set=[ProducerData(group_name=f"g{n}") for n in groups])
            clients.beat(peers[peer], beat, "JAVA", 1, now)
        elif what == LEAVE:
            clients.leave(peers[peer], producer_group=f"g{name}")
        else:
            for _ in clients.disconnected_steps(peers[peer]):
                pass
        members = [client for group in clients.producers.values() for client in group.values()]
        for number in range(4):
            said = [client for client in members if client.client_id == f"c{number}"]
            found = clients.producer_named(f"c{number}")
            assert (found is None) == (not said)
            if found is not None:
                assert found.peer in {client.peer for client in said}
                # Of several connections the one that said it last, also in a group that it has left.
                assert found.beat_ms >= max(client.beat_ms for client in said)
        assert clients._saying.keys() == {client.client_id for client in members}
        assert clients.weight == len(members)
