"""What brokers set aside, as it could not be delivered or checked: tried once more, or dropped."""

from __future__ import annotations

from starlette.responses import Response

from rocketspark.admin.cluster_client import Aside
from rocketspark.console.call import Call, Confirmation, Done, Form
from rocketspark.console.routes import change, page
from rocketspark.errors import UsageError

HOME = "/quarantine"
ROWS = 100


async def quarantine(call: Call) -> Response:
    """The messages that are set aside."""
    found = await call.read("quarantine", lambda admin: admin.list_quarantine())
    rows, number, pages = call.paged(found, ROWS)
    return call.page("quarantine.html", rows=rows, count=len(found), number=number, pages=pages)


async def _found(call: Call, form: Form) -> Aside:
    name, broker = form.get("name", ""), form.get("broker", "")
    for each in await call.ask(lambda admin: admin.list_quarantine(broker)):
        if each.name == name:
            return each
    raise UsageError(f"nothing named {name!r} is set aside on {broker!r} any more")


def _place(each: Aside) -> str:
    at = f", offset {each.queue_offset}" if each.queue_offset >= 0 else ""
    return f"It lies in {each.topic}, queue {each.queue_id}{at}. Why it was set aside: {each.reason}."


async def retry_words(call: Call, form: Form) -> Confirmation:
    """Say what is tried once more."""
    each = await _found(call, form)
    what = (_place(each), "It is delivered, or checked, if that works now; else it stays.")
    return Confirmation(f"Try {each.name} of {each.broker_name} once more", what, "Try once more", HOME)


async def retry(call: Call, form: Form) -> Done:
    """Try one once more."""
    name, broker = form["name"], form["broker"]
    await call.ask(lambda admin: admin.retry_quarantined(name, broker))
    return Done(f"{name} of {broker} was handled once more.", HOME)


async def drop_words(call: Call, form: Form) -> Confirmation:
    """Say what is dropped."""
    each = await _found(call, form)
    what = (_place(each), "It is never delivered. In the log it stays until it expires.")
    return Confirmation(f"Drop {each.name} of {each.broker_name}", what, "Drop", HOME, grave=True)


async def drop(call: Call, form: Form) -> Done:
    """Drop one."""
    name, broker = form["name"], form["broker"]
    await call.ask(lambda admin: admin.drop_quarantined(name, broker))
    return Done(f"{name} of {broker} was dropped.", HOME)


ROUTES = [
    page("/quarantine", quarantine),
    change("/quarantine/retry", retry_words, retry),
    change("/quarantine/drop", drop_words, drop),
]
