"""The table of what requests need, field by field: left out, empty, another group's by each of its derived names.

Whose rights are all topics and one group gets nothing of another group's, whichever field of whichever request names it
and by whatever name; and a field that may be left out opens nothing.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.live.support import run
from tests.live.test_access import started

from rocketspark.access.access_control import AccessControl
from rocketspark.access.audit import nobody_told
from rocketspark.access.authorization import Authorization
from rocketspark.access.policies import ALL, ALLOW, CUSTOM, Acl, Pattern, Policy, PolicyEntry, Resource
from rocketspark.access.request_contexts import CHECKED, FORGOTTEN
from rocketspark.access.tables import AccessTables, User
from rocketspark.broker.access.gate import _ACTIONS
from rocketspark.protocol.codes import RequestCode as Code
from rocketspark.transport.processor_table import ReceivedRequest, Route

pytestmark = pytest.mark.shows("the table of requests is complete in fields")

GROUPS = ("consumerGroup", "group", "groupName", "srcGroup", "destGroup", "filterGroups", "compareGroup")
TOPICS = ("topic", "b", "topicList")
DERIVED = ("%RETRY%victim", "%RETRY%victim_orders", "%RETRY%victim+orders")
# A group that is named, and of which nothing is told or done: a producer's, a look at one's own topic without it.
HARMLESS = {
    # The group of a message sent back by a pull consumer of 4.x is `group`; of a sender's it is no resource at all.
    (Code.SEND_MESSAGE, "group"),
    (Code.SEND_REPLY_MESSAGE, "group"),
}
# Fields that may be left out, and why that opens nothing.
LEFT_OUT = {
    # Its own group's figures alone.
    (Code.GET_CONSUME_STATS, "topic"),
    (Code.GET_CONSUME_STATS, "topicList"),
    # What is told is of the topic.
    (Code.QUERY_CONSUME_QUEUE, "consumerGroup"),
    # It leaves groups out of the lowest offset.
    (Code.QUERY_CORRECTION_OFFSET, "filterGroups"),
    # A producer leaves.
    (Code.UNREGISTER_CLIENT, "consumerGroup"),
}


class Peer:
    remote_host, address = "10.0.0.7", "10.0.0.7:4711"


def control(folder: Path, **resources: list[str]) -> AccessControl:
    """A check by rules alone: these topics and groups, "*" for all."""
    entries = tuple(
        PolicyEntry(
            Resource(kind, None if name == "*" else name, Pattern.ANY if name == "*" else Pattern.LITERAL),
            (ALL,),
            ALLOW,
        )
        for kind, names in resources.items()
        for name in names
    )
    tables = AccessTables(folder / "access.json")
    tables.users = {"u": User("u", "s")}
    tables.acls = {"u": Acl((Policy(CUSTOM, entries),))}
    authorization = Authorization(tables, tables, kept_max=10_000)
    return AccessControl(None, authorization, cluster_name="C", decided=nobody_told)


def fields_of(route: Route) -> list[str]:
    """The fields of a request's header, by their names on the wire."""
    try:
        return [field.encode_name for field in msgspec.structs.fields(route[1])]
    except TypeError:
        return []


def passes(check: AccessControl, code: int, ext: dict[str, str]) -> bool:
    return check.refuses(ReceivedRequest(Peer(), code, 0, 0, "JAVA", {"AccessKey": "u", **ext}, b"{}")) is None


def test_each_field_of_each_request_asks_for_the_same_right_however_it_is_written(tmp_path: Path) -> None:
    async def routes() -> dict[int, Route]:
        async with started(tmp_path / "store") as server:
            return dict(server._server._routes.table)

    table = run(routes())
    mine, all_of_mine = (
        control(tmp_path, Topic=["*"], Group=["mine"]),
        control(tmp_path, Topic=["orders"], Group=["mine"]),
    )
    seen: set[tuple[int, str]] = set()
    opened: list[tuple[Code, str, str | None]] = []
    for code in sorted((CHECKED.keys() | FORGOTTEN.keys()) & table.keys()):
        names = fields_of(table[code])
        ext = {name: "orders" for name in names if name in TOPICS} | {name: "mine" for name in names if name in GROUPS}
        if not ext or not passes(mine, code, ext):
            continue
        for name in ext:
            values = DERIVED if name in TOPICS else ("victim", *DERIVED)
            if (code, name) not in HARMLESS:
                seen.add((code, name))
                opened += [(Code(code), name, v) for v in values if passes(mine, code, ext | {name: v})]
            if (code, name) in LEFT_OUT or code in _ACTIONS or (code, name) in HARMLESS:
                continue
            # What is not said is as good as the name that nobody has: no rule of a topic or a group fits it.
            left = {k: v for k, v in ext.items() if k != name}
            opened += [(Code(code), name, None)] if passes(all_of_mine, code, left) else []
    assert opened == []
    assert len(seen) >= 40
