"""Every key of the 5.5.0 broker is known with its default; no key promises safety that is not there."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from rocketspark.broker.access.settings import KEYS as ACCESS_KEYS
from rocketspark.broker.broker_conf import read_broker_conf, settings_from
from rocketspark.broker.declared_settings import Hearer
from rocketspark.broker.ignored_settings import IGNORED, UNKEPT_PROMISES
from rocketspark.broker.operations.live_settings import LiveSettings
from rocketspark.broker.replication.role_changes import Replication
from rocketspark.broker.replication.waits import Durability, Mode
from rocketspark.broker.settings import FIELDS, BrokerSettings
from rocketspark.errors import ConfigError, ServerError
from rocketspark.model.conf_lines import parse_properties

pytestmark = pytest.mark.shows(
    "fetchNamesrvAddrByAddressServer is refused by name",
    "settings of the broker are declared once: default, unit, live or not, who hears of it",
)

ROOT = Path(__file__).parents[3]
# As the official classes print them, without names, addresses and folders of the machine.
ROWS = (ROOT / "tests/vectors/broker_settings_5.5.0.tsv").read_text().splitlines()[1:]
OFFICIAL = dict(row.split("\t") for row in ROWS)
# Ours differ on purpose; each has its reason in docs/reference/settings.md.
DIFFERENT = {"bindAddress": "127.0.0.1", "haListenPort": "0"}
WRONG = [
    ("listenPort", "x"),
    ("traceOn", "maybe"),
    ("flushDiskType", "NEVER"),
    ("waitTimeMillsInSendQueue", "0"),
    ("sendThreadPoolQueueCapacity", "0"),
    ("maxConnections", "-1"),
]
OURS_ALONE = {
    "brokerIP1",
    "brokerIP2",
    "brokerName",
    "storePathRootDir",
    "maxConnections",
    "connectionsPerAddressMax",
    "unfinishedFrameTimeout",
    "unfinishedFrameBytesMax",
    "unreadReplyBytesMax",
    "heldPullsMax",
    "heldPullsPerConnectionMax",
    "maxAutoCreateTopics",
    "maxAutoCreateGroups",
    "maxAutoCreatePerMinute",
    "maxConsumerOffsets",
    "maxOpenHalfMessages",
    "haListenEnable",
    "auditLogFileSize",
    "auditLogFileCount",
    "rocketmq.acl.plain.file",
}


@pytest.mark.shows("settings by their RocketMQ names, every default as 5.5.0's")
def test_every_key_has_the_official_default() -> None:
    assert len(OFFICIAL) == 481
    mine = BrokerSettings().properties()
    assert {k: v for k, v in mine.items() if k not in OURS_ALONE} == OFFICIAL | DIFFERENT
    assert mine.keys() - OFFICIAL.keys() == OURS_ALONE


def test_every_official_key_is_taken_with_its_default() -> None:
    settings, unknown = settings_from(OFFICIAL)
    assert unknown == []
    assert settings.properties() == BrokerSettings().properties() | {key: OFFICIAL[key] for key in DIFFERENT}


def test_no_key_is_both_used_and_ignored() -> None:
    assert not FIELDS.keys() & IGNORED.keys()
    assert UNKEPT_PROMISES.keys() - {"readOnlyCommitLogStorePaths"} <= IGNORED.keys()


def test_every_key_is_in_the_docs() -> None:
    text = (ROOT / "docs/reference/settings.md").read_text()
    used, _, ignored = text.partition("## Accepted, without effect")
    assert [k for k in FIELDS if f"`{k}`" not in used] == []
    assert [k for k in IGNORED if f"`{k}`" not in ignored] == []
    assert [k for k in UNKEPT_PROMISES if f"`{k}`" not in used] == []


def test_the_docs_say_of_each_setting_what_is_declared() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text()
    rows = re.findall(r"(?m)^\| `(\w+)` \| (.*?) \| (.*?) \| (.*) \|$", page)
    told = {key: (default.strip(), live.strip()) for key, default, live, _ in rows}
    settings = BrokerSettings()
    shown = {key: settings.properties().get(key, "") for key in told}
    assert told == {key: (shown[key], "live" if FIELDS[key].live is not None else "") for key in told}
    # Those left out promise what is not there; the list below the table has them.
    assert {key for key in FIELDS.keys() - told.keys() if FIELDS[key].live is not None} == set()
    words = {"ms": "ms|The same", "s": "Seconds", "bytes": "Bytes", "hours": "Hours", "percent": "Percent"}
    for key, _, _, what in rows:
        if FIELDS[key].unit and key != "osPageCacheBusyTimeOutMills":
            assert re.search(words[FIELDS[key].unit], what), key


def test_every_key_of_a_task_is_in_use() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text()
    rows = re.findall(r"(?m)^\| \w.* \| (`.*) \|$", page.partition("## By task")[2].partition("## In use")[0])
    keys = [key for row in rows for key in re.findall(r"`([^`]+)`", row)]
    assert len(rows) == 21
    assert len(keys) == len(set(keys)) > 80
    tls = {key for key in keys if key.startswith("tls.") and f"`{key}`" in page.partition("## In use")[2]}
    assert set(keys) - FIELDS.keys() - ACCESS_KEYS.keys() == tls


@pytest.mark.parametrize("key", FIELDS)
def test_just_the_live_settings_may_change_and_who_is_declared_hears_of_it(key: str) -> None:
    settings, declared = BrokerSettings(), FIELDS[key]
    heard: list[Hearer] = []
    live = LiveSettings(settings, {}, {hearer: partial(heard.append, hearer) for hearer in Hearer})
    before = declared.text_of(settings)
    words = {"true": "false", "false": "true", "PULL": "POP", "-1": "0"}
    other = words.get(before, str(int(before) + 1) if before.isdigit() else before + "x")
    if declared.live is None:
        with pytest.raises(ServerError):
            live.update(f"{key}={other}")
        assert (declared.text_of(settings), heard) == (before, [])
    else:
        live.update(f"{key}={other}")
        assert (declared.text_of(settings), heard) == (other, list(declared.live))


@pytest.mark.parametrize("mode", Mode)
def test_of_a_live_setting_that_replication_keeps_it_hears(mode: Mode) -> None:
    """What answers wait for, and which requests are refused, is decided once, until it hears of a change."""
    settings, read = BrokerSettings(), set[str]()

    class Noting:
        def __getattr__(self, name: str) -> Any:
            read.add(name)
            return getattr(settings, name)

    noting: Any = Noting()
    durability = Durability(noting, mock.Mock(), mock.Mock(), mock.Mock(is_sync_master=True))
    durability.mode = mode
    parts = mock.Mock(_settings=noting, _durability=durability, _routes=mock.Mock(table=()))
    Replication.configure(parts)
    kept = {key: field.live for key, field in FIELDS.items() if field.name in read and field.live is not None}
    assert {"inSyncReplicas", "slaveReadEnable", "recallMessageEnable"} <= kept.keys()
    assert {key for key, live in kept.items() if Hearer.REPLICATION not in (live or ())} == set()


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


def test_every_key_of_access_control_is_taken_is_in_the_docs_and_is_never_shown() -> None:
    provider = "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"
    user = '{"username":"admin","password":"marker-secret"}'
    values = {
        key: "true" if field.type is bool else "7" if field.type is int else "" for key, field in ACCESS_KEYS.items()
    } | {"authenticationMetadataProvider": provider, "initAuthenticationUser": user}
    settings, unknown = settings_from(values)
    assert unknown == []
    assert not set(settings.properties()) & set(values)
    assert "marker-secret" not in repr(settings)
    text = (ROOT / "docs/reference/settings.md").read_text()
    assert [key for key in ACCESS_KEYS if f"`{key}`" not in text] == []


@pytest.mark.shows("a setting that promises what is not there refuses to start")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("brokerRole", "MASTER"),
        ("brokerRole", "SLAVE"),
        ("brokerId", "1"),
        ("enableDLegerCommitLog", "true"),
        ("enableControllerMode", "true"),
        ("aclEnable", "true"),
        ("storeType", "defaultRocksDB"),
        ("metricsExporterType", "OTLP_HTTP"),
        *((key, "true") for key in sorted(UNKEPT_PROMISES)),
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


# RocketMQ takes any number for these: it keeps to bounds of its own, or 0 and less mean something.
ANY = {
    "diskMaxUsedSpaceRatio",
    "diskSpaceCleanForciblyRatio",
    "diskSpaceWarningLevelRatio",
    "registerNameServerPeriod",
    "serverChannelMaxIdleTimeSeconds",
    "defaultPopShareQueueNum",
    "timerRollWindowSlot",
}
NUMBERS = sorted(key for key, field in FIELDS.items() if field.type is not bool and not field.is_text)


@pytest.mark.shows("mended: intervals of 0 or -1 set live; hostile settings by request")
@pytest.mark.parametrize("value", ["-1", "1" + "0" * 30, "-1" + "0" * 400, "9" * 5000, "\u00b2", "1e3", ""])
def test_no_number_is_out_of_bounds_at_the_start_or_live(tmp_path: Path, value: str) -> None:
    # An id of -1 is given by a controller.
    for key in sorted(set(NUMBERS) - ANY - {"brokerId"}) if value == "-1" else NUMBERS:
        needed = f"{key}=.*: a whole number is needed, from"
        with pytest.raises(ConfigError, match=needed):
            settings_from({key: value})
        conf = tmp_path / "broker.conf"
        conf.write_text(f"{key}={value}\n")
        with pytest.raises(ConfigError, match=f"broker.conf: {needed}"):
            read_broker_conf(conf)
        conf.write_text("")
        live = LiveSettings(BrokerSettings(conf_path=str(conf)), {}, dict.fromkeys(Hearer, lambda: None))
        with pytest.raises(ServerError, match=needed):
            live.update(f"{key}={value}")
        assert conf.read_text() == ""


@pytest.mark.shows("mended: intervals of 0 or -1 set live; hostile settings by request")
@pytest.mark.parametrize("key", [key for key in NUMBERS if "nterval" in key or "Period" in key])
def test_no_interval_is_0(key: str) -> None:
    if key == "deleteCommitLogFilesInterval":
        # A pause within work that ends.
        settings_from({key: "0"})
        return
    if key in ANY:
        assert settings_from({key: "0"})[0].registration_ms == 10_000
        return
    with pytest.raises(ConfigError, match=r"from 1(00)? to"):
        settings_from({key: "0"})


@pytest.mark.shows("values of broker.conf that RocketMQ takes (0, negative, 2^63-1 where they mean something) start")
@pytest.mark.parametrize("value", ["-2147483648", "-1", "0", "2147483647"])
def test_what_rocketmq_takes_starts(value: str) -> None:
    settings, _ = settings_from(dict.fromkeys(ANY, value))
    assert {key: settings.properties()[key] for key in ANY} == dict.fromkeys(ANY, value)


def test_times_that_are_longs_in_java_may_never_be_reached() -> None:
    keys = ("waitTimeMillsInSendQueue", "osPageCacheBusyTimeOutMills", "channelExpiredTimeout", "transactionTimeOut")
    settings, _ = settings_from(dict.fromkeys(keys, str(2**63 - 1)) | {"fileReservedTime": str(2**31 - 1)})
    assert settings.send_wait_max_ms == settings.slow_put_ms == 2**63 - 1


@pytest.mark.shows("mended: a registerNameServerPeriod over 120 s lets the NameServer drop the broker")
@pytest.mark.parametrize(("given", "kept"), [(-1, 10_000), (0, 10_000), (50, 50), (30_000, 30_000), (600_000, 60_000)])
def test_no_broker_is_dropped_for_registering_seldom(given: int, kept: int) -> None:
    """A NameServer drops one that is silent for two minutes."""
    assert BrokerSettings(register_interval_ms=given).registration_ms == kept


@pytest.mark.shows("mended: intervals of 0 or -1 set live; hostile settings by request")
@pytest.mark.parametrize("value", ["a\x01b", "a\x02b", "x" * 5000])
def test_no_text_holds_what_would_break_a_message(value: str) -> None:
    with pytest.raises(ConfigError, match=r"regionId=.*control character"):
        settings_from({"regionId": value})
