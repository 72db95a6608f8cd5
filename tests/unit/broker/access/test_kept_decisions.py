"""What is kept of checks never outlives a change: random changes between requests, beside a broker that begins anew."""

from __future__ import annotations

import functools
import hmac
import tempfile
from base64 import b64encode
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.access_rows import CONFIG

from rocketspark.access.access_control import NAMES_A_PLACE, Standing
from rocketspark.access.policies import ALLOW, CUSTOM, DENY, Acl, Policy, PolicyEntry, parse_resource
from rocketspark.access.request_contexts import NAMED_BY
from rocketspark.access.tables import DISABLE, ENABLE, NORMAL, SUPER, AccessTables, User
from rocketspark.broker.access.gate import Access
from rocketspark.broker.broker_conf import settings_from
from rocketspark.broker.settings import BrokerSettings
from rocketspark.protocol import request_signing
from rocketspark.protocol.codes import RequestCode
from rocketspark.store.files import config_files
from rocketspark.transport.processor_table import ReceivedRequest

USERNAMES = st.sampled_from(["ann", "bob"])
PASSWORDS = st.sampled_from(["one", "two"])
SENDS = [(RequestCode.SEND_MESSAGE, "topic"), (RequestCode.SEND_MESSAGE_V2, "b"), (RequestCode.SEND_BATCH_MESSAGE, "b")]
TOPICS = st.sampled_from(["a", "ab", "%RETRY%g"])
RULES = st.lists(
    st.tuples(
        st.sampled_from(["*", "Topic:*", "Topic:a", "Topic:a*", "Group:g", "Group:*"]),
        st.sampled_from(["Pub", "Sub", "All"]),
        st.sampled_from([ALLOW, ALLOW, DENY]),
        st.sampled_from([(), ("10.0.0.1",), ("10.0.0.0/8",)]),
    ),
    max_size=3,
)
ASKED = st.tuples(
    st.just("ask"), USERNAMES, PASSWORDS, st.integers(0, 3), TOPICS, st.sampled_from(["10.0.0.1", "10.0.0.2"])
)
CHANGED = st.one_of(
    st.tuples(
        st.just("user"),
        USERNAMES,
        PASSWORDS,
        st.sampled_from([NORMAL, NORMAL, SUPER]),
        st.sampled_from([ENABLE, DISABLE]),
    ),
    st.tuples(st.just("gone"), USERNAMES),
    st.tuples(st.just("rules"), USERNAMES, RULES),
    st.tuples(st.just("no rules"), USERNAMES),
)
# Each request is asked twice, so that the second answer may be a kept one, and again after each change.
STEPS = st.lists(st.one_of(ASKED, CHANGED), min_size=4, max_size=12)


@functools.cache
def _settings(root: str, strategy: str) -> BrokerSettings:
    auth = "org.apache.rocketmq.auth.authentication.strategy"
    made, _ = settings_from(
        {
            **CONFIG,
            "storePathRootDir": root,
            "authenticationStrategy": f"{auth}.{strategy}AuthenticationStrategy",
            "statefulAuthorizationCacheMaxNum": "4",
        }
    )
    return made


def access(root: str, strategy: str) -> Access:
    """Access control of a broker that does not listen."""
    return Access(_settings(root, strategy))


def change(tables: AccessTables, step: Any) -> None:
    """Play one change."""
    if step[0] == "user":
        tables.put_user(User(*step[1:]))
    elif step[0] == "gone":
        tables.delete_user(step[1])
    elif step[0] == "no rules":
        tables.delete_acl(step[1])
    else:
        entries = [PolicyEntry(r, (a,), d, ips) for text, a, d, ips in step[2] if (r := parse_resource(text))]
        tables.put_acl(step[1], Acl((Policy(CUSTOM, tuple(entries)),)))


def asked(step: Any, peers: dict[str, Any]) -> ReceivedRequest:
    """Return the request of a step, signed."""
    _, username, password, which, topic, host = step
    code, field = SENDS[which] if which < 3 else (RequestCode.PULL_MESSAGE, "topic")
    ext = {field: topic, "a": "group", "consumerGroup": "g"}
    request_signing.sign(ext, b"body", username, password.encode())
    peer = peers.setdefault(host, SimpleNamespace(remote_host=host, address=f"{host}:1", gate_notes=None))
    return ReceivedRequest(peer, int(code), 0, 513, "JAVA", ext, b"body")


@pytest.mark.parametrize("strategy", ["Stateless", "Stateful"])
@settings(max_examples=40)
@given(steps=STEPS)
def test_a_kept_answer_never_outlives_a_change(strategy: str, steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as root, mock.patch.object(config_files, "write"):
        kept = access(root, strategy)
        for username in ("ann", "bob"):
            kept.tables.put_user(User(username, "one"))
            kept.tables.put_acl(username, Acl((Policy(CUSTOM, (PolicyEntry(_any(), ("All",), ALLOW),)),)))
        peers: dict[str, Any] = {}
        # Who signed well from where, as he is: this counts for his next requests if the checks are stateful.
        good: set[tuple[str, User]] = set()
        seen: list[Any] = []
        standings: list[tuple[Any, Standing]] = []
        for step in steps:
            if step[0] == "ask":
                seen.append(step)
            else:
                change(kept.tables, step)
                good = {(host, user) for host, user in good if kept.tables.users.get(user.username) is user}
            # What was asked before is asked again: a change may concern any of it.
            for one in [*seen[-5:], *seen[-1:]]:
                assert kept.gate is not None
                assert kept.control is not None
                request = asked(one, peers)
                found = kept.gate.refuses(request)
                anew = access(root, "Stateless")
                anew.tables.users, anew.tables.acls = kept.tables.users, kept.tables.acls
                user, host = kept.tables.users.get(one[1]), one[5]
                if strategy == "Stateful" and user is not None and (host, user) in good:
                    one = (*one[:2], user.password, *one[3:])
                assert anew.gate is not None
                assert found == anew.gate.refuses(asked(one, {})), one
                if found is None and (standing := kept.control.standing(request)) is not None:
                    standings.append((one, standing))
                # What stands for a connection's next sends would be let through by itself.
                for (kind, name, _, *rest), standing in standings[-5:]:
                    if standing.holds():
                        right = (kind, name, kept.tables.users[name].password, *rest)
                        assert anew.gate.refuses(asked(right, {})) is None, right
                if user is not None and user.is_enabled and one[2] == user.password:
                    good.add((host, user))


def _any() -> Any:
    return parse_resource("*")


def test_requests_whose_need_depends_on_more_than_names_are_not_kept() -> None:
    assert not NAMES_A_PLACE & NAMED_BY.keys()


def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    kept = access(str(tmp_path), "Stateless")
    kept.tables.put_user(User("ann", "one", SUPER))
    assert kept.gate is not None
    assert kept.control is not None
    authorization = kept.control._authorization
    assert authorization is not None
    for i in range(20):
        assert kept.gate.refuses(asked(("ask", "ann", "one", 1, f"topic{i}", "10.0.0.1"), {})) is None
        assert 0 < len(authorization.allowed) <= 4
        assert 0 < len(authorization._kept) <= 4
    before = set(authorization.allowed)
    assert kept.gate.refuses(asked(("ask", "ann", "one", 1, "t" * 600, "10.0.0.1"), {})) is None
    assert authorization.allowed == before
    kept.tables.delete_user("ann")
    assert not authorization.allowed


NAMES = st.sampled_from(["a", "b", "AccessKey", "Signature", "\ue000", "\U0001f600", "_UNIQUE_KEY_QUERY", "n" * 600])
EXTS = st.dictionaries(NAMES, st.text(max_size=3), max_size=6)


@given(secret=st.binary(max_size=130), ext=EXTS, body=st.binary(max_size=3), version=st.sampled_from([399, 400]))
def test_the_order_that_is_kept_signs_as_sorting_does(
    secret: bytes, ext: dict[str, str], body: bytes, version: int
) -> None:
    content = request_signing.signed_bytes(ext, body, version)
    good = b64encode(hmac.digest(secret, content, "sha1")).decode()
    assert request_signing.signature(secret, content) == good
    signed = ext | {"Signature": good}
    # The first one keeps the order, the second one uses it.
    for _ in range(2):
        assert request_signing.is_signed_with(secret, signed, body, version)
    other = version ^ 399 ^ 400
    for changed in (signed, signed | {"a": "other"}, signed | {"more": "x"}, {**signed, "b": "?"}):
        again = b64encode(hmac.digest(secret, request_signing.signed_bytes(changed, body, other), "sha1")).decode()
        assert request_signing.is_signed_with(secret, changed, body, other) is (again == good)
    assert not request_signing.is_signed_with(secret, signed, body + b"x", version)


def test_the_orders_that_are_kept_are_bounded() -> None:
    for i in range(2 * request_signing.ORDERS_MAX):
        ext = {f"name{i}": "1", "b": "2"}
        request_signing.sign(ext, b"", "ann", b"one")
        assert request_signing.is_signed_with(b"one", ext, b"", 513)
        assert 0 < len(request_signing._orders) <= request_signing.ORDERS_MAX
