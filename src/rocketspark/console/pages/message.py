"""One message: all that is stored of it, its body in each way it can be read, what became of it; sent again, and given
to a consumer by hand.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.responses import Response

from rocketspark.admin.messages.traces import MessageTrace, TrackType
from rocketspark.admin.operations import AsyncAdmin
from rocketspark.console.call import Call, Confirmation, Done, Failed, Form
from rocketspark.console.content import asked
from rocketspark.console.content.asked import needed
from rocketspark.console.content.decoded import decoded
from rocketspark.console.content.shown_body import View, views
from rocketspark.console.drawing import link
from rocketspark.console.routes import change, page
from rocketspark.errors import RouteNotFound, ServerError, UsageError
from rocketspark.model import namespace
from rocketspark.model.text import shown
from rocketspark.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from rocketspark.model import ReceivedMessage

SUCCESS = "CR_SUCCESS"
TRACKS = {
    TrackType.CONSUMED: "consumed it",
    TrackType.CONSUMED_BUT_FILTERED: "passed it over: its filter does not take the tag",
    TrackType.CONSUME_BROADCASTING: "broadcasts: each member keeps its own offset",
    TrackType.NOT_CONSUME_YET: "has not come to it yet",
    TrackType.NOT_ONLINE: "has no connected member",
    TrackType.PULL: "pulls: its program decides when a message is consumed",
    TrackType.UNKNOWN: "is not known",
}


async def message(call: Call) -> Response:
    """Show a message."""
    async with call.console.looking:
        found = await _message(call, call.query("topic"), call.query("at"), call.query("id"))
        return call.page(
            "message.html",
            m=found,
            topic=_read_from(found),
            at=asked.place_in(found),
            # A large JSON takes half a second.
            views=await asyncio.to_thread(views, found.body),
            origin=_is_own(_read_from(found)),
        )


async def body(call: Call) -> Response:
    """Answer with a message's body, as it was sent."""

    async def make() -> tuple[bytes, str, str]:
        found = await _message(call, call.query("topic"), call.query("at"), "")
        return found.body, f"{call.query('topic')}-{call.query('at')}.bin", "application/octet-stream"

    return await call.console.downloads.answer(call.who, make)


async def decode(call: Call) -> Response:
    """Show a message's body decoded by the schema that somebody gives."""

    async def view() -> View:
        async with call.console.decoding:
            found = await _message(call, call.query("topic"), call.query("at"), "")
            return await asyncio.to_thread(
                decoded, found.body, call.query("kind"), call.query("schema"), call.query("message").strip()
            )

    return call.part("message_decoded.html", view=await call.attempt(view()))


async def fate(call: Call) -> Response:
    """Show the groups that have consumed a message, and what clients' traces tell of it."""
    found = await _message(call, call.query("topic"), call.query("at"), "")
    tracks = await call.attempt(call.ask(lambda admin: admin.track_message(found)))
    trace = await traced(call, found.message_id)
    return call.part("message_fate.html", tracks=tracks, trace=trace, words=TRACKS)


async def traced(call: Call, message_id: str) -> MessageTrace | Failed:
    """Return what clients' traces tell of a message: nothing where nobody ever wrote traces."""

    async def ask(admin: AsyncAdmin) -> MessageTrace:
        try:
            return await admin.trace_message(message_id)
        except RouteNotFound:
            return MessageTrace(message_id, [])

    return await call.attempt(call.ask(ask))


async def _message(call: Call, topic: str, at: str, message_id: str) -> ReceivedMessage:
    if at:
        queue, offset = asked.place_of(topic, at)
        try:
            return await call.ask(lambda admin: admin.get_message_at(queue, offset))
        except ServerError as e:
            if e.code != ResponseCode.INVALID_PARAMETER:
                raise
            # The broker has no such queue.
            raise ServerError(ResponseCode.QUERY_NOT_FOUND, f"{queue} is not there: {e.remark}") from e
    if not message_id:
        raise UsageError("name a message: by its id, or by topic, queue and offset")
    return await call.ask(lambda admin: admin.get_message(message_id, topic=topic or None))


def _read_from(found: ReceivedMessage) -> str:
    return found.read_from or found.topic


def _is_own(topic: str) -> bool:
    return topic.startswith((namespace.RETRY_PREFIX, namespace.DLQ_PREFIX))


def _page_of(form: Form) -> str:
    return str(link("/message", topic=needed(form, "topic"), at=needed(form, "at"))).replace("&amp;", "&")


# -- sent again --------------------------------------------------------------------------------------------------------


async def resend_words(call: Call, form: Form) -> Confirmation:
    """Say what is sent, and where to."""
    found = await _message(call, needed(form, "topic"), needed(form, "at"), "")
    to = form.get("to", "").strip()
    where = f"topic {shown(to)}" if to else "the topic that it was first sent to"
    return Confirmation(
        "Send a message again",
        (
            f"Message {shown(found.message_id)} of topic {shown(_read_from(found))} is sent once more, to {where}.",
            "Body, tag, keys, properties and id stay as they are. Every group that reads the topic gets it again.",
        ),
        "Send again",
        _page_of(form),
    )


async def resend(call: Call, form: Form) -> Done:
    """Send it."""
    found = await _message(call, needed(form, "topic"), needed(form, "at"), "")
    to = form.get("to", "").strip() or None
    sent = await call.ask(lambda admin: admin.resend_message(found.offset_message_id, topic=_read_from(found), to=to))
    queue = sent.queue
    return Done(
        f"It was sent to topic {shown(queue.topic)}, queue {queue.queue_id} of {shown(queue.broker_name)},"
        f" offset {sent.queue_offset}.",
        _page_of(form),
    )


# -- given to a consumer by hand ---------------------------------------------------------------------------------------


async def consume_words(call: Call, form: Form) -> Confirmation:
    """Say who gets the message."""
    group, client_id = form.get("group", "").strip(), form.get("client_id", "").strip()
    if not group:
        raise UsageError("name the group that is to consume the message")
    who = f"client {shown(client_id)}" if client_id else "the first connected member"
    return Confirmation(
        "Have a message consumed",
        (
            f"The message at {shown(needed(form, 'at'))} of topic {shown(needed(form, 'topic'))} is given to {who} of"
            f" group {shown(group)}, whose listener runs with it now.",
            "The group's offsets stay as they are, so that it may consume the message once more.",
        ),
        "Have it consumed",
        _page_of(form),
    )


async def consume(call: Call, form: Form) -> Done:
    """Give the message to a member of a group."""
    found = await _message(call, needed(form, "topic"), needed(form, "at"), "")
    group, client_id = needed(form, "group").strip(), form.get("client_id", "").strip() or None
    told = await call.ask(
        lambda admin: admin.consume_directly(
            found.offset_message_id, group, client_id=client_id, topic=_read_from(found)
        )
    )
    how = "consumed it" if told.result == SUCCESS else f"answered {shown(told.result)}"
    why = f": {shown(told.remark)}" if told.remark else ""
    return Done(f"Client {shown(told.client_id)} {how} in {told.spent_ms} ms{why}.", _page_of(form))


ROUTES = (
    page("/message", message),
    page("/message/body", body),
    page("/message/decoded", decode),
    page("/message/fate", fate),
    change("/message/resend", resend_words, resend),
    change("/message/consume", consume_words, consume),
)
