"""Access control 1.0: patterns of addresses, documents that are odd or hostile, files that are none."""

from __future__ import annotations

import ipaddress
import os
import stat
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.stand_ins import like

from rocketspark.access.audit import nobody_told
from rocketspark.access.policies import GET, LIST
from rocketspark.access.request_contexts import CHECKED, FORGOTTEN, contexts_of
from rocketspark.access.tables import User
from rocketspark.broker.access.plain_acl import changes, documents, rule_files, rules
from rocketspark.broker.access.plain_acl.addresses import address_pattern, plain_address
from rocketspark.broker.access.plain_acl.changes import migrated
from rocketspark.broker.access.plain_acl.check import PlainAcl
from rocketspark.broker.access.plain_acl.documents import AccountEntry, Document, Version
from rocketspark.broker.access.plain_acl.requested import resources
from rocketspark.broker.access.plain_acl.rule_files import RuleFiles
from rocketspark.broker.access.plain_acl.rules import PUB, SUB, allows, in_java_order, permission, resource_told
from rocketspark.errors import ConfigError
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.request_signing import sign
from rocketspark.store.files import system_calls
from rocketspark.transport.processor_table import ReceivedRequest

pytestmark = pytest.mark.shows(
    "access control 1.0: files, address patterns, reload, 50-54, migration",
    "byte order marks; two accounts of one name in plain_acl.yml",
)

FITS = [
    ("1.2.3.4", "1.2.3.4", "1.2.3.5"),
    ("*", "9.9.9.9", None),
    ("*.*.*.*", "::1", None),
    ("1.2.3.*", "1.2.3.0", "1.2.4.0"),
    ("1.2.3.{4,5}", "1.2.3.5", "1.2.3.6"),
    ("1.2.3.4,1.2.3.9", "1.2.3.9", "1.2.3.5"),
    ("1.2.3.10-20", "1.2.3.10", "1.2.3.9"),
    ("1.2.3.0-0", "1.2.3.0", "1.2.3.1"),
    ("1.2-4.0.0", "1.4.7.7", "1.5.0.0"),
    ("1.2.*.4", "1.2.9.9", "1.3.9.4"),
    ("fe80::1", "fe80:0::0:1", "fe80::2"),
    ("::1,1.2.3.4", "::1", "::2"),
    ("2::ac5:78:*", "2:0:0:0:0:ac5:78:ffff", "2::ac5:79:1"),
    ("2::ac5:78:*", "2::ac5:78:0", "1.2.3.4"),
    ("2::ac5:78:*", "2::ac5:78:1", "no:address"),
    ("2::ac5:78:1-200", "2::ac5:78:200", "2::ac5:78:201"),
    ("2::ac5:78:1-200:*", "2::ac5:78:1ff:9", "2::ac5:78:201:9"),
    ("fe80::{1,2}", "fe80::2", "fe80::3"),
    ("1:2:3:4:5:6:7:*", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:8:8"),
    ("1.2.3.4", "::ffff:1.2.3.4", "::ffff:1.2.3.5"),
]


@pytest.mark.parametrize(("pattern", "yes", "no"), FITS)
def test_which_addresses_fit(pattern: str, yes: str, no: str | None) -> None:
    fits = address_pattern(pattern)
    assert fits(plain_address(yes))
    assert no is None or not fits(plain_address(no))


@pytest.mark.parametrize("text", [None, "", "  "])
def test_nothing_fits_nobody(text: str | None) -> None:
    assert not address_pattern(text)("127.0.0.1")


@pytest.mark.parametrize(
    "text",
    [
        *("1.2.3", "1.2.3.256", "01.2.3.4", "1.2.3.4 ,1.2.3.5", "1.2.*", "1.2*", "1.2.3.4*", "1.2.3.-4", "1.2.3.5-4"),
        *("1.2.3.4-300", "{1,2}", "1.2.3.{4", "1.2.{3,4}.5", "1.2.3{4,5}", "fe80::1%eth0", "fe80:*:1", "*:1", "::*:*"),
        *("1:2:3:4:5:6:7:8:*", "g::*", "1-2::3", "\x1b[31m", "example.org", "10.0.0.0/8", "1.2.3.²-9"),
    ],
)
def test_what_is_no_pattern(text: str) -> None:
    with pytest.raises(ConfigError, match="is no address") as e:
        address_pattern(text)
    assert "\x1b" not in str(e.value)


@given(st.text(alphabet="0123456789abcf.:*-{},/% ", max_size=24), st.ip_addresses())
def test_any_text_is_a_pattern_or_an_error(text: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    try:
        fits = address_pattern(text)
    except ConfigError:
        return
    assert fits(plain_address(str(address))) in (True, False)
    assert not fits("no address") or text.strip() in ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")


@given(st.ip_addresses(v=4))
def test_a_range_is_what_it_says(address: ipaddress.IPv4Address) -> None:
    last = int(str(address).rsplit(".", 1)[1])
    head = str(address).rsplit(".", 1)[0]
    assert address_pattern(f"{head}.*")(str(address))
    assert address_pattern(f"{head}.{last}-255")(str(address))
    assert last == 255 or not address_pattern(f"{head}.{last + 1}-255")(str(address))


def test_permissions() -> None:
    texts = ("PUB", "SUB", "PUB|SUB", " SUB|PUB ", "DENY", "ANY", "pub", "", None)
    assert [permission(text) for text in texts] == [4, 8, 12, 12, 1, 1, 1, 1, 1]
    assert [allows(needed, owned) for needed, owned in ((4, 12), (4, 8), (2, 8), (2, 1), (4, 5))] == [
        *(True, False, True, False, False)
    ]
    assert (resource_told("a"), resource_told("%RETRY%g"), resource_told("%RETRY%g+t")) == (
        "topic:a",
        "group:g",
        "group:g",
    )
    assert in_java_order(["denied", "%RETRY%subGroup", "both", "both"])[-1] in ("denied", "both", "%RETRY%subGroup")


GOOD = b"accounts: [{accessKey: someKey1, secretKey: 12345678, admin: yes, topicPerms: [a=PUB, b = SUB]}]"


def test_a_document() -> None:
    (entry,) = documents.read(GOOD).accounts
    assert (entry.secret_key, entry.admin) == ("12345678", True)
    account = entry.account()
    assert account.resources == {"a": 4, "b": 8}
    assert "12345678" not in repr(entry) + repr(account)
    assert documents.read(b"") == Document()


WRONG = {
    "accounts: 5": "accounts is no list",
    "accounts: [5]": "account 1 is no table of",
    "- a": "the file is no table of",
    "unknown: 1": "'unknown' is not one of",
    "accounts: [{accessKey: someKey1}]": "account 1: accessKey and secretKey are needed",
    "accounts: [{accessKey: someKey1, secretKey: marker1, admin: maybe}]": "admin: true or false",
    "accounts: [{accessKey: someKey1, secretKey: marker1, topicPerms: a=PUB}]": "topicPerms is no list",
    "accounts: [{accessKey: someKey1, secretKey: marker1, topicPerms: [a]}]": "name=permission is needed",
    "accounts: [{accessKey: someKey1, secretKey: marker1, topicPerms: [{a: b}]}]": "a text is needed, not a table",
    "accounts: [{accessKey: someKey1, secretKey: marker1, whiteRemoteAddress: 1.2}]": "'someKey1': '1.2' is no address",
    "accounts: [{accessKey: someKey1, secretKey: [marker1]}]": "a text is needed, not a list",
    "accounts: [{accessKey: someKey1, secretKey: 'marker1": "it is no YAML",
    "globalWhiteRemoteAddresses: [300.1.1.1]": "globalWhiteRemoteAddresses: '300.1.1.1' is no address",
    "dataVersion: [{counter: -}]": "dataVersion",
    "a: 1\n---\nb: 2": "more than one document",
    "[" * 9: "nested deeper than 8",
    "[" * 100_000: "nested deeper than",
    "&a [*a]": "is not known there",
    "a: *nothing": "is not known there",
    "? [a]\n: b": "a name in it is no text",
    "!!python/object/apply:os.system ['true']": "the file is no table",
    "\x00": "it is no YAML",
    "a: " + "x" * (1 << 20): "1,048,576 may be read",
    "a: [&b x," + "*b," * 60 + "]": "more than 50 times",
}


@pytest.mark.parametrize(("text", "message"), WRONG.items(), ids=lambda v: v[:30])
def test_what_is_no_document_is_told_in_one_line_without_its_secrets(text: str, message: str) -> None:
    began_s = time.process_time()
    with pytest.raises(ConfigError) as e:
        documents.read(text.encode())
    assert message in str(e.value)
    assert "\n" not in str(e.value)
    assert "marker" not in str(e.value)
    assert time.process_time() - began_s < 20


def test_a_bomb_of_anchors_stays_small() -> None:
    lines = ["a: &a [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 10)}]" for n in range(9)]
    with pytest.raises(ConfigError, match="more than 50 times"):
        documents.parse_yaml("\n".join(lines).encode())


@given(st.binary(max_size=300) | st.text(alphabet="ab:-[]{}&*!|>'\" \n#,?%@", max_size=80).map(str.encode))
def test_any_bytes_are_a_document_or_an_error(data: bytes) -> None:
    try:
        document = documents.read(data)
    except ConfigError as e:
        said = str(e)
    else:
        said = ""
        assert documents.read(documents.write(document).encode("utf-8", "surrogatepass")) == document
    assert "\n" not in said


KEY = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=7, max_size=12)
TEXT = st.none() | st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=8)
ENTRY = st.builds(AccountEntry, KEY, KEY, st.sampled_from([None, "*", "1.2.3.4"]), st.booleans(), TEXT, TEXT)


@given(st.lists(ENTRY, max_size=3), st.booleans())
def test_what_is_written_is_read_again(entries: list[AccountEntry], versioned: bool) -> None:
    document = Document(("1.2.3.4",), tuple(entries), Version(7, 3) if versioned else None)
    again = documents.read(documents.write(document).encode())
    assert again == document


def test_a_pipe_of_that_name_holds_up_nobody(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    os.mkfifo(tmp_path / "conf/plain_acl.yml")
    with pytest.raises(ConfigError, match=r"plain_acl\.yml is no file"):
        RuleFiles(str(tmp_path)).load()


def test_a_link_is_written_through_and_a_folder_that_cannot_be_written_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    target = tmp_path / "elsewhere.yml"
    target.write_bytes(GOOD)
    (tmp_path / "conf/plain_acl.yml").symlink_to(target)
    files = RuleFiles(str(tmp_path))
    steps: list[object] = []

    def sync(fd: int) -> None:
        found = os.fstat(fd)
        steps.append("folder" if stat.S_ISDIR(found.st_mode) else oct(found.st_mode & 0o777))

    def replace(source: str, path: str) -> None:
        steps.append(path)
        os.replace(source, path)

    monkeypatch.setattr(rule_files, "os", like(os, fsync=sync, replace=replace))
    monkeypatch.setattr(system_calls, "os", like(os, fsync=sync))
    files.write(files.plain_path, Document(("1.2.3.4",)))
    assert steps == ["0o600", str(target), "folder"]
    assert (tmp_path / "conf/plain_acl.yml").is_symlink()
    assert target.stat().st_mode & 0o777 == 0o600
    assert files.load().documents[files.plain_path].white == ("1.2.3.4",)
    monkeypatch.setattr(rule_files, "os", like(os, replace=lambda source, path: os.rmdir(source)))
    with pytest.raises(ConfigError, match="cannot be written"):
        files.write(files.plain_path, Document())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["conf", "elsewhere.yml"]
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        files.write(str(tmp_path / "file/below.yml"), Document())


@pytest.mark.parametrize(
    ("key", "address", "free", "reads", "publishes"),
    [
        ("adminKey", "9.9.9.9", True, True, True),
        ("whiteKey", "1.2.3.4", True, True, True),
        ("whiteKey", "9.9.9.9", False, False, False),
        ("readerKey", "9.9.9.9", False, True, False),
        ("senderKey", "9.9.9.9", False, False, True),
        ("defaultKey", "9.9.9.9", False, False, True),
        ("retryKey", "9.9.9.9", False, False, False),
        ("nobody", "9.9.9.9", False, False, False),
        ("nobody", "5.6.7.8", True, True, True),
    ],
)
def test_what_an_account_may_be_sent(key: str, address: str, free: bool, reads: bool, publishes: bool) -> None:
    document = documents.read(
        b"""globalWhiteRemoteAddresses: [5.6.7.8]
accounts:
- {accessKey: adminKey, secretKey: someSecret, admin: true}
- {accessKey: whiteKey, secretKey: someSecret, whiteRemoteAddress: 1.2.3.4}
- {accessKey: readerKey, secretKey: someSecret, topicPerms: [t=SUB]}
- {accessKey: senderKey, secretKey: someSecret, topicPerms: [t=PUB]}
- {accessKey: defaultKey, secretKey: someSecret, defaultTopicPerm: PUB}
- {accessKey: retryKey, secretKey: someSecret, groupPerms: [g=PUB]}
"""
    )
    given = rules.Rules({e.access_key: e.account() for e in document.accounts}, tuple(document.white_patterns()))
    asked = (given, address, key)
    assert (rules.is_free(*asked), rules.may(*asked, {"t": SUB}), rules.publishes(*asked)) == (free, reads, publishes)


@pytest.mark.parametrize(
    ("text", "parts"),
    [(None, None), ("", ()), (" ", ()), (",", ()), ("a", ("a",)), ("a,,b,,", ("a", "", "b"))],
)
def test_lists_with_commas_are_split_as_by_java(text: str | None, parts: tuple[str, ...] | None) -> None:
    assert changes.split(text) == parts


def test_a_home_without_rules_says_that_nobody_gets_in(tmp_path: Path) -> None:
    files = RuleFiles(str(tmp_path))
    loaded = files.load()
    warning = f"no rules in {tmp_path}/conf/plain_acl.yml or {tmp_path}/conf/acl: every request is refused"
    assert (loaded.warnings, loaded.entries()) == ((warning,), [])
    assert loaded.version(files.plain_path) == Version(loaded.loaded_ms, 0)
    files.write(files.plain_path, Document(("1.2.3.4",), version=Version(7, 3)))
    loaded = files.load()
    assert (loaded.warnings, loaded.version(files.plain_path)) == ((), Version(7, 3))


def test_only_accounts_without_a_user_become_users() -> None:
    topics = {"old": None, "one": (), "two": ("t=PUB",)}
    entries = [AccountEntry(name, "someSecret", topics=allowed) for name, allowed in topics.items()]
    old = User("old", "of old")
    users, acls, added = migrated(entries, {"old": old}, {})
    assert (users["old"], list(users), list(acls), added) == (old, ["old", "one", "two"], ["two"], ["one", "two"])


def test_a_white_list_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'300\.1\.1\.1' is no address"):
        changes.with_white(Document(), ("1.2.3.4", "300.1.1.1"))


def test_our_own_requests_of_transactions_ask_for_their_topic() -> None:
    assert resources(RequestCode.SEND_HALF_BATCH, {"b": "t", "a": "g"}, b"") == {"t": PUB}
    assert resources(RequestCode.END_HALF_RANGES, {"topic": "t", "producerGroup": "g"}, b"") == {"t": PUB}
    assert resources(RequestCode.END_HALF_RANGES, {"topic": "%RETRY%x", "producerGroup": "x"}, b"") == {"%RETRY%x": SUB}


def test_two_accounts_of_one_name_are_said(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    file = tmp_path / "conf" / "plain_acl.yml"
    accounts = "".join(f"- accessKey: shopper\n  secretKey: {which}-secret\n" for which in ("first", "other"))
    file.write_text(f"\ufeffaccounts:\n{accounts}")
    file.chmod(0o600)
    loaded = RuleFiles(str(tmp_path)).load()
    assert loaded.warnings == (f"{file}: account 'shopper' is left out, an earlier one has its key",)
    assert loaded.rules.accounts["shopper"].secret == b"first-secret"


NAMED = {
    **dict.fromkeys(("topic", "b", "parentTopic", "topicList"), "secret"),
    **dict.fromkeys(("group", "consumerGroup", "a", "producerGroup", "groupName"), "others"),
    **dict.fromkeys(("destGroup", "srcGroup", "compareGroup", "filterGroups"), "others"),
}


@pytest.mark.parametrize("body", [b"", b"{}"])
def test_an_account_without_a_permission_gets_figures_alone(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "conf").mkdir()
    account = "accounts: [{accessKey: nobody1, secretKey: nobodySecret, admin: false}]"
    (tmp_path / "conf" / "plain_acl.yml").write_text(account)
    acl = PlainAcl(RuleFiles(str(tmp_path)), decided=nobody_told)
    peer = SimpleNamespace(remote_host="10.0.0.1", address="10.0.0.1:1")
    more = set()
    for code in sorted(CHECKED | FORGOTTEN):
        ext = dict(NAMED)
        sign(ext, body, "nobody1", b"nobodySecret")
        if acl.refuses(ReceivedRequest(peer, code, 0, 0, "PYTHON", ext, body)) is None:
            more |= {code for each in contexts_of(code, ext, body) if not {GET, LIST} & {*each.actions}}
    # Where a slave finds its master, which names no address.
    assert more == {RequestCode.EXCHANGE_BROKER_HA_INFO}
