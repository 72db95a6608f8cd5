"""A NameServer's settings: what is no number, too long or unprintable changes nothing and is said shortly."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.errors import ConfigError, ServerError
from rocketspark.namesrv.settings import (
    CONTROLLER_KEYS,
    DEFAULTS,
    KNOWN_UNSET,
    SCAN_MS_MAX,
    SCAN_MS_MIN,
    Settings,
    read_namesrv_conf,
)
from rocketspark.protocol.codes import ResponseCode

pytestmark = pytest.mark.shows(
    'mended: the NameServer\'s settings take "²" or 4,400 digits',
    "`rocketspark namesrv --config`: every key of namesrv.conf known; changes at once, written into the file",
)


@pytest.mark.parametrize(
    "text",
    ["²", "٣", "9" * 4400, "9" * 5000, "9" * 300, "-5", "0", "99", "", "1.5", "1e9", "NaN", "+5000", "5000\x1b[31m"],
)
def test_an_interval_that_is_none_is_refused_and_changes_nothing(text: str) -> None:
    settings = Settings()
    before = settings.properties()
    with pytest.raises(ServerError) as caught:
        settings.update(f"orderMessageEnable=true\nscanNotActiveBrokerInterval={text}")
    assert caught.value.code == ResponseCode.INVALID_PARAMETER
    assert "scanNotActiveBrokerInterval" in caught.value.remark
    assert len(caught.value.remark) < 200
    assert "\x1b" not in caught.value.remark
    assert settings.properties() == before


@pytest.mark.parametrize("ms", [SCAN_MS_MIN, 5000, SCAN_MS_MAX])
def test_an_interval_that_is_one_is_taken(ms: int) -> None:
    settings = Settings()
    settings.update(f"scanNotActiveBrokerInterval={ms}")
    assert settings.scan_s == ms / 1000


def test_an_interval_given_by_code_is_not_asked_about_again() -> None:
    settings = Settings(scan_s=0.05)
    settings.update(f"scanNotActiveBrokerInterval={settings.properties()['scanNotActiveBrokerInterval']}")
    assert settings.scan_s == 0.05


def test_values_that_nobody_could_read_are_refused() -> None:
    settings = Settings()
    for value in ("x" * 5000, "a\x1b[2J", "a\u202eb", "a\ud800"):
        with pytest.raises(ServerError) as caught:
            settings.update(f"productEnvName={value}")
        assert caught.value.code == ResponseCode.INVALID_PARAMETER
        assert len(caught.value.remark) < 200
    assert settings.properties()["productEnvName"] == "center"


@given(st.text())
def test_any_text_is_a_change_or_a_refusal(text: str) -> None:
    settings = Settings()
    try:
        settings.update(f"scanNotActiveBrokerInterval={text}\n{text}")
    except ServerError:
        pass
    assert SCAN_MS_MIN / 1000 <= settings.scan_s <= SCAN_MS_MAX / 1000


FILE = """
# A comment.
listenPort=19876
bindAddress = 0.0.0.0
kvConfigPath=/kv.json
orderMessageEnable=true
returnOrderTopicConfigToBroker=false
scanNotActiveBrokerInterval=1000
supportActingMaster=true
notifyMinBrokerIdChanged=TRUE
deleteTopicWithBrokerRegistration=true
serverChannelMaxIdleTimeSeconds=30
configBlackList=configBlackList;serverWorkerThreads
enableAllTopicList=false
enableTopicList=false
needWaitForService=true
waitSecondsForService=7
enableControllerInNamesrv=true
controllerDLegerGroup=g
controllerDLegerPeers=n0-127.0.0.1:9878
mappedFileSize=10485760
serverWorkerThreads=9
clientWorkerThreads=4
suportActingMaster=true
"""


def conf(folder: Path, text: str) -> Path:
    path = folder / "namesrv.conf"
    path.write_text(text)
    return path


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    settings, warnings = read_namesrv_conf(conf(tmp_path, FILE))
    assert warnings == [f"{tmp_path}/namesrv.conf: unknown key 'suportActingMaster' is ignored"]
    assert (settings.host, settings.port, settings.kv_path) == ("0.0.0.0", 19876, "/kv.json")
    assert (settings.order_topics, settings.return_order_topics, settings.scan_s) == (True, False, 1.0)
    assert (settings.acting_master, settings.notify_min_id, settings.delete_topics) == (True, True, True)
    assert (settings.all_topic_list, settings.topic_list, settings.idle_s) == (False, False, 30)
    assert (settings.wait_needed, settings.wait_seconds, settings.with_controller) == (True, 7, True)
    assert settings.controller == {
        "configBlackList": "configBlackList;serverWorkerThreads",
        "controllerDLegerGroup": "g",
        "controllerDLegerPeers": "n0-127.0.0.1:9878",
        "mappedFileSize": "10485760",
        "scanNotActiveBrokerInterval": "1000",
    }
    shown = settings.properties()
    assert shown.keys() == DEFAULTS.keys()
    assert (shown["configStorePath"], shown["serverWorkerThreads"]) == (f"{tmp_path}/namesrv.conf", "9")
    assert (shown["notifyMinBrokerIdChanged"], shown["serverChannelMaxIdleTimeSeconds"]) == ("true", "30")
    with pytest.raises(ServerError, match="black list"):
        settings.update("serverWorkerThreads=10")


def test_without_a_file_the_defaults_are_those_of_5_5_0() -> None:
    assert Settings().properties() == dict(sorted(DEFAULTS.items()))
    assert not (KNOWN_UNSET - CONTROLLER_KEYS) & DEFAULTS.keys()
    settings = Settings()
    settings.take({"serverChannelMaxIdleTimeSeconds": "0"})
    assert settings.idle_s == math.inf


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("listenPort=70000", "listenPort='70000': a number from 0 to 65535 is needed"),
        ("listenPort=", "listenPort='': a number"),
        ("supportActingMaster=yes", "supportActingMaster='yes': true or false is needed"),
        ("scanNotActiveBrokerInterval=1", "scanNotActiveBrokerInterval='1': a number from 100 to 86400000 is needed"),
        ("serverChannelMaxIdleTimeSeconds=-1", "serverChannelMaxIdleTimeSeconds='-1'"),
        ("bindAddress=", "bindAddress is empty"),
        ("clusterTest=true", "clusterTest='true': not available here"),
        ("useTLS=yes", "useTLS='yes': true, false are known"),
        ("productEnvName=a\x1b[31m", "control character"),
        ("nonsense", "line 1: 'nonsense' is no key=value"),
    ],
)
def test_a_file_with_a_wrong_value_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_namesrv_conf(conf(tmp_path, text))
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/namesrv.conf")
    assert str(caught.value).isprintable()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary.conf").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "missing.conf", tmp_path, tmp_path / "binary.conf"):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_namesrv_conf(path)


def test_a_change_is_written_into_the_file_and_heard(tmp_path: Path) -> None:
    path = conf(tmp_path, "# mine\nsupportActingMaster=false\nlistenPort=1\nodd=1\n")
    settings, _ = read_namesrv_conf(path)
    changes = []
    settings.changed = lambda: changes.append(settings.acting_master)
    settings.update(
        "supportActingMaster=true\nnotifyMinBrokerIdChanged=true\nlistenPort=1\nnoSuchKey=1\nenableTopicList=true"
    )
    assert changes == [True]
    assert path.read_text() == "# mine\nsupportActingMaster=true\nlistenPort=1\nodd=1\nnotifyMinBrokerIdChanged=true\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["namesrv.conf"]
    for text in ("listenPort=2", "bindAddress=::1", "enableControllerInNamesrv=true", "clusterTest=true"):
        with pytest.raises(ServerError) as caught:
            settings.update(f"supportActingMaster=false\n{text}")
        assert caught.value.code == ResponseCode.INVALID_PARAMETER
        assert settings.acting_master
    for key in ("configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"):
        with pytest.raises(ServerError, match="black list"):
            settings.update(f"{key}=x")
    path.unlink()
    path.mkdir()
    with pytest.raises(ServerError, match=r"changed, but .* cannot be written"):
        settings.update("supportActingMaster=false")
    assert not settings.acting_master
