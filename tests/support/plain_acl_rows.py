"""One table of requests for access control 1.0, and what sends it: to the official broker 5.2.0, and to ours.

What 5.2.0 answers is kept in vectors/plain_acl_5.2.0.json. Written out by hand, so that it depends on none of our code.
A row's `source` is the address it is sent from: all of 127.0.0.0/8 is this machine.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import re
import socket
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.raw_frames import read_frame, write_frame

VECTORS = Path(__file__).parents[1] / "vectors" / "plain_acl_5.2.0.json"
ACL_MARK = "org.apache.rocketmq.acl.common.AclException"

PLAIN_ACL = """\
globalWhiteRemoteAddresses:
- 127.0.9.1
- 127.0.10.*
- 127.0.11.{4,5}
- 127.0.12.3-7
- 127.0.13.1,127.0.13.2
- 127.1-3.0.1
- fe80::1
accounts:
- accessKey: adminKey
  secretKey: adminSecret
  whiteRemoteAddress:
  admin: true
- accessKey: plainKey
  secretKey: plainSecret
  whiteRemoteAddress: 127.0.14.*
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - denied=DENY
  - sendable=PUB
  - readable=SUB
  - both=PUB|SUB
  - turned=SUB|PUB
  - odd=ANY
  - small=pub
  - spaced = PUB
  groupPerms:
  - deniedGroup=DENY
  - pubGroup=PUB
  - subGroup=SUB
  - bothGroup=PUB|SUB
- accessKey: openKey
  secretKey: 1234567890
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: PUB|SUB
  topicPerms:
  - closed=DENY
  - '%RETRY%viaTopic=DENY'
- accessKey: bareKey
  secretKey: bareSecret
- accessKey: plainKey
  secretKey: anotherSecret
  admin: true
"""
SECOND_FILE = """\
accounts:
- accessKey: secondKey
  secretKey: secondSecret
  defaultTopicPerm: SUB
  groupPerms: [g1=SUB]
- accessKey: bareKey
  secretKey: secondSecretOfBare
  admin: true
"""
SECRETS = {
    "adminKey": "adminSecret",
    "plainKey": "plainSecret",
    "openKey": "1234567890",
    "bareKey": "secondSecretOfBare",
    "secondKey": "secondSecret",
    "createdKey": "createdSecret",
}
V4_9_3, V4_9_4, V5_2_0 = 399, 401, 455


class Row(NamedTuple):
    """One request. `key`: who signs, None for nobody; `spoil`: what is wrong with the signature; `again`: until a
    change of files is taken, at most some seconds, an answer that begins otherwise is asked for again."""

    name: str
    code: int
    ext: dict[str, str]
    key: str | None = "plainKey"
    body: bytes = b""
    source: str = "127.0.0.1"
    version: int = V5_2_0
    spoil: str = ""
    again: bool = False


def send(topic: str, group: str = "producers") -> dict[str, str]:
    """SEND_MESSAGE_V2's fields."""
    fields = {"c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": "", "j": "0", "k": "false"}
    return {"a": group, "b": topic, **fields, "m": "false"}


def pull(topic: str, group: str) -> dict[str, str]:
    """PULL_MESSAGE's fields."""
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "1",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
    }


def heartbeat(*groups: tuple[str, list[str]]) -> bytes:
    """A heartbeat's body: consumer groups with their topics."""
    consumers = [
        {
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": group,
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": [{"topic": topic, "subString": "*", "subVersion": 1} for topic in topics],
            "unitMode": False,
        }
        for group, topics in groups
    ]
    return json.dumps({"clientID": "c1", "producerDataSet": [], "consumerDataSet": consumers}).encode()


def _rows() -> list[Row]:
    topic = {"topic": "both"}
    rows = [
        # Who is asking.
        Row("nobody", 10, {"topic": "both", "producerGroup": "g"}, key=None),
        Row("nobody, no fields", 28, {}, key=None),
        Row("unknown key", 310, send("both"), key="unknownKey"),
        Row("wrong secret", 310, send("sendable"), spoil="secret"),
        Row("no signature", 310, send("sendable"), spoil="missing"),
        Row("empty signature", 310, send("sendable"), spoil="empty"),
        Row("signature that is no base64", 310, send("sendable"), spoil="text"),
        Row("a field changed after it was signed", 310, send("sendable"), spoil="field"),
        Row("a field added after it was signed", 310, send("sendable"), spoil="added"),
        Row("body changed after it was signed", 310, send("sendable"), body=b"hello", spoil="body"),
        Row("security token", 310, send("sendable"), body=b"hello", spoil="token"),
        Row("secret of digits", 310, send("sendable"), key="openKey", body=b"hello"),
        Row("second account of a key does not count", 17, {}, spoil="second"),
        Row("first file of a key counts", 310, send("sendable"), key="bareKey", body=b"x"),
        Row("the other file of a key does not", 310, send("sendable"), key="bareKey", spoil="bareSecret"),
        Row("names in another script", 310, send("t\u00e4\u4e2d\U0001f600"), key="openKey"),
        # White lists.
        *(
            Row(f"from {source}", 11, pull("both", "subGroup"), key=None, source=source)
            for source in (
                *("127.0.9.1", "127.0.9.2", "127.0.10.1", "127.0.10.255", "127.0.11.4", "127.0.11.6"),
                *("127.0.12.2", "127.0.12.3", "127.0.12.7", "127.0.12.8", "127.0.13.2", "127.0.13.3"),
                *("127.2.0.1", "127.2.9.9", "127.4.0.1", "127.0.14.1"),
            )
        ),
        Row("white address of an account, wrong secret", 310, send("both"), spoil="secret", source="127.0.14.9"),
        Row("white address of another account", 310, send("both"), key="openKey", spoil="secret", source="127.0.14.9"),
        Row("white address of an account, admin code", 25, {}, source="127.0.14.9", body=b"x=1"),
        # Sends.
        *(
            Row(f"send to {name}", 310, send(name), body=b"hello")
            for name in ("denied", "sendable", "readable", "both", "turned", "odd", "small", "spaced", "other")
        ),
        Row(
            "send, long names",
            10,
            {
                "producerGroup": "g",
                "topic": "readable",
                "defaultTopic": "TBW102",
                "defaultTopicQueueNums": "4",
                "queueId": "0",
                "sysFlag": "0",
                "bornTimestamp": "0",
                "flag": "0",
            },
        ),
        Row("send a batch", 320, send("readable"), body=b"x"),
        Row("send to a retry topic", 310, send("%RETRY%subGroup", "subGroup")),
        Row("send to another group's retry topic", 310, send("%RETRY%subGroup", "deniedGroup")),
        Row("send to a retry topic, PUB on the group", 310, send("%RETRY%pubGroup", "pubGroup")),
        Row("send to a retry topic, long names", 10, {"topic": "%RETRY%x", "group": "deniedGroup"}),
        Row("send traces", 310, send("RMQ_SYS_TRACE_TOPIC"), body=b"x"),
        Row("read traces", 11, pull("RMQ_SYS_TRACE_TOPIC", "subGroup")),
        Row("send without a topic", 310, {"a": "g"}),
        # Reads.
        *(
            Row(f"pull {name} as {group}", 11, pull(name, group))
            for name, group in (
                *(("both", "subGroup"), ("readable", "subGroup"), ("sendable", "subGroup"), ("denied", "subGroup")),
                *(("both", "deniedGroup"), ("both", "pubGroup"), ("both", "bothGroup"), ("both", "defaultGroup")),
                *(("other", "defaultGroup"), ("denied", "deniedGroup"), ("sendable", "pubGroup")),
                *(("%RETRY%subGroup", "subGroup"), ("%RETRY%deniedGroup", "subGroup")),
            )
        ),
        Row("pull a retry topic named in topicPerms", 11, pull("both", "viaTopic"), key="openKey"),
        Row("query of messages", 12, {**topic, "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"}),
        Row(
            "query of a denied topic",
            12,
            {"topic": "denied", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"},
        ),
        *(
            Row(
                f"query, flag signed {signed}, version {version}",
                12,
                {"topic": "denied", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"},
                version=version,
                spoil=signed,
            )
            for version in (V4_9_3, V4_9_4, V5_2_0)
            for signed in ("unique unsigned", "unique signed")
        ),
        # Groups.
        *(
            Row(f"{what} as {group}", code, {"consumerGroup": group, "group": group, "clientID": "c1"})
            for what, code in (("members", 38), ("leave", 35))
            for group in ("deniedGroup", "subGroup", "pubGroup", "defaultGroup")
        ),
        Row("leave without a client", 35, {"consumerGroup": "subGroup"}),
        Row("leave, no group", 35, {"clientID": "c1", "producerGroup": "p"}),
        Row("members without a group", 38, {}),
        *(
            Row(
                f"commit {name} as {group}",
                15,
                {"consumerGroup": group, "topic": name, "queueId": "0", "commitOffset": "0"},
            )
            for name, group in (("both", "subGroup"), ("denied", "subGroup"), ("both", "deniedGroup"))
        ),
        Row("commit without an offset", 15, {"consumerGroup": "subGroup", "topic": "both", "queueId": "0"}),
        Row("commit without a topic", 15, {"consumerGroup": "subGroup", "queueId": "0", "commitOffset": "1"}),
        Row("hand back", 36, {"group": "deniedGroup", "offset": "0", "delayLevel": "0"}),
        Row("heartbeat", 34, {}, body=heartbeat(("subGroup", ["both", "readable"]))),
        Row("heartbeat of nobody", 34, {}, body=b'{"clientID":"c1","producerDataSet":[],"consumerDataSet":[]}'),
        Row("heartbeat, denied topic", 34, {}, body=heartbeat(("subGroup", ["both", "denied", "readable"]))),
        Row("heartbeat, denied group", 34, {}, body=heartbeat(("subGroup", ["both"]), ("deniedGroup", ["both"]))),
        Row("heartbeat, all denied", 34, {}, body=heartbeat(("deniedGroup", ["denied", "other", "x1", "x2", "x3"]))),
        Row("heartbeat, many topics", 34, {}, body=heartbeat(("deniedGroup", [f"t{n * 37}" for n in range(30)]))),
        # Everything else needs a signature only.
        Row("offset query", 14, {"consumerGroup": "deniedGroup", "topic": "denied", "queueId": "0"}),
        Row("greatest offset", 30, {"topic": "denied", "queueId": "0"}),
        # What only admins may.
        *(Row(f"code {code}, not admin", code, {"topic": "new"}) for code in (17, 25, 215, 200, 207)),
        Row(
            "topic, admin",
            17,
            {
                "topic": "made",
                "defaultTopic": "TBW102",
                "readQueueNums": "1",
                "writeQueueNums": "1",
                "perm": "6",
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
            },
            key="adminKey",
        ),
        Row("admin, default permissions do not matter", 310, send("other"), key="adminKey", body=b"x"),
        Row("admin, wrong secret", 17, {}, key="adminKey", spoil="secret"),
        Row("second file", 11, pull("any", "g1"), key="secondKey"),
        Row("second file, group", 11, pull("any", "g2"), key="secondKey"),
        Row("second file, send", 310, send("any"), key="secondKey"),
    ]
    return rows + _changes()


def _changes() -> list[Row]:
    account = {"accessKey": "createdKey", "secretKey": "createdSecret"}

    def update(**fields: str) -> dict[str, str]:
        return {**account, "admin": "false", **fields}

    return [
        Row("before it is made", 310, send("made"), key="createdKey"),
        Row("make an account", 50, update(topicPerms="made=PUB", groupPerms="g=SUB"), key="adminKey"),
        Row("it may send", 310, send("made"), key="createdKey", body=b"x"),
        Row("it may not read", 11, pull("made", "g"), key="createdKey"),
        Row("change it", 50, update(topicPerms="made=SUB", defaultTopicPerm="PUB"), key="adminKey"),
        Row("it may not send", 310, send("made"), key="createdKey", again=True),
        Row("it may read, and has its group still", 11, pull("made", "g"), key="createdKey", again=True),
        Row("it sends by default", 310, send("both"), key="createdKey", body=b"x", again=True),
        Row("short key", 50, {"accessKey": "short", "secretKey": "longEnough"}, key="adminKey"),
        Row("short secret", 50, {"accessKey": "longEnough", "secretKey": "short"}, key="adminKey"),
        Row("no secret", 50, {"accessKey": "longEnough"}, key="adminKey"),
        Row("permission without a name", 50, update(topicPerms="PUB"), key="adminKey"),
        Row("unknown permission", 50, update(topicPerms="a=PUB,b=READ"), key="adminKey"),
        Row("unknown permission of a group", 50, update(groupPerms="g=ANY"), key="adminKey"),
        Row("white address", 50, update(whiteRemoteAddress="127.0.15.1"), key="adminKey"),
        Row("it comes from there", 25, {}, key="createdKey", spoil="secret", source="127.0.15.1", again=True),
        Row("unmake it", 51, {"accessKey": "createdKey"}, key="adminKey"),
        Row("it is gone", 310, send("made"), key="createdKey", again=True),
        Row("unmake it again", 51, {"accessKey": "createdKey"}, key="adminKey"),
        Row("unmake nobody", 51, {}, key="adminKey"),
        Row(
            "white list without a file",
            53,
            {"globalWhiteAddrs": "127.0.16.1", "aclFileFullPath": "/no/such.yml"},
            key="adminKey",
        ),
        Row("no white list", 53, {}, key="adminKey"),
        Row("white list", 53, {"globalWhiteAddrs": "127.0.16.1,127.0.16.2"}, key="adminKey"),
        Row("a new white address", 11, pull("both", "g"), key=None, source="127.0.16.2", again=True),
        Row("an old one", 11, pull("both", "g"), key=None, source="127.0.9.1", again=True),
    ]


ROWS = _rows()


def signature(secret: str, ext: dict[str, str], body: bytes) -> str:
    """The signature of AclClientRPCHook."""
    text = "".join(ext[name] for name in sorted(ext) if name != "Signature")
    return base64.b64encode(hmac.digest(secret.encode(), text.encode() + body, hashlib.sha1)).decode()


def signed(row: Row) -> tuple[dict[str, str], bytes]:
    """Fields and body as they go over the wire."""
    ext, body, spoil = dict(row.ext), row.body, row.spoil
    if row.key is None:
        return ext, body
    secret = SECRETS.get(row.key, "someSecret")
    secret = {"secret": "wrongSecret", "second": "anotherSecret", "bareSecret": "bareSecret"}.get(spoil, secret)
    ext["AccessKey"] = row.key
    if spoil == "token":
        ext["SecurityToken"] = "token"
    if spoil == "unique signed":
        ext["_UNIQUE_KEY_QUERY"] = "false"
    ext["Signature"] = signature(secret, ext, body)
    if spoil == "unique unsigned":
        ext["_UNIQUE_KEY_QUERY"] = "false"
    if spoil == "missing":
        del ext["Signature"]
    elif spoil in ("empty", "text"):
        ext["Signature"] = "" if spoil == "empty" else "no base64!"
    elif spoil == "field":
        ext["e"] = "1"
    elif spoil == "added":
        ext["zzz"] = "1"
    elif spoil == "body":
        body += b"!"
    return ext, body


def answer(address: str, row: Row) -> dict[str, Any]:
    """The header of what the broker at "host:port" answers."""
    ext, body = signed(row)
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 30, source_address=(row.source, 0)) as link:
        header = {"code": row.code, "language": "JAVA", "version": row.version, "opaque": 1, "flag": 0}
        write_frame(link, header | {"extFields": ext}, body)
        return read_frame(link)[0]


def outcome(address: str, row: Row) -> dict[str, Any]:
    """What a broker says: a refusal by its code and remark, else that the request was served."""
    found = answer(address, row)
    remark = found.get("remark")
    if remark is not None:
        # RocketMQ repeats it, we do not.
        remark = re.sub("secretKey=[^ ]*", "secretKey=…", remark)
    if ACL_MARK in (remark or "") or row.code in (50, 51, 53):
        return {"code": found["code"], "remark": remark}
    return {"served": True}


def outcomes(address: str, expected: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send all rows, one after the other. `expected`: what rows with `again` wait for; without it they wait a while."""
    found = {}
    for row in ROWS:
        deadline = time.monotonic() + 10
        found[row.name] = outcome(address, row)
        while row.again and time.monotonic() < deadline:
            if expected is not None and found[row.name] == expected[row.name]:
                break
            time.sleep(0.05 if expected else 4.0)
            found[row.name] = outcome(address, row)
            if expected is None:
                break
    return found


def write_files(home: Path) -> None:
    """Lay out the rules below a home folder."""
    (home / "conf" / "acl" / "deep").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(PLAIN_ACL)
    (home / "conf" / "acl" / "deep" / "second.yml").write_text(SECOND_FILE)
    for path in home.rglob("*.yml"):
        path.chmod(0o600)


def remember(found: dict[str, Any]) -> None:
    """Keep what 5.2.0 answered."""
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(answer)}" for name, answer in found.items())
    VECTORS.write_text("{\n" + rows + "\n}\n")


def remembered() -> dict[str, Any]:
    """What 5.2.0 answered."""
    with contextlib.closing(VECTORS.open()) as file:
        found: dict[str, Any] = json.load(file)
    return found
