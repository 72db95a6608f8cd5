"""Dead letters by group, with what is known of why, and chosen ones sent again, each once.

Rule: what a letter is and when it was sent before, admin.messages says, as for the pipeline `dlq`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from starlette.responses import Response

from rocketspark.admin.cluster_client import TopicState
from rocketspark.admin.messages.dead_letters import Resent
from rocketspark.admin.messages.search import Search
from rocketspark.console.call import Call, Confirmation, Done, Failed, Form, together
from rocketspark.console.content import asked
from rocketspark.console.content.asked import needed
from rocketspark.console.content.shown_body import preview
from rocketspark.console.drawing import link, number
from rocketspark.console.pages.message import traced
from rocketspark.console.pages.messages import STEP_BYTES_MAX
from rocketspark.console.routes import change, page
from rocketspark.errors import UsageError
from rocketspark.model import namespace
from rocketspark.model.text import shown

# Groups of a part of the list: brokers are asked about each.
GROUPS, LETTERS = 20, 100
PICK = "pick:"
# Reasons that a sentence names.
REASONS = 3


class Row(NamedTuple):
    """A group and its topic of dead letters, or why that cannot be had."""

    group: str
    state: TopicState | Failed


async def dead_letters(call: Call) -> Response:
    """The groups that have dead letters, or those of one group."""
    if call.query("group"):
        return await _letters(call, call.query("group"))
    topics = await call.read("topics", lambda admin: admin.list_topics())
    text = call.query("q").strip()
    names = [name.removeprefix(namespace.DLQ_PREFIX) for name in topics if name.startswith(namespace.DLQ_PREFIX)]
    names = [name for name in names if text.lower() in name.lower()]
    some, at, pages = call.paged(names, GROUPS)
    states = await together(*(call.attempt(_state(call, name)) for name in some))
    rows = [Row(name, state) for name, state in zip(some, states, strict=True)]
    return call.page("dead_letters.html", rows=rows, count=len(names), text=text, number=at, pages=pages)


async def _state(call: Call, group: str) -> TopicState:
    topic = namespace.DLQ_PREFIX + group
    return await call.read(("topic_state", topic), lambda admin: admin.show_topic(topic), 5.0)


async def _letters(call: Call, group: str) -> Response:
    search = _search(call.query("since"), call.query("text"))
    bounds = {"limit": LETTERS, "scan_max": 20 * LETTERS, "bytes_max": STEP_BYTES_MAX}
    async with call.console.looking:
        found = await call.attempt(call.ask(lambda admin: admin.show_dead_letters(group, search, **bounds)))
        return call.page(
            "dead_letters_of.html",
            group=group,
            topic=namespace.DLQ_PREFIX + group,
            found=found,
            since=call.query("since"),
            text=call.query("text"),
            preview=preview,
            place=asked.place_in,
        )


def _search(since: str, text: str) -> Search:
    return Search(since_ms=asked.time_of(since), contains=text.strip() or None)


async def reason(call: Call) -> Response:
    """What consumers' traces tell of why a message became a dead letter."""
    message_id, group = call.query("id"), call.query("group")
    trace = await traced(call, message_id)
    if isinstance(trace, Failed):
        return call.part("dead_letter_reason.html", failed=trace, events=[])
    events = [each for each in trace.events if each.kind == "consumed" and each.group == group and not each.success]
    return call.part("dead_letter_reason.html", failed=None, events=events)


# -- sent again --------------------------------------------------------------------------------------------------------


def _picked(form: Form) -> list[str] | None:
    """Return the ids of the letters that are meant, None for all."""
    if form.get("all") == "yes":
        return None
    found = [name.removeprefix(PICK) for name in form if name.startswith(PICK)]
    if not found:
        raise UsageError("pick the dead letters to send again, or take all")
    return found


async def _resend(call: Call, form: Form, *, dry_run: bool) -> list[Resent]:
    picked, to = _picked(form), form.get("to", "").strip() or None
    to_group = form.get("where") == "group"
    if form.get("where") == "topic" and to is None:
        raise UsageError("name the topic to send them to")
    search = _search(form.get("since", ""), form.get("text", "")) if picked is None else None
    return await call.ask(
        lambda admin: admin.resend_dead_letters(
            needed(form, "group"),
            picked,
            to=to if form.get("where") == "topic" else None,
            to_group=to_group,
            dry_run=dry_run,
            search=search,
        )
    )


def _why(done: Sequence[Resent]) -> str:
    reasons = Counter(each.why for each in done if each.outcome == "failed")
    return "; ".join(f"{number(count)}: {shown(why)}" for why, count in reasons.most_common(REASONS))


def _page_of(form: Form) -> str:
    return str(link("/dead-letters", group=needed(form, "group"))).replace("&amp;", "&")


async def resend_words(call: Call, form: Form) -> Confirmation:
    """Say how many would be sent, and where to."""
    would = await _resend(call, form, dry_run=True)
    counts = Counter(each.outcome for each in would)
    targets = Counter(each.target for each in would if each.outcome == "would send")
    lines = [f"{number(count)} to topic {shown(topic)}." for topic, count in targets.most_common(10)]
    if counts["already"]:
        lines.append(f"{number(counts['already'])} were sent again before, and stay.")
    if counts["failed"]:
        lines.append(f"{number(counts['failed'])} cannot be sent. {_why(would)}.")
    return Confirmation(
        "Send dead letters again",
        (
            f"{number(counts['would send'])} dead letters of group {shown(form['group'])} are sent again, each once,"
            " with body, tag, keys and properties as they were.",
            *lines,
        ),
        "Send again",
        _page_of(form),
    )


async def resend(call: Call, form: Form) -> Done:
    """Send the chosen dead letters again."""
    done = await _resend(call, form, dry_run=False)
    counts = Counter(each.outcome for each in done)
    told = [f"{number(counts['sent'])} dead letters were sent again"]
    if counts["already"]:
        told.append(f"{number(counts['already'])} had been sent before")
    if counts["failed"]:
        told.append(f"{number(counts['failed'])} could not be sent ({_why(done)})")
    return Done(", ".join(told) + ".", _page_of(form))


ROUTES = (
    page("/dead-letters", dead_letters),
    page("/dead-letters/reason", reason),
    change("/dead-letters/resend", resend_words, resend),
)
