"""What is done to a topic: create, change, delete, and send a message to it."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from rocketspark.client import validators
from rocketspark.console.call import Call, Confirmation, Done, Form
from rocketspark.console.drawing import number, path_of
from rocketspark.console.pages.topic import count_of
from rocketspark.console.routes import change, page
from rocketspark.errors import RouteNotFound, UsageError
from rocketspark.model import MessageQueue, typed_json
from rocketspark.model.text import INT_MAX, whole_number
from rocketspark.protocol import topic_attributes

QUEUES_MAX = 65_536
QUEUES_SHOWN_MAX = 1000
PERMS = (("6", "read and write"), ("4", "read only"), ("2", "write only"), ("0", "nothing"))
KEEP = ("", "as it is")
BATCH = f"+{topic_attributes.QUEUE_TYPE}={topic_attributes.BATCH}"
DELAY_LEVELS_MAX = 18
MS_MAX = 2**53


def whole(form: Form, name: str, what: str, *, low: int = 0, high: int = QUEUES_MAX) -> int | None:
    """Return a field that is a whole number, None if it is empty. Raises UsageError."""
    text = form.get(name, "").strip()
    if not text:
        return None
    found = whole_number(text, low=low, high=high)
    if found is None:
        raise UsageError(f"{what}: {text!r} is no whole number from {low} to {high}")
    return found


def brokers_of(form: Form) -> list[str] | None:
    """Return the brokers that a form names, separated by commas; None for all."""
    return [name.strip() for name in form.get("brokers", "").split(",") if name.strip()] or None


async def new(call: Call) -> Response:
    """The form of a new topic."""
    types = [("", "not set"), *((kind, kind) for kind in topic_attributes.MESSAGE_TYPES)]
    return call.page("topic_new.html", types=types, perms=PERMS)


async def create_words(call: Call, form: Form) -> Confirmation:
    """Say which topic is created."""
    name, count = form.get("name", "").strip(), whole(form, "queues", "queues", low=1)
    validators.check_target(name)
    if name in await call.ask(lambda admin: admin.list_topics()):
        raise UsageError(f"topic {name!r} is there already: open it to change it")
    where = ", ".join(brokers_of(form) or ()) or "every master"
    if form.get("static"):
        if form.get("batch") or form.get("message_type") or _attributes(form) or form.get("perm", "6") != "6":
            text = "a static topic has no message type, attributes or batches, and clients may read and write it"
            raise UsageError(text)
        sentences = (
            f"It gets {count or 4} logical queues in all, spread evenly over {where}.",
            "Their number stays while brokers come and go; it can grow, but not shrink.",
        )
        return Confirmation(f"Create static topic {name}", sentences, "Create", "/topics")
    kind = form.get("message_type") or "not set"
    told = [f"It gets {count or 4} queues on {where}. Message type: {kind}."]
    if form.get("batch"):
        told.append("Its queues are kept in batches (BatchCQ), for topics that get batches alone; that stays so.")
    if attributes := form.get("attributes", "").strip():
        told.append(f"Attributes: {attributes}.")
    return Confirmation(f"Create topic {name}", tuple(told), "Create", "/topics")


def _attributes(form: Form) -> str:
    """Return the attributes of a new topic, as `create_topic` takes them."""
    return ",".join(filter(None, (BATCH if form.get("batch") else "", form.get("attributes", "").strip())))


async def create(call: Call, form: Form) -> Done:
    """Create a topic."""
    name = form["name"].strip()
    if form.get("static"):
        count = whole(form, "queues", "queues", low=1) or 4
        static = await call.ask(lambda admin: admin.create_static_topic(name, count, brokers=brokers_of(form)))
        where = ", ".join(sorted(set(static.leaders.values())))
        return Done(f"Static topic {name} has {static.queue_count} queues on {where}.", path_of("/topic", name=name))
    made = await call.ask(
        lambda admin: admin.create_topic(
            name,
            queue_count=whole(form, "queues", "queues", low=1),
            perm=whole(form, "perm", "permissions", high=7),
            message_type=form.get("message_type") or None,
            attributes=_attributes(form),
            brokers=brokers_of(form),
        )
    )
    where = ", ".join(each.broker_name for each in made)
    return Done(f"Topic {name} was created on {where}.", path_of("/topic", name=name))


async def edit(call: Call) -> Response:
    """The form of a topic's settings."""
    name = call.query("name")
    configs = await call.ask(lambda admin: admin.topic_configs(name))
    if not configs:
        raise RouteNotFound(name)
    types = [KEEP, *((kind, kind) for kind in topic_attributes.MESSAGE_TYPES)]
    return call.page("topic_edit.html", name=name, configs=configs, types=types, perms=[KEEP, *PERMS])


def _wanted(form: Form) -> dict[str, Any]:
    """Return the settings that a form changes, as `update_topic` takes them. Raises UsageError if there are none."""
    given = {
        "read_queue_count": whole(form, "read_queues", "queues to read"),
        "write_queue_count": whole(form, "write_queues", "queues to write"),
        "perm": whole(form, "perm", "permissions", high=7),
        "message_type": form.get("message_type") or None,
        "attributes": form.get("attributes", "").strip() or None,
        "brokers": brokers_of(form),
    }
    found = {name: value for name, value in given.items() if value is not None}
    if not set(found) - {"brokers"}:
        raise UsageError("nothing to change: fill in what is to be another value")
    return found


async def change_words(call: Call, form: Form) -> Confirmation:
    """Say what is changed, from what to what."""
    name, wanted = form.get("name", ""), _wanted(form)
    configs = await call.ask(lambda admin: admin.topic_configs(name))
    if not configs:
        raise RouteNotFound(name)
    sentences = []
    for key, label, field in (
        ("read_queue_count", "Queues to read", "read_queue_nums"),
        ("write_queue_count", "Queues to write", "write_queue_nums"),
        ("perm", "Permissions (4 read, 2 write)", "perm"),
    ):
        if key in wanted:
            was = sorted({getattr(config, field) for config in configs.values()})
            sentences.append(f"{label}: from {', '.join(map(str, was))} to {wanted[key]}.")
    if "message_type" in wanted:
        sentences.append(f"Message type: {wanted['message_type']}.")
    if "attributes" in wanted:
        sentences.append(f"Attributes: {wanted['attributes']}.")
    fewer = wanted.get("read_queue_count")
    if fewer is not None and any(fewer < config.read_queue_nums for config in configs.values()):
        sentences.append("Queues that go and hold messages are refused.")
    where = ", ".join(wanted.get("brokers") or sorted(configs))
    back = path_of("/topic/edit", name=name)
    return Confirmation(f"Change topic {name} on {where}", tuple(sentences), "Change", back, topic=name)


async def change_topic(call: Call, form: Form) -> Done:
    """Change a topic's settings."""
    name, wanted = form["name"], _wanted(form)
    await call.ask(lambda admin: admin.update_topic(name, **wanted))
    return Done(f"Topic {name} was changed.", path_of("/topic", name=name))


async def delete_words(call: Call, form: Form) -> Confirmation:
    """Say what is lost with a topic."""
    name = form.get("name", "")
    stats = await call.ask(lambda admin: admin.topic_stats(name))
    brokers = sorted({queue.queue.broker_name for queue in stats.queues})
    sentences = (
        f"Its {len(stats.queues)} queues on {', '.join(brokers)} go, and with them {number(count_of(stats))} messages.",
        "Producers and consumers of it fail then.",
    )
    back = path_of("/topic", name=name)
    return Confirmation(f"Delete topic {name}", sentences, f"Delete {name}", back, grave=True, topic=name)


async def delete(call: Call, form: Form) -> Done:
    """Delete a topic."""
    name = form["name"]
    brokers = await call.ask(lambda admin: admin.delete_topic(name))
    return Done(f"Topic {name} was deleted from {', '.join(brokers)}.", "/topics")


# -- a message ---------------------------------------------------------------------------------------------------------


class _Json(msgspec.Struct, forbid_unknown_fields=True):
    """A message as JSON. A body that is no text is sent as the JSON that it is."""

    body: Any
    tag: str | None = None
    keys: list[str] = []
    properties: dict[str, str] = {}
    sharding_key: str | None = None
    delay_level: int = 0
    delay_ms: int = 0
    lite_topic: str | None = None
    priority: int | None = None


async def send_form(call: Call) -> Response:
    """The form of a message."""
    name = call.query("name")
    stats = await call.read(("topic_stats", name), lambda admin: admin.topic_stats(name))
    queues = [each.queue for each in stats.queues[:QUEUES_SHOWN_MAX]]
    choices = [("", "in turn"), *((place_of(queue), f"{queue.broker_name} {queue.queue_id}") for queue in queues)]
    return call.page("topic_send.html", name=name, queues=choices)


def place_of(queue: MessageQueue) -> str:
    """Return a queue as a form names it."""
    return f"{queue.broker_name}:{queue.queue_id}"


def message_of(form: Form) -> tuple[bytes, dict[str, Any]]:
    """Return body and fields of the message that a form describes. Raises UsageError."""
    if form.get("json", "").strip():
        try:
            given = typed_json.decode(form["json"], _Json)
        except msgspec.MsgspecError as e:
            raise UsageError(f"the message's JSON: {e}") from None
        body = given.body.encode() if isinstance(given.body, str) else msgspec.json.encode(given.body)
        return body, _given({name: value for name, value in msgspec.structs.asdict(given).items() if name != "body"})
    properties = {}
    for line in filter(None, (line.strip() for line in form.get("properties", "").splitlines())):
        name, equals, value = line.partition("=")
        if not equals:
            raise UsageError(f"property {line!r}: name=value is needed, one a line")
        properties[name.strip()] = value.strip()
    fields = {
        "tag": form.get("tag", "").strip() or None,
        "keys": form.get("keys", "").split(),
        "properties": properties,
        "sharding_key": form.get("sharding_key", "").strip() or None,
        "delay_level": whole(form, "delay_level", "delay level", high=DELAY_LEVELS_MAX),
        "delay_ms": whole(form, "delay_ms", "delay", high=MS_MAX),
        "lite_topic": form.get("lite_topic", "").strip() or None,
        "priority": whole(form, "priority", "priority", high=INT_MAX),
    }
    # A form's text has the line breaks of the network.
    body = form.get("body", "").replace("\r\n", "\n").encode()
    return body, _given(fields)


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    """Return those fields of a message that were filled in; of priorities 0 is one."""
    return {name: value for name, value in fields.items() if value or (name == "priority" and value is not None)}


async def send_words(call: Call, form: Form) -> Confirmation:
    """Say which message is sent."""
    name = validators.check_target(form.get("name", ""))
    body, fields = message_of(form)
    sentences = [f"Its body has {number(len(body))} bytes. Consumers of {name} get it."]
    sentences += [f"{field}: {value}" for field, value in fields.items()]
    if form.get("queue"):
        sentences.append(f"It goes to queue {form['queue']}.")
    back = path_of("/topic/send", name=name)
    return Confirmation(f"Send a message to {name}", tuple(sentences), "Send", back, topic=name)


async def send(call: Call, form: Form) -> Done:
    """Send a message."""
    name = form["name"]
    body, fields = message_of(form)
    queue = None
    if place := form.get("queue"):
        broker, _, at = place.rpartition(":")
        number_of = whole_number(at)
        if number_of is None:
            raise UsageError(f"{place!r} is no queue")
        queue = MessageQueue(name, broker, number_of)
    result = await call.ask(lambda admin: admin.send_message(name, body, queue=queue, **fields))
    at = f"queue {result.queue.queue_id} of {result.queue.broker_name}, offset {result.queue_offset}"
    return Done(f"Sent with id {result.message_id} to {at}.", path_of("/topic", name=name))


ROUTES = [
    page("/topics/new", new),
    change("/topics/create", create_words, create),
    page("/topic/edit", edit),
    change("/topic/change", change_words, change_topic),
    change("/topic/delete", delete_words, delete),
    page("/topic/send", send_form),
    change("/topic/send", send_words, send),
]
