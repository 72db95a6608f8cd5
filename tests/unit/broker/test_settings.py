"""A broker's settings: what follows from several of them."""

from __future__ import annotations

from rocketspark.broker.settings import BrokerSettings


def test_the_address_clients_are_told() -> None:
    assert BrokerSettings().host == "127.0.0.1"
    assert BrokerSettings(listen_host="0.0.0.0").host == "127.0.0.1"
    assert BrokerSettings(listen_host="10.1.1.1").host == "10.1.1.1"
    assert BrokerSettings(listen_host="0.0.0.0", advertised_host="broker.example").host == "broker.example"


def test_queue_files_are_rounded_up_to_whole_units() -> None:
    assert BrokerSettings(queue_file_bytes=101).store_settings().queue_file_units == 6
