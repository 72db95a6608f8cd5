"""How our brokers greet each other over the port of replication: who knows the secret is let in, nobody else is."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.broker.replication.link import greeting
from rocketspark.broker.replication.link.doors import TrustedHosts
from rocketspark.broker.replication.link.greeting import MasterGreeting, SlaveGreeting
from rocketspark.errors import ConfigError, ReplicationError

pytestmark = pytest.mark.shows("every port with --secure, as a stranger finds it")

OURS, THEIRS = ("inner", "secret"), ("inner", "another")


def talk(master: MasterGreeting, slave: SlaveGreeting, piece: int = 1 << 20, behind: bytes = b"") -> None:
    """Hand each side's bytes to the other in pieces until both are silent; `behind`: what the master says at once."""
    to_master, to_slave = slave.hello(), b""
    while to_master or to_slave:
        answer = b"".join(master.received(to_master[i : i + piece]) for i in range(0, len(to_master), piece))
        to_slave, to_master = answer + (behind if master.is_done else b""), b""
        to_master = b"".join(slave.received(to_slave[i : i + piece]) for i in range(0, len(to_slave), piece))
        to_slave = b""


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_two_of_a_cluster_know_each_other_however_their_bytes_are_cut(piece: int) -> None:
    master, slave = MasterGreeting(OURS), SlaveGreeting(OURS)
    talk(master, slave, piece)
    assert master.is_done
    assert slave.is_done
    assert master.rest == slave.rest == b""


def test_what_comes_behind_the_last_frame_is_the_logs() -> None:
    master, slave = MasterGreeting(OURS), SlaveGreeting(OURS)
    talk(master, slave, behind=b"log")
    assert slave.rest == b"log"


def test_a_slave_with_another_secret_or_name_is_a_stranger() -> None:
    for credentials in (THEIRS, ("else", "secret")):
        with pytest.raises(ReplicationError) as caught:
            talk(MasterGreeting(OURS), SlaveGreeting(credentials))
        assert caught.value.reason == "stranger"


def test_a_greeting_is_good_over_its_own_channel_alone() -> None:
    talk(MasterGreeting(OURS, b"one"), SlaveGreeting(OURS, b"one"))
    for at_master, at_slave in ((b"one", b"two"), (b"", b"two"), (b"one", b"")):
        with pytest.raises(ReplicationError) as caught:
            talk(MasterGreeting(OURS, at_master), SlaveGreeting(OURS, at_slave))
        assert caught.value.reason == "stranger"


def test_a_master_that_does_not_know_the_secret_is_a_stranger_whatever_it_answers() -> None:
    """Also one that sends back what the slave said, or what another master said in another greeting."""
    honest = SlaveGreeting(OURS)
    recorded = MasterGreeting(OURS)
    challenge = recorded.received(honest.hello())
    welcome = recorded.received(honest.received(challenge))
    for answer in (welcome, greeting.frame(greeting.WELCOME, bytes(32)), b""):
        slave = SlaveGreeting(OURS)
        proof = slave.received(slave.hello()[:0] + challenge)
        mirrored = greeting.frame(greeting.WELCOME, proof[7:39])
        with pytest.raises(ReplicationError):
            slave.received(answer or mirrored)
        assert not slave.is_done


def test_no_greeting_is_good_twice() -> None:
    slave, master = SlaveGreeting(OURS), MasterGreeting(OURS)
    hello = slave.hello()
    proof = slave.received(master.received(hello))
    again = MasterGreeting(OURS)
    again.received(hello)
    with pytest.raises(ReplicationError):
        again.received(proof)
    assert not again.is_done


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_whatever_comes_the_outcome_is_a_stranger_or_silence(pieces: list[bytes]) -> None:
    for side in (MasterGreeting(OURS), SlaveGreeting(OURS)):
        with contextlib.suppress(ReplicationError):
            for piece in pieces:
                side.received(piece)
                side.received(greeting.frame(greeting.PROOF, piece))
        assert not side.is_done
        assert len(side.rest) <= greeting.PAYLOAD_BYTES_MAX + 407


def test_hosts_of_rocketmqs_brokers_are_named_by_number() -> None:
    trusted = TrustedHosts("10.0.0.8; 10.1.0.0/16,fd00::/8")
    assert ["10.0.0.8" in trusted, "10.1.2.3" in trusted, "::ffff:10.1.2.3" in trusted, "fd00::1" in trusted] == [
        True
    ] * 4
    assert ["10.0.0.9" in trusted, "master.example" in trusted, "" in trusted] == [False] * 3
    with pytest.raises(ConfigError, match="haTrustedAddresses='master"):
        TrustedHosts("master.example")
