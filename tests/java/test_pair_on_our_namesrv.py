"""The official pair with acting masters at our NameServer: the slave acts on our notices, the master comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.java.apache_pair import PairBroker, caught_up, ha_status, members, routed, until
from tests.java.our_controller import OurServer
from tests.support.ports import free_ports

from rocketspark.admin.operations import Admin

pytestmark = [
    pytest.mark.xdist_group("jvm"),
    pytest.mark.shows(
        "the official pair with acting masters at our NameServer, the slave told by 905 alone",
    ),
]
TOPIC = "pairs"
# Looks for its group once, a second after its start: all it learns later it is told.
TOLD_ONLY = {"syncBrokerMemberGroupPeriod": 3_600_000}


def followed(slave: PairBroker) -> str | None:
    """The replication address of the slave's master, None while it has none."""
    address: str | None = ha_status(slave.broker)["haClientRuntimeInfo"].get("masterAddr")
    return address


@pytest.mark.parametrize("compatible", ["true", "false"])
def test_a_slave_acts_for_its_master_and_the_master_comes_back(tmp_path: Path, compatible: str) -> None:
    port = free_ports()
    namesrv = f"127.0.0.1:{port}"
    text = "scanNotActiveBrokerInterval=500\nsupportActingMaster=true\nnotifyMinBrokerIdChanged=true\n"
    names = OurServer(tmp_path / "names", "namesrv", f"{text}listenPort={port}\n")
    # Members are asked for with 105 and lives told with 322, or with 901 and 904.
    config = TOLD_ONLY | {"compatibleWithOldNameSrv": compatible}
    servers: list[OurServer | PairBroker] = [names]
    try:
        master = PairBroker(tmp_path / "master", namesrv, tmp_path / "m", "acting", 0, config=config)
        servers.append(master)
        slave = PairBroker(tmp_path / "slave", namesrv, tmp_path / "s", "acting", 1, config=config)
        servers.append(slave)
        until(lambda: members(namesrv) == {0: master.broker, 1: slave.broker})
        until(lambda: followed(slave) == master.ha)
        with Admin(namesrv) as operations:
            operations.create_topic(TOPIC, queue_count=1)
        until(lambda: caught_up(master.broker))
        assert routed(namesrv, TOPIC) == {0: master.broker, 1: slave.broker}
        master.kill()
        until(lambda: followed(slave) is None, what="the slave to hear of its master's end")
        assert members(namesrv) == {1: slave.broker}
        assert routed(namesrv, TOPIC) == {0: slave.broker}
        master.start()
        until(lambda: members(namesrv) == {0: master.broker, 1: slave.broker})
        assert routed(namesrv, TOPIC) == {0: master.broker, 1: slave.broker}
        until(lambda: followed(slave) == master.ha)
        until(lambda: caught_up(master.broker))
        log = names.log_path.read_text("utf-8")
        assert f"the lowest broker id is 1 ({slave.broker}) now: 1 brokers" in log
        assert f"the lowest broker id is 0 ({master.broker}) now: 1 brokers" in log
    finally:
        for server in reversed(servers):
            server.kill()
