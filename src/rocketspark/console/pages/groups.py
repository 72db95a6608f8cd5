"""Consumer groups: their members and lag, for one group queue by queue; made, reset, set to pull or pop, deleted.

Rule: a list of many groups asks brokers about those that are on the page alone.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response

from rocketspark.admin.groups import GroupSettings
from rocketspark.admin.offsets import OffsetChange, Place
from rocketspark.admin.operations import AsyncAdmin
from rocketspark.client import validators
from rocketspark.console.call import Call, Confirmation, Done, Failed, Form
from rocketspark.console.cluster.sampler import lags
from rocketspark.console.content.asked import needed, time_of
from rocketspark.console.drawing import link, number
from rocketspark.console.routes import change, page
from rocketspark.errors import UsageError
from rocketspark.model.text import INT_MAX, shown, whole_number
from rocketspark.protocol.json.bodies import GroupConfig
from rocketspark.protocol.lite_topics import BIND_TOPIC

HOW = {
    "CONSUME_PASSIVELY": "messages are pushed to their listeners",
    "CONSUME_ACTIVELY": "they pull messages",
    "CONSUME_POP": "they pop messages",
}
ROWS = 20
# Queues that a confirmation names one by one.
NAMED_MAX = 20


async def groups(call: Call) -> Response:
    """The groups of the cluster, or the part of the list that htmx asks for."""
    system = call.query("system") == "yes"
    names = await call.read(("groups", system), lambda admin: admin.list_groups(system=system), 5.0)
    text = call.query("q").strip()
    found = [name for name in names if text.lower() in name.lower()]
    sort = call.query("sort")
    if sort == "lag":
        behind = Counter[str]()
        for each in await lags(call.view):
            behind[each.group] += each.lag
        found.sort(key=lambda name: (-behind[name], name))
    rows, at, pages = call.paged(found, ROWS)
    states = await call.attempt(
        call.read(("group_states", tuple(rows)), lambda admin: admin.list_group_states(rows), 5.0)
    )
    if not isinstance(states, Failed):
        place = {name: at for at, name in enumerate(rows)}
        states = sorted(states, key=lambda state: place.get(state.group, len(place)))
    values: dict[str, Any] = {
        "names": rows,
        "states": states,
        "count": len(found),
        "text": text,
        "system": system,
        "sort": sort,
        "number": at,
        "pages": pages,
    }
    if call.wants_part():
        return call.part("groups_part.html", **values)
    return call.page("groups.html", **values)


async def group(call: Call) -> Response:
    """One group."""
    name = call.query("name")
    settings = await call.attempt(call.read(("group", name), lambda admin: admin.show_group(name)))
    lite_topic = ""
    if not isinstance(settings, Failed):
        lite_topic = next(filter(None, (each.attributes.get(BIND_TOPIC) for each in settings.values())), "")
    return call.page("group.html", name=name, settings=settings, lite_topic=lite_topic, yes_no=YES_NO)


async def progress(call: Call) -> Response:
    """The queues that a group reads, with lag and delay, and who holds each."""
    name = call.query("name")
    lag = await call.read(("group_lag", name), lambda admin: admin.group_lag(name), 4.0)
    return call.part("group_progress.html", name=name, lag=lag)


async def members(call: Call) -> Response:
    """The connected members of a group, those marked that subscribe to something else."""
    name = call.query("name")
    found = await call.read(("members", name), lambda admin: admin.list_members(name), 4.0)
    return call.part("group_members.html", name=name, found=found, how=HOW.get(found.consume_type, ""))


def _page_of(name: str) -> str:
    return str(link("/group", name=name)).replace("&amp;", "&")


# -- reset -------------------------------------------------------------------------------------------------------------


def place_of(form: Form) -> Place:
    """Return where a group is to go on, as a form says it. Raises UsageError."""
    to = form.get("to", "")
    if to in ("earliest", "latest"):
        return to  # type: ignore[return-value]
    if to == "time":
        time_ms = time_of(form.get("time", "").strip())
        if time_ms is None:
            raise UsageError("give the time to go on at")
        return datetime.fromtimestamp(time_ms / 1000, UTC)
    offset = whole_number(form.get("offset", "").strip())
    if to != "offset" or offset is None:
        raise UsageError("give the offset to go on at, a whole number")
    return offset


def _queue_ids(form: Form) -> list[int] | None:
    text = form.get("queue", "").strip()
    if not text:
        return None
    queue_id = whole_number(text)
    if queue_id is None:
        raise UsageError(f"{shown(text)!r} is no number of a queue")
    return [queue_id]


async def _reset(call: Call, form: Form, *, dry_run: bool) -> list[OffsetChange]:
    name, topic, to, queue_ids = needed(form, "name"), form.get("topic", "").strip(), place_of(form), _queue_ids(form)

    async def reset(admin: AsyncAdmin) -> list[OffsetChange]:
        return await admin.reset_offsets(name, topic, to, queue_ids=queue_ids, dry_run=dry_run)

    return await call.ask(reset)


async def reset_words(call: Call, form: Form) -> Confirmation:
    """Say, of each queue, from where to where, and how many messages are passed over or come again."""
    changes = await _reset(call, form, dry_run=True)
    passed, again = sum(c.passed_over for c in changes), sum(c.read_again for c in changes)
    moved = [c for c in changes if c.before != c.after]
    lines = [_line(c) for c in moved[:NAMED_MAX]]
    if len(moved) > NAMED_MAX:
        lines.append(f"… and {len(moved) - NAMED_MAX} queues more.")
    return Confirmation(
        "Reset a group",
        (
            f"Group {shown(form['name'])} goes on elsewhere in topic {shown(form.get('topic', ''))}:"
            f" {number(passed)} messages are passed over, {number(again)} are consumed once more.",
            *(lines or ["It is there already in every queue."]),
        ),
        "Reset",
        _page_of(needed(form, "name")),
        grave=passed > 0,
        topic=form.get("topic", "").strip(),
    )


def _line(c: OffsetChange) -> str:
    before = "none" if c.before is None else number(c.before)
    return (
        f"Queue {c.queue.queue_id} of {shown(c.queue.broker_name)}: from {before} to {number(c.after)}"
        f" ({number(c.passed_over)} passed over, {number(c.read_again)} once more)."
    )


async def reset(call: Call, form: Form) -> Done:
    """Set the offsets."""
    changes = await _reset(call, form, dry_run=False)
    passed, again = sum(c.passed_over for c in changes), sum(c.read_again for c in changes)
    return Done(
        f"Group {shown(form['name'])} was reset in {len(changes)} queues of topic {shown(form['topic'])}:"
        f" {number(passed)} messages passed over, {number(again)} once more.",
        _page_of(needed(form, "name")),
    )


# -- settings ----------------------------------------------------------------------------------------------------------

YES_NO = (("", "as it is"), ("yes", "yes"), ("no", "no"))
# A new one has RocketMQ's defaults.
NEW = (("", "not set"), ("yes", "yes"), ("no", "no"))


async def new(call: Call) -> Response:
    """The form of a new group."""
    return call.page("group_new.html", choices=NEW)


def _settings_of(form: Form) -> GroupSettings:
    """Return the settings that a form names. Raises UsageError."""
    words = {"yes": True, "no": False}
    retries = form.get("retry_max_times", "").strip()
    retry_max_times = whole_number(retries, high=INT_MAX) if retries else None
    if retries and retry_max_times is None:
        raise UsageError(f"retries at most: {shown(retries)!r} is no whole number from 0 to {INT_MAX}")
    return GroupSettings(
        ordered=words.get(form.get("ordered", "")),
        consume_enabled=words.get(form.get("consume_enabled", "")),
        retry_max_times=retry_max_times,
        attributes=form.get("attributes", "").strip(),
    )


def _settings_told(settings: GroupSettings) -> list[str]:
    """Return a sentence for each setting that is given. Raises UsageError for what no group can have."""
    settings.over(GroupConfig(group_name=""))
    rows = (
        ("May consume", settings.consume_enabled),
        ("Messages in order", settings.ordered),
        ("Retries at most", settings.retry_max_times),
        ("Attributes", settings.attributes or None),
    )
    says = {True: "yes", False: "no"}
    given = ((name, says[value] if isinstance(value, bool) else value) for name, value in rows if value is not None)
    return [f"{name}: {value}." for name, value in given]


async def create_words(call: Call, form: Form) -> Confirmation:
    """Say which group is made."""
    name = validators.check_group(form.get("name", "").strip())
    if name in await call.ask(lambda admin: admin.list_groups(system=True)):
        raise UsageError(f"group {name!r} is there already: open it to change it")
    told = _settings_told(_settings_of(form))
    return Confirmation(f"Create group {name}", ("It is made on every master.", *told), "Create", "/groups/new")


async def settings_words(call: Call, form: Form) -> Confirmation:
    """Say what is changed of a group."""
    name = needed(form, "name")
    told = _settings_told(_settings_of(form))
    if not told:
        raise UsageError("nothing to change: fill in what is to be another value")
    await call.ask(lambda admin: admin.check_known(name))
    return Confirmation(f"Change group {name} on every master", tuple(told), "Change", _page_of(name))


async def put(call: Call, form: Form) -> Done:
    """Make the group, or change it."""
    name = needed(form, "name").strip()
    found = await call.ask(lambda admin: admin.put_group(name, _settings_of(form)))
    return Done(f"Group {shown(name)} was set on {shown(', '.join(found))}.", _page_of(name))


# -- pull or pop, deleted ----------------------------------------------------------------------------------------------


async def mode_words(call: Call, form: Form) -> Confirmation:
    """Say how the group will get messages."""
    mode, topic = form.get("mode", ""), form.get("topic", "").strip()
    if mode not in ("PULL", "POP") or not topic:
        raise UsageError("choose PULL or POP, and name the topic")
    how = "pop messages one by one" if mode == "POP" else "pull from queues of their own"
    return Confirmation(
        "Set how a group reads",
        (
            f"Members of group {shown(form['name'])} {how} in topic {shown(topic)}.",
            "It concerns members that let brokers assign their queues (RocketMQ 5 with client rebalance off).",
        ),
        f"Set to {mode}",
        _page_of(needed(form, "name")),
    )


async def mode(call: Call, form: Form) -> Done:
    """Set it."""
    brokers = await call.ask(
        lambda admin: admin.set_request_mode(needed(form, "topic").strip(), needed(form, "name"), needed(form, "mode"))
    )
    return Done(
        f"Group {shown(form['name'])} reads topic {shown(form['topic'])} by {form['mode']} on"
        f" {shown(', '.join(brokers))}.",
        _page_of(needed(form, "name")),
    )


async def delete_words(call: Call, form: Form) -> Confirmation:
    """Return the words that ask whether to delete a group, and say what is deleted with it."""
    name = needed(form, "name")
    more = []
    if form.get("offsets"):
        more.append("Its offsets go too: a new group of this name begins anew.")
    if form.get("topics"):
        more.append("Its topics of retries and dead letters go too, with the messages in them.")
    return Confirmation(
        "Delete a group",
        (f"Group {shown(name)} is deleted on all brokers.", *more),
        "Delete",
        _page_of(name),
        grave=True,
    )


async def delete(call: Call, form: Form) -> Done:
    """Delete it."""
    name, offsets, topics = needed(form, "name"), bool(form.get("offsets")), bool(form.get("topics"))
    brokers = await call.ask(lambda admin: admin.delete_group(name, offsets=offsets, topics=topics))
    return Done(f"Group {shown(name)} was deleted on {shown(', '.join(brokers))}.", "/groups")


ROUTES = (
    page("/groups", groups),
    page("/groups/new", new),
    change("/groups/create", create_words, put),
    change("/group/settings", settings_words, put),
    page("/group", group),
    page("/group/progress", progress),
    page("/group/members", members),
    change("/group/reset", reset_words, reset),
    change("/group/mode", mode_words, mode),
    change("/group/delete", delete_words, delete),
)
