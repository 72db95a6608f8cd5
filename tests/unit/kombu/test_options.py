"""What URLs and transport options say."""

from __future__ import annotations

from typing import Any

import pytest
from kombu import Connection

import rocketspark.kombu
from rocketspark.kombu.options import OptionIllegal, Settings, settings_of

pytestmark = pytest.mark.shows("`rocketmq://` URLs and transport options; a wrong one is named in one line")


def settings(url: str, **more: Any) -> Settings:
    return settings_of(Connection(url, **more))


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("rocketmq://", "127.0.0.1:9876"),
        ("rocketmq://mq", "mq:9876"),
        ("rocketmq://mq:1234", "mq:1234"),
        ("rocketmq://a:1;rocketmq://b:2", "a:1;b:2"),
        ("rocketmq://u:p@a:1/x;b", "a:1;b:9876"),
        ("rocketspark://mq:1", "mq:1"),
    ],
)
def test_urls(url: str, addresses: str) -> None:
    connection = Connection(url)
    assert settings_of(connection).namesrv == addresses
    assert connection.get_transport_cls() is rocketspark.kombu.Transport


def test_without_the_import_a_transport_is_named_by_its_path() -> None:
    connection = Connection("rocketmq://mq:1", transport="rocketspark.kombu:Transport")
    assert (connection.get_transport_cls(), connection.hostname) == (rocketspark.kombu.Transport, "mq")


def test_what_lets_a_client_in() -> None:
    found = settings("rocketmq://alice:secret@mq:1/prod", ssl={"tls_ca": "ca.pem"})
    wanted = {"access_key": "alice", "secret_key": "secret", "use_tls": True, "tls_ca": "ca.pem"}
    assert (found.access, found.namespace) == (wanted, "prod")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"visibility_timeot": 5}, "no transport option 'visibility_timeot': did you mean 'visibility_timeout'?"),
        ({"visibility_timeout": 0}, "visibility_timeout 0.0 is not from 1 to 43200"),
        ({"visibility_timeout": "soon"}, "Expected `float`, got `str` - at `$.visibility_timeout`"),
        ({"priority_steps": [0, 12]}, "is not of numbers from 0 to 9"),
        ({"priority_steps": []}, "is not of numbers from 0 to 9"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionIllegal) as caught:
        Connection("rocketmq://", transport_options=options).transport  # noqa: B018
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_priority_steps_are_put_in_order() -> None:
    assert settings("rocketmq://", transport_options={"priority_steps": [9, 0, 3, 3]}).priority_steps == (0, 3, 9)
