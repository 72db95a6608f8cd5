"""Every key of the 5.5.0 broker is known with its default; no key promises safety that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketspark.broker.ignored_settings import IGNORED, UNKEPT_PROMISES
from rocketspark.broker.settings import FIELDS, BrokerSettings, parse_properties, read_broker_conf, settings_from
from rocketspark.errors import ConfigError

ROOT = Path(__file__).parents[3]
# As the official classes print them, without names, addresses and folders of the machine.
ROWS = (ROOT / "tests/vectors/broker_settings_5.5.0.tsv").read_text().splitlines()[1:]
OFFICIAL = dict(row.split("\t") for row in ROWS)
# Ours differ on purpose; each has its reason in docs/settings.md.
DIFFERENT = {"bindAddress": "127.0.0.1"}
WRONG = [
    ("listenPort", "x"),
    ("traceOn", "maybe"),
    ("flushDiskType", "NEVER"),
    ("waitTimeMillsInSendQueue", "0"),
    ("sendThreadPoolQueueCapacity", "0"),
    ("maxConnections", "-1"),
]
OURS_ALONE = {"brokerIP1", "brokerIP2", "brokerName", "storePathRootDir", "maxConnections"}


def test_every_key_has_the_official_default() -> None:
    assert len(OFFICIAL) == 481
    mine = BrokerSettings().properties()
    assert {k: v for k, v in mine.items() if k not in OURS_ALONE} == OFFICIAL | DIFFERENT
    assert mine.keys() - OFFICIAL.keys() == OURS_ALONE


def test_every_official_key_is_taken_with_its_default() -> None:
    settings, unknown = settings_from(OFFICIAL)
    assert unknown == []
    assert settings.properties() == BrokerSettings().properties() | {"bindAddress": "0.0.0.0"}


def test_no_key_is_both_used_and_ignored() -> None:
    assert not FIELDS.keys() & IGNORED.keys()
    assert UNKEPT_PROMISES.keys() - {"readOnlyCommitLogStorePaths"} <= IGNORED.keys()


def test_every_key_is_in_the_docs() -> None:
    text = (ROOT / "docs/settings.md").read_text()
    used, _, ignored = text.partition("## Accepted, without effect")
    assert [k for k in FIELDS if f"`{k}`" not in used] == []
    assert [k for k in IGNORED if f"`{k}`" not in ignored] == []
    assert [k for k in UNKEPT_PROMISES if f"`{k}`" not in used] == []


def test_ignored_values_are_kept_and_shown(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("# mine\nsendMessageThreadPoolNums = 16\nmapedFileSizeCommitLog=65536\nnosuch=1\n")
    settings, warnings = read_broker_conf(conf)
    assert settings.properties()["sendMessageThreadPoolNums"] == "16"
    assert settings.properties()["mappedFileSizeCommitLog"] == "65536"
    assert settings.conf_path == str(conf)
    assert warnings == [f"{conf}: unknown key 'nosuch' is ignored"]


def test_values_appear_as_rocketmq_writes_them() -> None:
    values = {"serverChannelMaxIdleTimeSeconds": "60", "traceOn": "false", "namesrvAddr": "a:1;b:2"}
    settings, _ = settings_from(values)
    assert settings.client_idle_ms == 60_000
    shown = settings.properties()
    assert {k: shown[k] for k in values} == values
    assert "authenticationEnabled" not in shown


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("brokerRole", "SYNC_MASTER"),
        ("brokerRole", "SLAVE"),
        ("brokerId", "1"),
        ("enableDLegerCommitLog", "true"),
        ("enableControllerMode", "true"),
        ("aclEnable", "true"),
        ("authenticationEnabled", "true"),
        ("authorizationEnabled", "true"),
        ("enableSlaveActingMaster", "true"),
        ("storeType", "defaultRocksDB"),
        ("metricsExporterType", "OTLP_GRPC"),
        *((key, "2" if "Replicas" in key else "true") for key in sorted(UNKEPT_PROMISES)),
    ],
)
def test_a_promise_that_cannot_be_kept_refuses(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        settings_from({key: value})


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_wrong_value_is_named(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        settings_from({key: value})


@pytest.mark.parametrize(
    ("bound", "told", "address"),
    [
        ("0.0.0.0", "", "127.0.0.1:1"),
        ("", "10.0.0.7", "10.0.0.7:1"),
        ("::1", "", "[::1]:1"),
        ("::", "fd00::7", "[fd00::7]:1"),
        ("::", "[fd00::7]", "[fd00::7]:1"),
    ],
)
def test_the_address_that_clients_are_told(bound: str, told: str, address: str) -> None:
    assert BrokerSettings(listen_host=bound, advertised_host=told).address(1) == address


def test_a_line_that_is_no_setting_is_named() -> None:
    with pytest.raises(ConfigError, match="here line 2: 'oops' is no key=value"):
        parse_properties("a=b\noops\n", "here")
