"""mqadmin behind the door: with TLS and a user's key it keeps users and rules on brokers of ours, and sends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.java.mqadmin import MqAdmin, same

from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows(
    "`mqadmin` and a Java client come in over TLS with a key: users, rules, topics, sends",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with run_cluster(2, tmp_path_factory.mktemp("secure"), secure=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def mqadmin(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqAdmin]:
    home: Path = tmp_path_factory.mktemp("mqadmin")
    options = cluster.client_options
    (home / "conf").mkdir()
    keys = f"accessKey: {options['access_key']}\nsecretKey: {options['secret_key']}\n"
    (home / "conf/tools.yml").write_text(keys)
    tls = f"tls.test.mode.enable=false\ntls.client.authServer=true\ntls.client.trustCertPath={options['tls_ca']}\n"
    (home / "tls.properties").write_text(tls)
    flags = ("-Dtls.enable=true", f"-Dtls.config.file={home}/tls.properties")
    with closing(MqAdmin(home, cluster.namesrv, cluster.brokers[0], flags)) as mqadmin:
        yield mqadmin


RULES = "#Subject #PolicyType #Resource #Actions #SourceIp #Decision\n"
USERS = "#UserName #Password #UserType #UserStatus\n"


@pytest.mark.shows("`mqadmin` createUser to copyAcl")
def test_users_and_rules(cluster: Cluster, mqadmin: MqAdmin) -> None:
    names = {"BOTH": "DefaultCluster", "BROKER": cluster.brokers[0], "OTHER": cluster.brokers[1]}
    # Command, what it prints. BOTH is the cluster, OTHER the second broker.
    steps = [
        (
            "createUser",
            "-u shop -p secret-of-shop -c BOTH",
            "create user to BROKER success.\ncreate user to OTHER success.",
        ),
        ("updateUser", "-u shop -s disable -b BROKER", "update user to BROKER success."),
        ("getUser", "-u shop -b BROKER", USERS + "shop secret-of-shop Normal disable"),
        ("getUser", "-u shop -b OTHER", USERS + "shop secret-of-shop Normal enable"),
        ("listUser", "-f sho -b BROKER", USERS + "shop secret-of-shop Normal disable"),
        (
            "createAcl",
            "-s User:shop -r Topic:orders,Group:g* -a Pub,Sub -d Allow -i 10.0.0.0/8 -b BROKER",
            "create acl to BROKER success.",
        ),
        (
            "listAcl",
            "-b BROKER",
            RULES
            + "User:shop Custom Topic:orders [Pub, Sub] [10.0.0.0/8] Allow\n"
            + "User:shop Custom Group:g* [Pub, Sub] [10.0.0.0/8] Allow",
        ),
        (
            "updateAcl",
            "-s User:shop -r Topic:orders -a Get -i 127.0.0.1 -d Deny -b BROKER",
            "update acl to BROKER success.",
        ),
        ("copyUser", "-f BROKER -t OTHER -u shop", "copy user of shop from BROKER to OTHER success."),
        ("copyAcl", "-f BROKER -t OTHER", "copy acl of User:shop from BROKER to OTHER success."),
        ("getUser", "-u shop -b OTHER", USERS + "shop secret-of-shop Normal disable"),
        (
            "getAcl",
            "-s User:shop -b OTHER",
            RULES
            + "User:shop Custom Topic:orders [Get] [127.0.0.1] Deny\n"
            + "User:shop Custom Group:g* [Pub, Sub] [10.0.0.0/8] Allow",
        ),
        (
            "deleteAcl",
            "-s User:shop -r Topic:orders -c BOTH",
            "delete acl to BROKER success.\ndelete acl to OTHER success.",
        ),
        ("getAcl", "-s User:shop -b BROKER", RULES + "User:shop Custom Group:g* [Pub, Sub] [10.0.0.0/8] Allow"),
        ("deleteUser", "-u shop -c BOTH", "delete user to BROKER success.\ndelete user to OTHER success."),
    ]
    for command, arguments, expected in steps:
        lines = mqadmin(command, *(names.get(argument, argument) for argument in arguments.split()))
        same([line.replace(cluster.brokers[1], "OTHER") for line in lines], expected, any_order=True)
    for broker in cluster.brokers:
        assert "shop" not in "".join(mqadmin("listUser", "-b", broker))


def test_a_java_client_sends_over_tls(cluster: Cluster, mqadmin: MqAdmin) -> None:
    mqadmin("updateTopic", "-t", "orders", "-b", cluster.brokers[0])
    lines = mqadmin("sendMessage", "-t", "orders", "-p", "hello", "-b", "broker-a", "-i", "0")
    same(lines, "#Broker Name #QID #Send Result #MsgId\nbroker-a 0 SEND_OK <id>")
