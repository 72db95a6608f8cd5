"""RocketMQ's clients on our broker with access control: right, wrong, missing, unknown, disabled and revoked keys."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.java.conftest import DriverFactory
from tests.java.driver import CLIENT_VERSIONS, JavaDriver, JavaError, message
from tests.support.access_rows import ADMIN, CONFIG, SECRET
from tests.support.patience import LIMIT_S

from rocketspark.admin.operations import Admin
from rocketspark.broker.broker_conf import settings_from
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows(
    "Java 5.5.0, 4.9.7 and C++ clients with right, wrong, missing, unknown, disabled, unallowed and revoked keys"
)

CPP = """
import sys
from rocketmq.client import Message, Producer
from rocketmq.exceptions import RocketMQException
namesrv, key, secret = sys.argv[1:]
producer = Producer("pg")
producer.set_namesrv_addr(namesrv)
if key:
    producer.set_session_credentials(key, secret, "ALIYUN")
producer.start()
made = Message("orders")
made.set_body("x")
try:
    print(producer.send_sync(made).status.name)
except RocketMQException as e:
    print("refused", e)
producer.shutdown()
"""
# Key, secret, what the broker says; None: the send goes through.
KEYS = [
    ("alice", "secret-of-alice", None),
    ("alice", "wrong", "check signature failed."),
    ("", "", "username cannot be null."),
    ("nobody", "x", "User:nobody is not found."),
    ("off", "secret-of-off", "User:off is disabled."),
    ("bob", "secret-of-bob", "User:bob has no permission to access Topic:orders from 127.0.0.1, no matched policies."),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    settings, _ = settings_from(CONFIG)
    options = {"authentication": True, "authorization": True, "access": settings.access}
    with (
        run_cluster(1, **options) as cluster,
        Admin(cluster.namesrv, access_key=ADMIN, secret_key=SECRET) as operations,
    ):
        operations.create_topic("orders", queue_count=1)
        operations.create_user("carol", "secret-of-carol")
        operations.create_acl("carol", ["Topic:orders", "Group:carols"], ["Sub"])
        for name in ("alice", "bob", "off", "gone"):
            operations.create_user(name, f"secret-of-{name}")
        for name in ("alice", "off", "gone"):
            operations.create_acl(name, ["Topic:orders"], ["Pub"])
        operations.update_user("off", status="disable")
        yield cluster


def refusal(java: JavaDriver, cluster: Cluster, key: str, secret: str) -> int | None:
    """Return the code of the error that a send of the Java client ends with."""
    keys = {"access_key": key, "secret_key": secret} if key else {}
    with java.started("producer", namesrv=cluster.namesrv, group="pg", **keys) as producer:
        try:
            java.call("send", name=producer, messages=[message("orders", "x")])
        except JavaError as e:
            return e.code
    return None


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_java_clients(java_driver: DriverFactory, cluster: Cluster, version: str) -> None:
    java = java_driver(version)
    for key, secret, remark in KEYS:
        found = refusal(java, cluster, key, secret)
        if remark is None:
            assert found is None
        else:
            # The client tries again and keeps the remark to itself.
            assert found == 16


def test_a_key_that_is_taken_back_while_the_client_sends(java_driver: DriverFactory, cluster: Cluster) -> None:
    java = java_driver("5.5.0")
    keys = {"access_key": "gone", "secret_key": "secret-of-gone"}
    with (
        Admin(cluster.namesrv, access_key=ADMIN, secret_key=SECRET) as operations,
        java.started("producer", namesrv=cluster.namesrv, group="pg", **keys) as producer,
    ):
        java.call("send", name=producer, messages=[message("orders", "x")])
        operations.delete_user("gone")
        with pytest.raises(JavaError) as refused:
            java.call("send", name=producer, messages=[message("orders", "x")])
        assert refused.value.code == 16


def test_the_cpp_client(cluster: Cluster) -> None:
    for key, secret, remark in KEYS[:3]:
        command = [sys.executable, "-c", CPP, cluster.namesrv, key, secret]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith(("OK", "refused"))]
        assert len(lines) == 1, done.stdout + done.stderr
        assert (lines[0] == "OK") is (remark is None), lines
