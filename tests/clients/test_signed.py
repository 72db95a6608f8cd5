"""Signed requests on the official broker with access control on: the right key works, others are refused clearly."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.clients.scene import Inbox
from tests.clients.test_transactions import COMMIT, Bank
from tests.java.apache import Answer, ApacheBroker, ApacheNamesrv, ask

from rocketspark.admin.access import RuleState
from rocketspark.admin.operations import Admin
from rocketspark.client import Producer, PullConsumer, PushConsumer, TransactionProducer
from rocketspark.client.options import ClientOptions
from rocketspark.errors import SendFailed, ServerError
from rocketspark.model import MessageQueue

pytestmark = [
    pytest.mark.java,
    pytest.mark.shows("producers: signed requests"),
]

KEY, SECRET = "admin", "secret-of-admin"
AUTH = "org.apache.rocketmq.auth"
CONFIG = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationEnabled": "true",
    "authorizationProvider": f"{AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
    "initAuthenticationUser": json.dumps({"username": KEY, "password": SECRET}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": KEY, "secretKey": SECRET}),
    "waitTimeMillsInSendQueue": "5000",
}


def ask_signed(address: str, code: int, body: bytes = b"", **fields: str) -> Answer:
    """One request signed by hand, so that it depends on none of our code."""
    ext = fields | {"AccessKey": KEY}
    content = "".join(ext[name] for name in sorted(ext)).encode() + body
    ext["Signature"] = base64.b64encode(hmac.new(SECRET.encode(), content, hashlib.sha1).digest()).decode()
    return ask(address, code, body, ext)


class GuardedBroker(ApacheBroker):
    """It registers by itself only 10 s after it is up; setting its permission anew does that at once."""

    def _is_ready(self) -> bool:
        if self.broker.encode() in ask(self.namesrv, 106).body:
            return True
        ask_signed(self.broker, 25, b"brokerPermission=6")
        return False


class Guarded(NamedTuple):
    namesrv: str
    broker: str


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder: Path = tmp_path_factory.mktemp("guarded")
    namesrv = ApacheNamesrv(folder / "namesrv")
    try:
        broker = GuardedBroker(folder / "broker", namesrv.namesrv, folder / "store", config=CONFIG)
        try:
            yield Guarded(namesrv.namesrv, broker.broker)
        finally:
            broker.kill()
    finally:
        namesrv.kill()


def test_all_clients_with_the_right_key(guarded: Guarded) -> None:
    keys: ClientOptions = {"access_key": KEY, "secret_key": SECRET}
    inbox = Inbox()
    consumer = PushConsumer(guarded.namesrv, "signed-g", consume_from="first", **keys)
    consumer.subscribe("signed")
    consumer.listen(inbox)
    with Producer(guarded.namesrv, "signed-pg", **keys) as producer:
        producer.create_topic("signed", queue_count=1)
        producer.send("signed", b"plain", properties={"a": "\u00e4"}, keys="k")
        producer.send_oneway("signed", b"oneway")
        producer.send("signed", b"compressed" * 900)
        with TransactionProducer(guarded.namesrv, "signed-tg", listener=Bank(), **keys) as paying:
            paying.send_in_transaction("signed", b"paid", argument=COMMIT)
        with consumer:
            bodies = {m.body for m in inbox.wait_for(4)}
        assert bodies == {b"plain", b"oneway", b"compressed" * 900, b"paid"}
    with PullConsumer(guarded.namesrv, "signed-g", auto_commit=False, **keys) as reader:
        (queue,) = reader.queues("signed")
        assert reader.committed(queue) == 4


WRONG: dict[str, tuple[ClientOptions, str]] = {
    "none": ({}, "username cannot be null. (the broker wants signed requests: give access_key and secret_key)"),
    "secret": (
        {"access_key": KEY, "secret_key": "wrong"},
        "check signature failed. (secret_key is not the one of this access_key)",
    ),
    "user": (
        {"access_key": "nobody", "secret_key": SECRET},
        "User:nobody is not found. (the broker knows the user by the name given as access_key: check it,",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_other_keys_are_refused_clearly(guarded: Guarded, wrong: str) -> None:
    keys, text = WRONG[wrong]
    with Producer(guarded.namesrv, "signed-pg", retries=0, **keys) as producer:
        with pytest.raises(SendFailed) as refused:
            producer.send("unsigned", b"x")
        assert (refused.value.code, refused.value.topic) == (16, "unsigned")
        assert f"code 16 from {guarded.broker}: {text}" in str(refused.value)
        with pytest.raises(ServerError) as other:
            producer.create_topic("other", queue_count=1)
        assert text in str(other.value)
    with PullConsumer(guarded.namesrv, "signed-g", **keys) as reader, pytest.raises(ServerError) as unread:
        reader.committed(MessageQueue("signed", "broker-a", 0))
    assert text in str(unread.value)


@pytest.mark.shows("`rocketspark user`, `rocketspark acl`, and the same from Python")
def test_an_operator_keeps_users_and_rules(guarded: Guarded) -> None:
    name = "broker-a"

    def rule(resource: str, actions: str, decision: str = "Allow", ips: str = "", policy: str = "Custom") -> RuleState:
        return RuleState(name, "User:alice", policy, resource, tuple(actions.split()), tuple(ips.split()), decision)

    with Admin(guarded.namesrv, access_key=KEY, secret_key=SECRET) as operations:
        assert operations.create_user("alice", "secret-of-alice") == [name]
        with pytest.raises(
            ServerError, match=rf"create user 'alice' refused by {name}: code 16 .*: The user is existed"
        ):
            operations.create_user("alice", "other")
        operations.update_user("alice", status="disable")
        with pytest.raises(ServerError, match=r"code 16 .*: The user is not exist"):
            operations.update_user("nobody", status="disable")
        (alice,) = operations.get_user("alice")
        assert (alice.user_type, alice.status) == ("Normal", "disable")
        assert [u.username for u in operations.list_users()] == [KEY, "alice"]
        assert [u.username for u in operations.list_users("li")] == ["alice"]
        operations.update_user("alice", status="enable", password="secret-2")

        operations.create_acl("alice", ["Topic:orders", "group:bill*"], ["pub", "Sub"])
        operations.create_acl("alice", ["Topic:orders", "Topic:x"], ["Get"], decision="deny", source_ips=["10.0.0.0/8"])
        operations.create_acl("User:alice", ["*"], ["List"], policy_type="Default")
        assert operations.get_acl("alice") == [
            rule("Topic:orders", "Get", "Deny", "10.0.0.0/8"),
            rule("Group:bill*", "Pub Sub"),
            rule("Topic:x", "Get", "Deny", "10.0.0.0/8"),
            rule("*", "List", policy="Default"),
        ]
        operations.update_acl("alice", ["Topic:orders"], ["All"], decision="Allow", source_ips=())
        assert operations.list_acls("ali", "orders") == [rule("Topic:orders", "All")]
        operations.delete_acl("alice", resource="Topic:x")
        operations.delete_acl("alice", resource="*", policy_type="Default")
        with Admin(guarded.namesrv, access_key="alice", secret_key="secret-2") as his:
            with pytest.raises(ServerError, match="User:alice has no permission to access Cluster:"):
                his.list_users()
            assert operations.get_acl("alice") == [rule("Topic:orders", "All"), rule("Group:bill*", "Pub Sub")]
        with pytest.raises(ServerError, match=r"code 16 .*: The subject of User:nobody is not exist.$"):
            operations.create_acl("nobody", ["*"], ["Pub"])
        operations.delete_user("alice")
        assert operations.list_acls() == []


@pytest.mark.shows("`rocketspark user`, `rocketspark acl`, and the same from Python")
def test_rules_for_a_resource_are_deleted_of_each_type_and_none_is_told(guarded: Guarded) -> None:
    with Admin(guarded.namesrv, access_key=KEY, secret_key=SECRET) as operations:
        operations.create_user("bob", "secret-of-bob")
        for policy_type in ("Custom", "Default"):
            for resource in ("Topic:x", "Topic:y"):
                operations.create_acl("bob", [resource], ["Pub"], policy_type=policy_type)
        operations.delete_acl("bob", resource="Topic:y", policy_type="Default")
        with pytest.raises(ServerError, match="there is no Default rule of User:bob for Topic:y"):
            operations.delete_acl("bob", resource="Topic:y", policy_type="Default")
        # Brokers take the type Custom where none is told.
        operations.delete_acl("bob", resource="Topic:x")
        left = [(each.policy_type, each.resource) for each in operations.get_acl("bob")]
        assert left == [("Custom", "Topic:y")]
        # A name that was mistyped takes nothing away.
        with pytest.raises(ServerError, match="there is no rule of User:bob for Topic:yy"):
            operations.delete_acl("bob", resource="Topic:yy")
        operations.delete_user("bob")
