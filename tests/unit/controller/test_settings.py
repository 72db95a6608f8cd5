"""A controller's settings: RocketMQ's keys and defaults, what a single node cannot keep, live changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketspark.controller.settings import ControllerSettings, read_controller_conf
from rocketspark.errors import ConfigError, ServerError

pytestmark = pytest.mark.shows("`rocketspark controller`, `enableControllerInNamesrv`")

# As Apache's controller 5.5.0 shows them, without those that depend on the machine or on its configuration.
OFFICIAL = """
configBlackList=configBlackList;configStorePath controllerRequestThreadPoolQueueCapacity=50000
controllerThreadPoolNums=16
controllerType=DLedger electMasterMaxRetryCount=3 enableElectUncleanMaster=false enableShutdownGracefully=false
isProcessReadEvent=false mappedFileSize=1073741824 metricGrpcExporterIntervalInMills=60000
metricGrpcExporterTimeOutInMills=3000 metricLoggingExporterIntervalInMills=10000 metricsExporterType=DISABLE
metricsGrpcExporterHeader= metricsGrpcExporterTarget= metricsInDelta=false metricsLabel= metricsPromExporterHost=
metricsPromExporterPort=5557 notifyBrokerRoleChanged=true scanInactiveMasterInterval=5000
scanNotActiveBrokerInterval=5000 serverAsyncSemaphoreValue=64 serverCallbackExecutorThreads=0
serverChannelMaxIdleTimeSeconds=120 serverNettyWorkerGroupEnable=true serverOnewaySemaphoreValue=256
serverPooledByteBufAllocatorEnable=true serverSelectorThreads=3 serverSocketBacklog=1024 serverSocketRcvBufSize=0
serverSocketSndBufSize=0 serverWorkerThreads=8 shutdownWaitTimeSeconds=30 useEpollNativeSelector=false
writeBufferHighWaterMark=0 writeBufferLowWaterMark=0
""".split()
PLACES = set(
    """bindAddress configStorePath controllerDLegerGroup controllerDLegerPeers controllerDLegerSelfId
    controllerStorePath listenPort rocketmqHome""".split()
)


def test_all_keys_with_their_defaults() -> None:
    settings = ControllerSettings()
    assert settings.listening(9877) == "127.0.0.1:9877"
    shown = settings.properties()
    assert {f"{key}={value}" for key, value in shown.items() if key not in PLACES} == {*OFFICIAL, "electionZones="}
    assert {key: shown[key] for key in PLACES} == {
        "bindAddress": "127.0.0.1",
        "configStorePath": "",
        "controllerDLegerGroup": "DefaultControllerGroup",
        "controllerDLegerPeers": "n0-127.0.0.1:9877",
        "controllerDLegerSelfId": "n0",
        "controllerStorePath": "controller",
        "listenPort": "9877",
        "rocketmqHome": "",
    }
    assert settings.document().splitlines() == [f"{key}={value}" for key, value in sorted(shown.items())]


@pytest.mark.parametrize(
    ("values", "listen", "bound", "told"),
    [
        ({}, None, ("127.0.0.1", 9877), "127.0.0.1:5"),
        ({}, "0.0.0.0:0", ("0.0.0.0", 0), "127.0.0.1:5"),
        ({}, "[::1]:7", ("::1", 7), "[::1]:5"),
        ({"controllerDLegerPeers": "n0-10.0.0.5:7"}, None, ("10.0.0.5", 7), "10.0.0.5:7"),
        ({"controllerDLegerPeers": "n0-ctl:7;", "bindAddress": "0.0.0.0"}, None, ("0.0.0.0", 7), "ctl:7"),
        ({"controllerDLegerPeers": "n0-ctl:7"}, "127.0.0.1:8", ("127.0.0.1", 8), "ctl:7"),
        (
            {"controllerDLegerPeers": "a-127.0.0.1:0", "controllerDLegerSelfId": "a"},
            None,
            ("127.0.0.1", 0),
            "127.0.0.1:5",
        ),
    ],
)
def test_where_it_listens_and_what_brokers_are_told(
    values: dict[str, str], listen: str | None, bound: tuple[str, int], told: str
) -> None:
    settings = ControllerSettings(values, listen=listen)
    assert (settings.host, settings.port) == bound
    assert settings.listening(5) == told


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"controllerDLegerPeers": "n0-a:1;n0-b:1"}, "names a controller twice"),
        ({"controllerDLegerPeers": "n0-a:1;n1-a:1"}, "names a controller twice"),
        ({"controllerDLegerPeers": "n0-a:1;x"}, "id-host:port is needed|is no address"),
        ({"controllerDLegerPeers": "n1-a:1;n2-b:1"}, "controllerDLegerSelfId='n0' is not in controllerDLegerPeers"),
        ({"controllerDLegerPeers": "a:1"}, "id-host:port is needed"),
        ({"controllerDLegerPeers": "-a:1"}, "id-host:port is needed"),
        ({"controllerDLegerPeers": "n0-a"}, "is no address"),
        ({"controllerDLegerPeers": "n1-a:1"}, "controllerDLegerSelfId='n0' is not in controllerDLegerPeers='n1-a:1'"),
        ({"controllerType": "jRaft"}, "several controllers agree without jRaft here"),
        ({"metricsExporterType": "PROM"}, "use DISABLE"),
        ({"enableElectUncleanMaster": "yes"}, "true or false is needed"),
        ({"scanNotActiveBrokerInterval": "0"}, "ms from 100 to 86400000 are needed"),
        ({"scanInactiveMasterInterval": "1e3"}, "ms from 100"),
        ({"electMasterMaxRetryCount": "0"}, "tries from 1 to 100"),
    ],
)
def test_what_cannot_be_kept_refuses(values: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError, match=error.replace("(", r"\(")) as caught:
        ControllerSettings(values)
    assert "\n" not in str(caught.value)


def test_a_secret_of_a_shared_file_is_not_shown_and_what_was_shown_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "controller.conf"
    path.write_text("metricsGrpcExporterHeader=api-key:7f3a\n")
    settings = ControllerSettings(read_controller_conf(path), conf_path=path)
    assert "metricsGrpcExporterHeader=(hidden)" in settings.document().splitlines()
    assert "7f3a" not in settings.document()
    assert settings.update("metricsGrpcExporterHeader=(hidden)\nelectMasterMaxRetryCount=4\n") == [
        "electMasterMaxRetryCount"
    ]
    assert "metricsGrpcExporterHeader=api-key:7f3a" in path.read_text()
    assert settings.update("metricsGrpcExporterHeader=api-key:8a4b") == ["metricsGrpcExporterHeader"]
    assert "8a4b" not in settings.document()


def test_unknown_keys_are_named() -> None:
    assert ControllerSettings({"foo": "1", "jRaftGroupId": "g", "controllerThreadPoolNums": "2"}).unknown == ["foo"]


def test_live_changes_are_whole_and_kept_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "controller.conf"
    path.write_text("# mine\nelectMasterMaxRetryCount = 5\n")
    settings = ControllerSettings(read_controller_conf(path), conf_path=path)
    assert settings.tries == 5
    changed = settings.update("enableElectUncleanMaster=true\nnotifyBrokerRoleChanged=true\nnobody=1\n")
    assert (changed, settings.unclean) == (["enableElectUncleanMaster"], True)
    assert path.read_text() == "# mine\nelectMasterMaxRetryCount = 5\nenableElectUncleanMaster=true\n"
    before = settings.properties()
    for text, code in (
        ("electMasterMaxRetryCount=1\nscanInactiveMasterInterval=x", 29),
        ("controllerDLegerSelfId=n9", 29),
        ("controllerStorePath=/elsewhere", 29),
        ("metricsLabel=a\x1b", 29),
        ("configBlackList=x", 16),
        ("rocketmqHome=x", 16),
        ("no line", 29),
    ):
        with pytest.raises(ServerError) as caught:
            settings.update(text)
        assert (caught.value.code, settings.properties()) == (code, before)
    path.unlink()
    path.mkdir()
    with pytest.raises(ServerError, match=r"changed, but .* cannot be written") as caught:
        settings.update("electMasterMaxRetryCount=7")
    assert (caught.value.code, settings.tries) == (1, 7)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_controller_conf(tmp_path / "none")
    (tmp_path / "odd").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_controller_conf(tmp_path / "odd")
    (tmp_path / "line").write_text("controllerType")
    with pytest.raises(ConfigError, match="line 1: 'controllerType' is no key=value"):
        read_controller_conf(tmp_path / "line")
