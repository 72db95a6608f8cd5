"""A broker's settings: what follows from several of them."""

from __future__ import annotations

import pytest

from rocketspark.broker.settings import BrokerSettings


def test_the_address_clients_are_told() -> None:
    assert BrokerSettings().host == "127.0.0.1"
    assert BrokerSettings(listen_host="0.0.0.0").host == "127.0.0.1"
    assert BrokerSettings(listen_host="10.1.1.1").host == "10.1.1.1"
    assert BrokerSettings(listen_host="0.0.0.0", advertised_host="broker.example").host == "broker.example"


@pytest.mark.shows("a broker on every interface that tells clients a loopback address warns")
@pytest.mark.parametrize(("listening", "told"), [("", "127.0.0.1:9"), ("0.0.0.0", "127.0.0.1:9"), ("::", "[::1]:9")])
def test_a_broker_on_every_interface_that_tells_loopback_knows_it(listening: str, told: str) -> None:
    alone = BrokerSettings(listen_host=listening)
    assert (alone.address(9), alone.tells_loopback_alone) == (told, True)
    assert not BrokerSettings(listen_host=listening, advertised_host="10.1.1.1").tells_loopback_alone
    for host in ("127.0.0.1", "localhost", "127.0.1.1", "::1", "[::1]"):
        assert BrokerSettings(listen_host=listening, advertised_host=host).tells_loopback_alone
        assert not BrokerSettings(listen_host=host).tells_loopback_alone


def test_queue_files_are_rounded_up_to_whole_units() -> None:
    assert BrokerSettings(queue_file_bytes=101).store_settings().queue_file_units == 6
