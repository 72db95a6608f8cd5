"""The fast path of plain sends: all that arrive in one read are decoded together. Others go to `SendHandler.send`.

Rule: this module only decodes and answers; which sends are plain, and may be stored as they are,
`SendRules.plain_sends` decides. Both ways have the same effect. The fast path takes SEND_MESSAGE_V2 requests of a shape
seen before, to a queue that exists. The replies of a run (the sends stored together) that wait for the disk or for
copies are sent together, once its last message is durable."""

from __future__ import annotations

import struct
from collections.abc import Callable

from rocketspark.access.access_control import Standing
from rocketspark.broker.messages.put_message import TAG_KEPT_MAX, PutMessage
from rocketspark.broker.messages.send_rules import PlainSends
from rocketspark.broker.replication.waits import NOBODY, NOT_ENOUGH, Durability
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers.send_shape import PLAIN_TEXT, SendShape, SignedValues, learn
from rocketspark.protocol.message import properties, record
from rocketspark.store.commitlog.append_message import PlainMessage
from rocketspark.store.consumequeue.consume_queue import ConsumeQueue
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import ReceivedRequest

# Gives what requests like one that was let through have to show; None where each is to be asked about.
StandingOf = Callable[[ReceivedRequest], Standing | None]

_LENGTHS = struct.Struct(">ii")
SEND_MESSAGE_V2 = int(RequestCode.SEND_MESSAGE_V2)
# Stored together: bounds what is read in vain when the store has no room.
RUN_MAX = 128
# After a message that could not be stored, so many are left to `SendHandler.send`.
PAUSE = 128
# A body of this size or more is not copied out of the receive buffer.
LARGE_BODY_BYTES = 512
# Shapes kept for a connection. Learning one costs some 30 us, so it is paid for: by plain sends, and slowly by others.
SHAPES_MAX = 32
# Of all headers that a connection's shapes were learned from, some of which is kept twice. Longer ones are decoded one
# by one: to learn one of a megabyte takes 100 ms.
LEARNED_BYTES_MAX = 64 << 10
# Tags whose codes are kept for a connection.
TAGS_MAX = 256
LEARN_COST, CREDIT_START, CREDIT_MAX, CREDIT_OF_PLAIN = 64, 64 * 64, 256 * 64, 4


class _Form:
    """A shape of send headers; `plain`: how its sends are stored, None while they are not plain.

    `waits`: their answers wait until they are durable, if any do. `standing`: what they show behind a gate.
    """

    __slots__ = (
        *("body_bytes_max", "header_bytes", "plain", "queues", "rest", "shape", "standing", "tag_codes", "waits"),
    )

    def __init__(self, shape: SendShape, header_bytes: int, tag_codes: dict[bytes, int]) -> None:
        self.shape = shape
        self.header_bytes = header_bytes
        self.plain: PlainSends | None = None
        self.standing: Standing | None = None
        # Within a shape it is always the same.
        self.waits = properties.pairs_of(shape.header.properties.encode()).get(b"WAIT") != b"false"
        self.body_bytes_max = 0
        self.tag_codes = tag_codes
        self.queues: dict[bytes, ConsumeQueue] = {}
        # The pieces after the body: every other one, from the second on, is a value of the header.
        self.rest: list[bytes] = []


class _Known:
    """The forms of one connection's sends, by the length of their headers; `last`: of the latest send; `bytes`: of all
    these headers; `tag_codes`: of their tags.
    """

    __slots__ = ("bytes", "count", "credit", "forms", "last", "tag_codes")

    def __init__(self) -> None:
        self.forms: dict[int, list[_Form]] = {}
        self.tag_codes: dict[bytes, int] = {}
        self.count = self.bytes = 0
        self.credit = CREDIT_START
        self.last: _Form | None = None


class _Run:
    """Plain sends of one read that are stored together, up to `end` of the read; `waits`: their replies do."""

    __slots__ = ("end", "messages", "opaques", "waits")

    def __init__(self, begin: int) -> None:
        self.end = begin
        self.waits = False
        self.messages: list[PlainMessage] = []
        self.opaques: list[bytes] = []


class SendFastPath:
    """Decodes and answers the plain sends of one broker.

    `standing_of`: tells what a connection's requests must show to the gate; None where every send may pass.
    """

    def __init__(self, put_message: PutMessage, durability: Durability, standing_of: StandingOf | None = None) -> None:
        self._standing_of = standing_of
        self._put_message = put_message
        self._rules = put_message.rules
        self._is_current = put_message.rules.is_current
        self._durability = durability
        self._needed = False
        self._reply = b""
        self.pause = 0

    def configure(self, *, reply: bytes) -> None:
        """Take over changed settings. `reply`: a template of reply headers.

        The template has places for queue id, unique id, physical offset, queue offset and opaque.
        """
        self._needed = self._durability.needed
        self._reply = reply

    def take(self, peer: Peer, data: bytes, at: int, out: list[bytes]) -> int:
        """Store the plain sends in `data` from `at` on, put their replies into `out`; return where the sends end.

        Replies that wait are sent later, all of a run at once; so a run ends before a send whose reply does not wait.
        """
        if len(peer.packed_host) != 8:
            return at
        known = peer.notes
        if known is None:
            known = peer.notes = _Known()
        if self.pause > 0:
            self.pause -= 1
            return at
        run = _Run(at)
        self._gather(known, peer, data, run)
        return self._store(known, peer, data, at, run, out) if run.messages else at

    def _gather(self, known: _Known, peer: Peer, data: bytes, run: _Run) -> None:
        """Read the plain sends from where a run ends so far: at first of the form that came last, then of any.

        One whose replies wait ends a run of those whose replies do not, and the other way round.
        """
        form, needed, size = known.last, self._needed, len(data)
        if form is not None and self._is_ready(form, peer):
            run.end = self._read(form, data, run.end, run.messages, run.opaques)
        run.waits = needed and form is not None and form.waits
        while size - run.end > 8 and len(run.messages) < RUN_MAX:
            form = self._form(known, peer, data, run.end)
            if form is None:
                return
            if needed and form.waits is not run.waits:
                if run.messages:
                    return
                run.waits = form.waits
            known.last = form
            begun = run.end
            run.end = self._read(form, data, begun, run.messages, run.opaques)
            if run.end == begun:
                return

    def _store(self, known: _Known, peer: Peer, data: bytes, begun: int, run: _Run, out: list[bytes]) -> int:
        """Store a run that begins at `begun` and reply to what is stored; returns where that ends."""
        wanted, replies = NOBODY, out
        if run.waits:
            wanted, replies = self._durability.wanted(), []
            if wanted == NOT_ENOUGH:
                # `SendHandler.send` answers each sender.
                self.pause = PAUSE
                return begun
        placed = self._put_message.accept_run(run.messages, peer.packed_host)
        template, lengths, add = self._reply, _LENGTHS.pack, replies.append
        for message, opaque, (position, queue_offset) in zip(run.messages, run.opaques, placed, strict=False):
            header = template % (message[0].queue_id, message[4], position, queue_offset, opaque)
            size = len(header)
            add(lengths(size + 4, size) + header)
        if run.waits and placed:
            self._answer_later(peer, replies, run.opaques, wanted)
        if known.credit < CREDIT_MAX:
            known.credit += len(placed) * CREDIT_OF_PLAIN
        if len(placed) == len(run.messages):
            return run.end
        # The next message cannot be stored: `SendHandler.send` answers its sender.
        self.pause = PAUSE
        end = begun
        for _ in placed:
            end += 4 + _LENGTHS.unpack_from(data, end)[0]
        return end

    def _answer_later(self, peer: Peer, replies: list[bytes], opaques: list[bytes], wanted: int) -> None:
        """Answer what was stored last once it is durable, or with a code that says how it is not."""

        def tell(code: int) -> None:
            peer.answer_run(replies if code == ResponseCode.SUCCESS else [_with_code(data, code) for data in replies])

        if peer.awaited_answers is not None:
            peer.later += opaques[: len(replies)]
        peer.promise()
        self._durability.when_durable(self._put_message.end_position, wanted, tell, len(replies))

    def _read(self, form: _Form, data: bytes, at: int, messages: list[PlainMessage], opaques: list[bytes]) -> int:
        """Add the plain sends of one form from `at` on, as the store takes them; returns where they end.

        In one piece, as one call more for each message takes 3 % of the 2.7 us that it costs here and in the store.
        """
        shape = form.shape
        unpack, fixed, values, others = shape.unpack, shape.fixed, shape.values, shape.others
        at_queue, at_born, at_opaque, at_id = shape.queue_id, shape.born_time, shape.opaque, shape.unique_id
        at_keys, at_tags = shape.keys, shape.tags
        flag, sys_flag, times = shape.header.flag, shape.header.sys_flag, shape.header.reconsume_times
        queues, rest, tag_codes = form.queues, form.rest, form.tag_codes
        add_message, add_opaque, lengths = messages.append, opaques.append, _LENGTHS.unpack_from
        view, size, header_bytes = memoryview(data), len(data), form.header_bytes
        before, body_bytes_max = len(messages), form.body_bytes_max
        room = RUN_MAX - before
        born_text, born_time_ms = b"", 0
        keys = tags = None
        code = 0
        standing, signed = form.standing, shape.signed if form.standing and form.standing.looks_at_each else None
        while room > 0 and size - at >= 8:
            total, stated = lengths(data, at)
            body_at = at + 8 + header_bytes
            end = at + 4 + total
            if stated != header_bytes or end > size or not 0 <= end - body_at <= body_bytes_max:
                break
            texts = unpack(data, at + 8)
            if texts[::2] != fixed:
                break
            queue_text, unique_id, opaque = texts[at_queue], texts[at_id], texts[at_opaque]
            queue = queues.get(queue_text) or self._queue(form, queue_text)
            if queue is None or not unique_id.isalnum() or not opaque.isdigit() or opaque < b"1":
                break
            if texts[at_born] != born_text:
                born_text = texts[at_born]
                if not born_text.isdigit() or born_text < b"1":
                    break
                born_time_ms = int(born_text)
            if at_tags:
                tags = texts[at_tags]
                found = tag_codes.get(tags)
                if found is None:
                    found = self._tag_code(form, tags)
                    if found is None:
                        break
                code = found
            if others:
                if b"".join([texts[i] for i in others]).translate(None, PLAIN_TEXT):
                    break
                if at_keys:
                    keys = texts[at_keys]
            if signed is not None and not _is_good(signed, standing, texts, view[body_at:end]):
                break
            rest[1::2] = texts[values]
            add_message(
                (
                    queue,
                    data[body_at:end] if end - body_at < LARGE_BODY_BYTES else view[body_at:end],
                    b"".join(rest),
                    code,
                    unique_id,
                    keys,
                    tags,
                    flag,
                    sys_flag,
                    born_time_ms,
                    times,
                )
            )
            add_opaque(opaque)
            at = end
            room -= 1
        if standing is not None:
            standing.passed(len(messages) - before)
        return at

    def _is_ready(self, form: _Form, peer: Peer) -> bool:
        """Adapt a form to what has changed; returns whether its sends are plain now, and may come."""
        if not self._is_current(form.plain) and not self._adapt(form):
            return False
        if self._standing_of is None:
            return True
        if form.standing is None or not form.standing.holds():
            signed = form.shape.signed
            form.standing = signed and self._standing_of(
                ReceivedRequest(peer, SEND_MESSAGE_V2, 0, signed.version, signed.language, signed.ext, b"")
            )
        return form.standing is not None

    def _form(self, known: _Known, peer: Peer, data: bytes, at: int) -> _Form | None:
        """Return the form of the send at `at`, learned if it is new; None if it is not whole or not plain."""
        if len(data) - at < 8:
            return None
        total, header_bytes = _LENGTHS.unpack_from(data, at)
        if at + 4 + total > len(data) or not 0 <= header_bytes <= total - 4:
            return None
        for form in known.forms.get(header_bytes, ()):
            if form.shape.unpack(data, at + 8)[::2] == form.shape.fixed:
                return form if self._is_ready(form, peer) else None
        if header_bytes > LEARNED_BYTES_MAX:
            return None
        if known.credit < LEARN_COST:
            known.credit += 1
            return None
        known.credit -= LEARN_COST
        shape = learn(data[at + 8 : at + 8 + header_bytes])
        if shape is None:
            return None
        if known.count >= SHAPES_MAX or known.bytes + header_bytes > LEARNED_BYTES_MAX:
            known.forms.clear()
            known.count = known.bytes = 0
        known.count += 1
        known.bytes += header_bytes
        form = _Form(shape, header_bytes, known.tag_codes)
        known.forms.setdefault(header_bytes, []).append(form)
        return form if self._is_ready(form, peer) else None

    def _adapt(self, form: _Form) -> bool:
        """Adapt a form to changes since its last send; returns whether its sends are plain now."""
        shape = form.shape
        form.plain = plain = self._rules.plain_sends(shape.header, shape.names)
        if plain is None:
            return False
        stored = shape.header.properties.removesuffix(properties.PAIR_END).encode() + b"\x02" + plain.marks
        pieces = [record.after_body(plain.topic.encode(), stored)[: -len(stored)] + shape.stored[0]]
        for piece in shape.stored[1:]:
            pieces += (b"", piece)
        pieces[-1] += plain.marks
        form.rest, form.queues = pieces, {}
        form.body_bytes_max = plain.settings.body_bytes_max
        return True

    def _queue(self, form: _Form, text: bytes) -> ConsumeQueue | None:
        """Return the queue that a header names, if it can take plain messages."""
        assert form.plain is not None
        if not text.isdigit() or (text[0] == ord("0") and len(text) > 1):
            return None
        queue = self._put_message.plain_queue(form.plain, int(text))
        if queue is not None:
            form.queues[text] = queue
        return queue

    def _tag_code(self, form: _Form, tags: bytes) -> int | None:
        """Return the code of tags as a header has them; None if they have to be decoded."""
        if tags.translate(None, PLAIN_TEXT):
            return None
        if len(form.tag_codes) >= TAGS_MAX:
            form.tag_codes.clear()
        code = self._put_message.tag_code(tags)
        if len(tags) <= TAG_KEPT_MAX:
            form.tag_codes[tags] = code
        return code


def _is_good(signed: SignedValues, standing: Standing | None, texts: tuple[bytes, ...], body: memoryview) -> bool:
    """Return whether a send's signature is good; if it cannot be read quickly it is left to `SendHandler.send`."""
    assert standing is not None
    signed_ms = None
    if signed.time:
        text = texts[signed.time]
        if not text.isdigit() or text < b"1":
            return False
        signed_ms = int(text)
    return standing.is_good(signed.content(texts), body, texts[signed.signature], signed_ms)


def _with_code(data: bytes, code: int) -> bytes:
    """Return a reply of this template with another code than success."""
    header = data[8:].replace(b'{"code":0,', b'{"code":%d,' % code, 1)
    return _LENGTHS.pack(len(header) + 4, len(header)) + header
