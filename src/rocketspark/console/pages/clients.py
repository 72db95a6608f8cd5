"""Connected clients: who they are, and what one is doing, with the stacks of its threads.

Rule: the consumers of many groups are shown a part at a time, as brokers tell them group by group.
"""

from __future__ import annotations

from starlette.responses import Response

from rocketspark.console.call import Call
from rocketspark.console.routes import page

GROUPS = 20


async def clients(call: Call) -> Response:
    """The producers, or the consumers of some groups."""
    role, text = call.query("role", "consumer"), call.query("q").strip()
    pages = at = 1
    if role == "producer":
        found = await call.read("producers", lambda admin: admin.list_clients(role="producer"), 5.0)
        found = [each for each in found if text.lower() in f"{each.client_id} {each.group}".lower()]
    else:
        role = "consumer"
        names = await call.read(("groups", False), lambda admin: admin.list_groups(system=False), 5.0)
        names = [name for name in names if text.lower() in name.lower()]
        some, at, pages = call.paged(names, GROUPS)
        found = await call.read(
            ("consumers", tuple(some)), lambda admin: admin.list_clients(groups=some, role="consumer"), 5.0
        )
    return call.page("clients.html", role=role, text=text, found=found, number=at, pages=pages)


async def client(call: Call) -> Response:
    """One client."""
    client_id, group = call.query("id"), call.query("group") or None
    stacks = call.query("stacks") == "yes"
    found = await call.read(
        ("client", client_id, group, stacks),
        lambda admin: admin.show_client(client_id, group=group, stacks=stacks),
        3.0,
    )
    return call.page("client.html", found=found, group=group, stacks=stacks)


ROUTES = (page("/clients", clients), page("/client", client))
