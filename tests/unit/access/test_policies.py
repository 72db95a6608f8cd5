"""Rules against a naive model of RocketMQ's; texts of resources and addresses; tables that outlive a kill."""

from __future__ import annotations

import functools
import ipaddress
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.access_rows import CONFIG
from tests.support.stand_ins import like

from rocketspark.access.policies import (
    ALLOW,
    CUSTOM,
    DEFAULT,
    DENY,
    Acl,
    Pattern,
    Policy,
    PolicyEntry,
    Resource,
    is_in,
    parse_network,
    parse_resource,
)
from rocketspark.access.request_contexts import LOCKED_TOPICS_MAX, NotReadable, contexts_of
from rocketspark.access.tables import FILE_NAME, SUPER, AccessTables, User
from rocketspark.broker.access.gate import Access
from rocketspark.broker.broker_conf import settings_from
from rocketspark.errors import ConfigError, StoreError, StoreUnwritable
from rocketspark.protocol.codes import RequestCode
from rocketspark.store.files import config_files

pytestmark = pytest.mark.shows("no way round the gate, changes at once, the file, slaves, what RocketMQ forgets")

NAMES = st.text("ab", max_size=3)
RESOURCES = st.builds(
    lambda kind, name, end: "*" if kind == "*" else f"{kind}:{name}{end}",
    st.sampled_from(["Topic", "Group", "Any", "*"]),
    NAMES,
    st.sampled_from(["", "*"]),
)
ACTIONS = st.lists(st.sampled_from(["Pub", "Sub", "Get", "All"]), min_size=1, max_size=2, unique=True)
IPS = st.lists(st.sampled_from(["1.2.3.4", "1.2.0.0/16", "::1", "fe80::/10", "0.0.0.0/0"]), max_size=2)
ENTRIES = st.lists(st.tuples(RESOURCES, ACTIONS, st.sampled_from([ALLOW, DENY]), IPS), max_size=5)


def entry(resource: str, actions: list[str], decision: str, ips: list[str]) -> PolicyEntry:
    parsed = parse_resource(resource)
    assert parsed is not None
    return PolicyEntry(parsed, tuple(actions), decision, tuple(ips))


def naive(entries: list[PolicyEntry], kind: str, name: str, actions: tuple[str, ...], ip: str) -> str | None:
    """The comparator of RocketMQ's handler, one step after the other."""

    def fits(e: PolicyEntry) -> bool:
        r = e.resource
        about = r.type == "Any" or (
            r.type == kind
            and (
                r.pattern is Pattern.ANY
                or (r.pattern is Pattern.LITERAL and r.name == name)
                or (r.pattern is Pattern.PREFIXED and name.startswith(r.name or ""))
            )
        )
        does = bool(set(actions) & set(e.actions)) or "All" in e.actions
        address = ipaddress.ip_address(ip)
        comes = not e.source_ips or any(
            address.version == net.version and address in net for net in map(ipaddress.ip_network, e.source_ips)
        )
        return about and does and comes

    def compare(one: PolicyEntry, two: PolicyEntry) -> int:
        a, b = one.resource, two.resource
        found = 0
        if a.type != b.type:
            found = 1 if a.type == "Any" else -1 if b.type == "Any" else 0
        elif a.pattern == b.pattern:
            if a.pattern is Pattern.PREFIXED:
                found = len(b.name or "") - len(a.name or "")
        else:
            for pattern in (Pattern.LITERAL, Pattern.PREFIXED):
                if found == 0 and pattern in (a.pattern, b.pattern):
                    found = -1 if a.pattern is pattern else 1
        if found == 0 and one.decision != two.decision:
            found = -1 if one.decision == DENY else 1
        return found

    matching = sorted(filter(fits, entries), key=functools.cmp_to_key(compare))
    return matching[0].decision if matching else None


@given(
    ENTRIES,
    ENTRIES,
    st.sampled_from(["Topic", "Group", "Cluster"]),
    NAMES,
    st.sampled_from([("Pub",), ("Sub", "Get")]),
    st.sampled_from(["1.2.3.4", "1.2.9.9", "9.9.9.9", "::1", "fe80::7"]),
)
def test_the_rule_that_decides_is_the_models(
    custom: list[tuple[str, list[str], str, list[str]]],
    default: list[tuple[str, list[str], str, list[str]]],
    kind: str,
    name: str,
    actions: tuple[str, ...],
    ip: str,
) -> None:
    first, second = [entry(*e) for e in custom], [entry(*e) for e in default]
    acl = Acl((Policy(CUSTOM, tuple(first)), Policy(DEFAULT, tuple(second))))
    deciding = acl.deciding(kind, name, actions, ip)
    expected = naive(first, kind, name, actions, ip) or naive(second, kind, name, actions, ip)
    assert (deciding and deciding[1].decision) == expected


@pytest.mark.parametrize(
    ("text", "resource", "key"),
    [
        ("*", Resource("Any", None, Pattern.ANY), "*"),
        ("Topic:a", Resource("Topic", "a", Pattern.LITERAL), "Topic:a"),
        ("tOPIC:a*", Resource("Topic", "a", Pattern.PREFIXED), "Topic:a*"),
        ("Group:*", Resource("Group", None, Pattern.ANY), "Group:*"),
        ("Topic:a*b*", Resource("Topic", "a", Pattern.PREFIXED), "Topic:a*"),
        ("Topic:a*b", Resource("Topic", "a*b", Pattern.LITERAL), "Topic:a*b"),
        ("Topic:**", Resource("Topic", "", Pattern.PREFIXED), "Topic:*"),
        ("Topic", Resource("Topic", "", Pattern.LITERAL), "Topic:"),
        ("Topic:a:b", Resource("Topic", "a:b", Pattern.LITERAL), "Topic:a:b"),
        ("Cluster:c", Resource("Cluster", "c", Pattern.LITERAL), "Cluster:c"),
        ("What:a", None, ""),
        ("", None, ""),
        (" ", None, ""),
        (None, None, ""),
    ],
)
def test_texts_of_resources(text: str | None, resource: Resource | None, key: str) -> None:
    assert parse_resource(text) == resource
    assert resource is None or resource.key == key


def test_of_many_rules_few_are_looked_at() -> None:
    """One request may name thousands of topics: each is looked for by name, not in all rules."""
    rules = [entry(f"Topic:{n}", ["Sub"], ALLOW, []) for n in range(1000)]
    rules += [
        entry(text, ["Sub"], ALLOW, []) for text in ("Topic:99*", "Topic:98*", "Group:99*", "Topic:*", "*", "Any:x")
    ]
    found = [e.resource.key for e in Policy(CUSTOM, tuple(rules)).about("Topic", "999")]
    assert sorted(found) == ["*", "*", "Topic:*", "Topic:99*", "Topic:999"]


def test_who_locks_queues_of_more_topics_than_a_group_reads_is_refused() -> None:
    def lock(count: int) -> bytes:
        queues = [{"topic": f"t{n}", "brokerName": "b", "queueId": 0} for n in range(count)]
        return json.dumps({"consumerGroup": "g", "clientId": "c", "mqSet": queues}).encode()

    for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        assert len(contexts_of(code, {}, lock(LOCKED_TOPICS_MAX))) == LOCKED_TOPICS_MAX + 1
        with pytest.raises(NotReadable):
            contexts_of(code, {}, lock(LOCKED_TOPICS_MAX + 1))


def test_a_topic_that_many_groups_of_a_heartbeat_read_is_asked_about_once() -> None:
    def group(name: str, *topics: str) -> dict[str, Any]:
        return {"groupName": name, "subscriptionDataSet": [{"topic": topic} for topic in topics]}

    beat = {"clientID": "c", "consumerDataSet": [group("g", "t", "u"), group("h", "u", "t"), group("i", "v")]}
    needed = contexts_of(RequestCode.HEART_BEAT, {}, json.dumps(beat).encode())
    assert [context.name for context in needed] == ["g", "t", "u", "h", "i", "v"]


@given(st.text(max_size=12))
def test_any_text_is_a_resource_or_none(text: str) -> None:
    found = parse_resource(text)
    assert found is None or parse_resource(found.key) is not None
    parse_network(text)


@pytest.mark.parametrize(
    ("address", "network", "meant"),
    [
        ("1.2.3.4", "1.2.3.4", True),
        ("1.2.3.4", "1.2.3.5", False),
        ("1.2.3.4", "1.2.3.5/31", True),
        ("1.2.3.4", "0.0.0.0/0", True),
        ("::1", "0:0:0:0:0:0:0:1", True),
        ("fe80::1%eth0", "fe80::/10", True),
        ("::1", "0.0.0.0/0", False),
        ("1.2.3.4", "::/0", False),
        ("::ffff:1.2.3.4", "1.2.3.0/24", True),
        ("1.2.3.4", "::ffff:1.2.3.0/120", True),
        ("1.2.4.4", "::ffff:1.2.3.0/120", False),
        ("::ffff:9.9.9.9", "::ffff:0.0.0.0/96", True),
        ("", "1.2.3.4", False),
        ("1.2.3.4", "nonsense", False),
    ],
)
def test_addresses(address: str, network: str, meant: bool) -> None:
    assert is_in(address, network) is meant


@pytest.mark.parametrize(
    "text",
    [
        "1.2.3",
        "1.2.3.4/33",
        "1.2.3.4/",
        "01.2.3.4",
        "1.2.3.4/255.0.0.0",
        "host",
        "::1/129",
        "1.2.3.4/-1",
        "::ffff:1.2.3.4/129",
        "",
    ],
)
def test_what_is_no_network(text: str) -> None:
    assert parse_network(text) is None


def test_rules_are_replaced_added_and_removed_by_resource() -> None:
    one, two = entry("Topic:a", ["Pub"], ALLOW, []), entry("Topic:a*", ["Pub"], ALLOW, [])
    other = entry("Topic:a", ["Sub"], DENY, [])
    acl = Acl.of([Policy(CUSTOM, (one, two)), Policy(CUSTOM, (other,))])
    assert acl == Acl((Policy(CUSTOM, (one, two, other)),))
    deciding = acl.deciding("Topic", "a", ("Sub",), "1.2.3.4")
    assert deciding == (CUSTOM, other)
    acl = Acl.of([Policy(CUSTOM, (one, two))]).updated([Policy(CUSTOM, (other,)), Policy(DEFAULT, (one,))])
    assert acl == Acl((Policy(CUSTOM, (other, two)), Policy(DEFAULT, (one,))))
    assert acl.without(DEFAULT, one.resource) == Acl((Policy(CUSTOM, (other, two)),))


KEPT = CONFIG["authenticationMetadataProvider"]
OTHER = '{"accessKey": "admin", "secretKey": "another"}'
INNER = {"innerClientAuthenticationCredentials": CONFIG["innerClientAuthenticationCredentials"]}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"authenticationEnabled": "true"}, ["are not signed", "every request is refused"]),
        ({"authenticationEnabled": "true", "authenticationMetadataProvider": KEPT, **INNER}, []),
        ({"authenticationEnabled": "true", "authenticationMetadataProvider": KEPT}, ["are not signed"]),
        ({"authorizationEnabled": "true", "authenticationMetadataProvider": KEPT}, ["whoever names an access key"]),
        ({"authenticationMetadataProvider": KEPT}, []),
        ({}, []),
        ({**CONFIG, "innerClientAuthenticationCredentials": OTHER}, ["admin has another password"]),
        (CONFIG, []),
    ],
)
def test_what_the_settings_lack_is_told_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, str], told: list[str]
) -> None:
    made, _ = settings_from({"storePathRootDir": str(tmp_path), **changes})
    Access(made).load()
    warned = [record.getMessage() for record in caplog.records]
    assert [part in text for part, text in zip(told, warned, strict=True)] == [True] * len(told)


def tables(root: Path) -> AccessTables:
    found = AccessTables(root / "config" / FILE_NAME)
    found.load()
    return found


def test_the_file_is_closed_from_its_first_byte_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    write_file = config_files.OsFiles.write_file

    def watched(self: config_files.OsFiles, path: str, content: bytes) -> None:
        modes.append(stat.S_IMODE(os.stat(path).st_mode))
        write_file(self, path, content)
        modes.append(stat.S_IMODE(os.stat(path).st_mode))

    monkeypatch.setattr(config_files.OsFiles, "write_file", watched)
    mine = tables(tmp_path)
    mine.put_user(User("a", "secret", SUPER))
    mine.put_acl("a", Acl.of([Policy(CUSTOM, (entry("Topic:a*", ["Pub"], DENY, ["1.2.0.0/16"]),))]))
    mine.put_user(User("b", "other"))
    assert modes
    assert set(modes) == {0o600}
    assert [f.name for f in (tmp_path / "config").iterdir()] == [FILE_NAME]
    again = tables(tmp_path)
    assert (again.users, again.acls) == (mine.users, mine.acls)
    mine.delete_user("a")
    assert (tables(tmp_path).users.keys(), tables(tmp_path).acls) == ({"b"}, {})


@pytest.mark.parametrize("step", ["write_file", "replace", "sync_directory"])
def test_a_kill_or_an_error_between_writes_leaves_the_old_or_the_new_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    mine = tables(tmp_path)
    mine.put_user(User("a", "1"))

    def fails(*args: object) -> None:
        raise OSError(5, "broken")

    if step == "replace":
        monkeypatch.setattr(config_files, "os", like(os, replace=fails))
    else:
        monkeypatch.setattr(config_files.OsFiles, step, fails)
    with pytest.raises(StoreError) as error:
        mine.put_user(User("a", "2"))
    assert isinstance(error.value, StoreUnwritable)
    monkeypatch.undo()
    # What was refused does not hold; the file is whole, of the one or the other state.
    assert mine.users["a"].password == "1"
    assert tables(tmp_path).users["a"].password == ("2" if step == "sync_directory" else "1")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version":2,"users":{},"acls":{}}', '{"version":1,"users":{"a":{}},"acls":{}}']
)
def test_a_file_that_cannot_be_read_refuses_to_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / FILE_NAME).write_text(text)
    with pytest.raises(ConfigError, match=FILE_NAME):
        tables(tmp_path)


def test_nothing_shows_a_password() -> None:
    assert "marker" not in repr(User("a", "marker"))
