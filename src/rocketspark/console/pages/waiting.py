"""What waits: delayed and timer messages for their time, half messages for the end of their transaction."""

from __future__ import annotations

from starlette.responses import Response

from rocketspark.console.call import Call, Confirmation, Done, Form
from rocketspark.console.content.asked import needed
from rocketspark.console.routes import change, page

HOME = "/waiting"
# Messages of each broker that are read at most for it.
SCAN_MAX = 2000
ROWS_MAX = 200
LIFE_S = 10.0


async def waiting(call: Call) -> Response:
    """The page, whose two parts load after it: brokers' own queues are read for them."""
    return call.page("waiting.html")


async def delayed(call: Call) -> Response:
    """Delay levels and timers."""
    found = await call.read("delayed", lambda admin: admin.list_delayed(scan_max=SCAN_MAX), LIFE_S)
    return call.part("waiting_delayed.html", found=found, topics=found.topics[:ROWS_MAX])


async def transactions(call: Call) -> Response:
    """Open transactions, or those that were given up."""
    given_up = call.query("given_up") == "yes"
    found = await call.read(
        ("transactions", given_up), lambda admin: admin.list_transactions(given_up=given_up, scan_max=SCAN_MAX), LIFE_S
    )
    rows = found.transactions[:ROWS_MAX]
    count = len(found.transactions)
    return call.part("waiting_transactions.html", rows=rows, count=count, whole=found.whole, given_up=given_up)


async def check_words(call: Call, form: Form) -> Confirmation:
    """Say whose producers are asked again."""
    name, topic, group = needed(form, "id"), form.get("topic", ""), form.get("group", "")
    what = f"The broker asks a producer of {group} again whether the transaction is committed or rolled back."
    return Confirmation(f"Ask about message {name} of {topic}", (what,), "Ask", HOME)


async def check(call: Call, form: Form) -> Done:
    """Have a transaction that was given up checked again."""
    name = needed(form, "id")
    found = await call.ask(lambda admin: admin.check_transaction(name))
    return Done(f"The producers {found.group} of message {found.message_id} are asked again.", HOME)


ROUTES = [
    page("/waiting", waiting),
    page("/waiting/delayed", delayed),
    page("/waiting/transactions", transactions),
    change("/waiting/check", check_words, check),
]
