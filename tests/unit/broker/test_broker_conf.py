"""broker.conf: RocketMQ's keys, what is unknown, wrong, or promised and not kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketspark.broker.broker_conf import read_broker_conf, settings_from
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ConfigError


def conf(tmp_path: Path, text: str) -> tuple[BrokerSettings, list[str]]:
    path = tmp_path / "broker.conf"
    path.write_text(text, "utf-8")
    return read_broker_conf(path)


def test_a_broker_conf_of_rocketmq_s_is_read(tmp_path: Path) -> None:
    found, warnings = conf(
        tmp_path,
        """
# a comment
! another
brokerClusterName = Prod
brokerName=broker-b
brokerId = 0
listenPort=10921
namesrvAddr=10.0.0.1:9876;10.0.0.2:9876
brokerIP1=10.0.0.9
storePathRootDir=/data/rocketmq=store
deleteWhen = 04
fileReservedTime=48
brokerRole = ASYNC_MASTER
flushDiskType = SYNC_FLUSH
autoCreateTopicEnable=false
messageDelayLevel=1s 2m 3h 4d
mappedFileSizeCommitLog=1048576
mapedFileSizeConsumeQueue=100
maxMessageSize=65536
serverChannelMaxIdleTimeSeconds=60
""",
    )
    assert warnings == []
    assert (found.cluster_name, found.broker_name, found.broker_id, found.listen_port) == ("Prod", "broker-b", 0, 10921)
    assert found.namesrvs() == ["10.0.0.1:9876", "10.0.0.2:9876"]
    assert (found.host, found.store_root, found.sync_flush) == ("10.0.0.9", "/data/rocketmq=store", True)
    assert found.auto_create_topic is False
    assert found.delays_ms() == (1000, 120_000, 10_800_000, 345_600_000)
    assert (found.log_file_bytes, found.queue_file_bytes, found.message_bytes_max) == (1 << 20, 100, 65536)
    assert found.client_idle_ms == 60_000
    store = found.store_settings()
    assert (store.root, store.log_file_bytes, store.queue_file_units) == ("/data/rocketmq=store", 1 << 20, 5)
    assert (store.message_bytes_max, store.delay_ms) == (65536, found.delays_ms())


@pytest.mark.parametrize("key", ["mappedFileSizeCommitLog", "mapedFileSizeCommitLog"])
def test_both_spellings_of_mapped(key: str) -> None:
    found, unknown = settings_from({key: "65536"})
    assert (found.log_file_bytes, unknown) == (65536, [])


def test_both_spellings_of_an_ignored_key(tmp_path: Path) -> None:
    assert conf(tmp_path, "warmMapedFileEnable=true\nflushLeastPagesWhenWarmMapedFile=4\nhaListenPort=1")[1] == []


def test_unknown_keys_are_named_and_ignored(tmp_path: Path) -> None:
    found, warnings = conf(tmp_path, "brokerNam=x\nlistenPort=1\nfoo=bar")
    path = tmp_path / "broker.conf"
    assert warnings == [f"{path}: unknown key 'brokerNam' is ignored", f"{path}: unknown key 'foo' is ignored"]
    assert (found.listen_port, found.broker_name) == (1, "broker-a")


def test_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    assert conf(tmp_path, "") == (BrokerSettings(conf_path=str(tmp_path / "broker.conf")), [])


WRONG: list[tuple[str, str]] = [
    ("listenPort=abc", "listenPort='abc': a whole number is needed"),
    ("listenPort=1.5", "listenPort='1.5': a whole number is needed"),
    ("listenPort=", "listenPort='': a whole number is needed"),
    ("autoCreateTopicEnable=maybe", "autoCreateTopicEnable='maybe': true or false is needed"),
    ("mapedFileSizeCommitLog=1G", "mapedFileSizeCommitLog='1G': a whole number is needed"),
    ("serverChannelMaxIdleTimeSeconds=long", "serverChannelMaxIdleTimeSeconds='long': a whole number is needed"),
    ("listenPort=65536", "listenPort='65536': a whole number is needed, from 0 to 65535"),
    ("listenPort=-1", "listenPort='-1': a whole number is needed, from 0 to 65535"),
    ("brokerRole=SLAVE", "brokerRole SLAVE needs a brokerId above 0"),
    ("brokerRole=MASTER", "brokerRole 'MASTER': ASYNC_MASTER, SYNC_MASTER, SLAVE are known"),
    ("brokerId=1", "brokerId 1 is a slave's"),
    ("flushDiskType=SOMETIMES", "flushDiskType 'SOMETIMES': ASYNC_FLUSH or SYNC_FLUSH is needed"),
    ("storeType=defaultRocksDB", "storeType 'defaultRocksDB' is not supported"),
    ("enableDLegerCommitLog=true", "enableDLegerCommitLog=true is not supported yet; remove it or set it to false"),
    ("enableControllerMode=true", "enableControllerMode=true needs controllerAddr"),
    ("aclEnable=true", "aclEnable and migrateAuthFromV1Enabled need rocketmqHome"),
    ("authenticationEnabled=yes", "authenticationEnabled='yes': true or false is needed"),
    ("authenticationStrategy=org.example.Mine", "authenticationStrategy='org.example.Mine': known here are org.apache"),
    ("authenticationWhitelist=10,ten", "authenticationWhitelist: 'ten' is no request code"),
    ("userCacheMaxNum=-1", "userCacheMaxNum='-1': a whole number is needed"),
    ("initAuthenticationUser=admin", "initAuthenticationUser is not the JSON object that it should be"),
    ('initAuthenticationUser={"username":"a"}', "initAuthenticationUser: password can not be blank"),
    (
        'initAuthenticationUser={"username":"a","password":"b"}',
        "initAuthenticationUser and innerClientAuthenticationCredentials need authenticationMetadataProvider",
    ),
    ('innerClientAuthenticationCredentials={"accessKey":"a"}', "innerClientAuthenticationCredentials needs"),
    ("brokerId=1", "brokerId 1 is a slave's: set brokerRole=SLAVE"),
    ("messageDelayLevel=1s 5x", "messageDelayLevel '1s 5x': numbers with s, m, h or d are needed"),
    ("messageDelayLevel=s", "messageDelayLevel 's': numbers"),
    ("namesrvAddr=nowhere", "'nowhere' is no address: host:port is needed"),
    ("mappedFileSizeCommitLog=100", "mappedFileSizeCommitLog='100': a whole number is needed, from 4096 to 2147483647"),
    ("just a line", "line 1: 'just …' is no key=value"),
    ('"accessKey":"inner","secretKey":"s3cret"}', "line 1: '…' is no key=value"),
]


@pytest.mark.parametrize(("line", "message"), WRONG, ids=lambda v: v.split("=")[0][:30])
def test_what_cannot_be_is_an_error_that_names_the_key(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ConfigError) as e:
        conf(tmp_path, line + "\n")
    assert message in str(e.value)


@pytest.mark.parametrize("key", ["enableDLegerCommitLog", "aclEnable", "enableControllerMode"])
def test_a_promise_that_is_not_asked_for_is_no_matter(tmp_path: Path, key: str) -> None:
    assert conf(tmp_path, f"{key}=false")[1] == []


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.conf cannot be read: No such file"):
        read_broker_conf(tmp_path / "missing.conf")
    (tmp_path / "latin").write_bytes(b"brokerName=\xff\n")
    with pytest.raises(ConfigError, match="latin cannot be read"):
        read_broker_conf(tmp_path / "latin")


@pytest.mark.shows(
    "the commit stage's settings named without effect with the reason; storePathConsumeQueue, storePathIndex "
    "work or warn"
)
def test_places_that_cannot_be_elsewhere_are_a_warning(tmp_path: Path) -> None:
    _, warnings = conf(
        tmp_path,
        "storePathRootDir=/data/s\nstorePathConsumeQueue=/fast/cq\nstorePathIndex=/data/s/index/\nabortFile=/data/s/abort",
    )
    path = tmp_path / "broker.conf"
    assert warnings == [
        f"{path}: storePathConsumeQueue has no effect, as in RocketMQ: its place is /data/s/consumequeue"
        " (storePathRootDir)"
    ]
