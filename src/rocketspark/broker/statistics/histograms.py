"""What the broker counts in histograms: sizes of messages, times of requests.

Bounds and labels: BrokerMetricsManager, RemotingMetricsManager, DefaultStoreMetricsManager, 5.5.0.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from functools import partial
from typing import Any

from rocketspark import machine
from rocketspark.broker.statistics.looks import Looks
from rocketspark.broker.topic_names import is_system_topic
from rocketspark.errors import ServerError
from rocketspark.model.histogram import Histogram
from rocketspark.protocol import frames
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Request
from rocketspark.store.store import Store
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer, Handler, Routes, Run
from rocketspark.transport.request_frames import Parts

SIZE_BOUNDS = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
# In ms.
RPC_BOUNDS = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
CREATE_BOUNDS = (10, 100, 1000, 3000, 5000)
# In s, whatever the metric's name says.
FINISH_BOUNDS = (5, 60, 600, 3600, 43_200, 86_400)
DELAY_BOUNDS = (60, 600, 3600, 43_200, 86_400, 259_200)
# Queues without new messages, and pieces of those with some, that are looked at in one turn: some ms.
QUEUES_IN_TURN, READ_IN_TURN = 2048, 64
# Requests without an answer yet: beyond so many on one connection the oldest are forgotten.
LATER_MAX = 10_000

_REQUESTS = {int(code): code.name.lower() for code in RequestCode}
_RESPONSES = {int(code): code.name.lower() for code in ResponseCode}
_GROUP_CREATION = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
_TOPIC_CREATION = RequestCode.UPDATE_AND_CREATE_TOPIC
_PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


class MessageSizes:
    """Sizes of messages' records by topic, read from the consume queues, at no cost to sends. `others`: returns the
    sizes of those messages of a topic that count elsewhere; `run`: makes one step of a long look in each turn of the
    loop, the first at once.
    """

    def __init__(
        self,
        store: Store,
        others: Callable[[str], Iterable[Histogram | None]],
        run: Callable[[Iterator[None]], None],
    ) -> None:
        self._store = store
        self._others = others
        self._stored: dict[str, Histogram] = {}
        self._counted = {
            (topic, queue_id): store.queue_range(topic, queue_id)[1]
            for topic, ids in store.queues().items()
            for queue_id in ids
        }
        # Without those that count elsewhere.
        self.by_topic: dict[str, Histogram] = {}
        # Counts the messages stored since the last call; where they are in many queues, in later turns of the loop.
        self.collect = Looks(self._look, run, None).found

    def _look(self) -> Generator[None, None, None]:
        weight = 0
        for topic, ids in list(self._store.queues().items()):
            weight += len(ids)
            # A topic in one step: what counts elsewhere of it is then known up to the same message.
            pieces = sum(self._count(topic, queue_id) for queue_id in ids)
            if pieces:
                stored, before = self._stored[topic], self.by_topic.get(topic)
                self.by_topic[topic] = stored.without(*self._others(topic)).at_least(before)
                weight += pieces * QUEUES_IN_TURN // READ_IN_TURN
            if weight >= QUEUES_IN_TURN:
                weight = 0
                yield

    def _count(self, topic: str, queue_id: int) -> int:
        """Count what is new in a queue; return in how many pieces it was read."""
        low, high = self._store.stored_range(topic, queue_id)[0], self._store.queue_range(topic, queue_id)[1]
        counted = max(low, self._counted.get((topic, queue_id), 0))
        if counted >= high:
            return 0
        self._counted[topic, queue_id] = high
        stored = self._stored.get(topic)
        if stored is None:
            stored = self._stored[topic] = Histogram(SIZE_BOUNDS)
        pieces = 1
        for sizes in self._store.record_sizes(topic, queue_id, counted, high - counted):
            stored.add_all(sizes)
            pieces += 1
        return pieces

    def forget_topic(self, topic: str) -> None:
        """Forget a deleted topic: one that is made anew counts from its first message on."""
        self._stored.pop(topic, None)
        self.by_topic.pop(topic, None)
        self._counted = {queue: counted for queue, counted in self._counted.items() if queue[0] != topic}


class RequestTimes:
    """How long requests take, by request code, response code, and whether they were held. `watch` measures handlers."""

    def __init__(self) -> None:
        # By (request code, answer's code, answered later by a held pull).
        self.rows: dict[tuple[int, int, bool], Histogram] = {}
        self.topics: dict[tuple[bool, bool], Histogram] = {}
        self.groups: dict[bool, Histogram] = {}

    def watch(self, routes: Routes) -> None:
        """Measure the requests that these routes serve from now on."""
        for code, (_, header, handler) in list(routes.table.items()):
            routes.add(code, self._timed(handler), header)
        for code, run in list(routes.runs_by_code.items()):
            routes.add_run(code, self._timed_run(code, run))

    def _timed(self, handler: Handler) -> Handler:
        def timed(peer: Peer, request: Request[Any], body: bytes) -> Answer:
            began = machine.perf_counter()
            try:
                answer = handler(peer, request, body)
            except ServerError as e:
                self._took(request, e.code, began)
                raise
            if answer is None:
                if not request.flag & frames.ONEWAY_FLAG:
                    self._later(peer, request, began)
            elif isinstance(answer, bytes):
                self._took(request, _code_of(answer), began)
            elif isinstance(answer, Parts):
                self._took(request, _code_of(answer.head), began)
            else:
                return self._awaited(answer, request, began)
            return answer

        return timed

    def _timed_run(self, code: int, run: Run) -> Run:
        def timed(peer: Peer, data: bytes, at: int, out: list[bytes]) -> int:
            began, before = machine.perf_counter(), len(out)
            waiting = peer.awaited_answers
            if waiting is None:
                waiting = peer.awaited_answers = {}
            end = run(peer, data, at, out)
            if peer.later:
                told = partial(self._told_later, code, began)
                for opaque in peer.later:
                    if len(waiting) >= LATER_MAX:
                        del waiting[next(iter(waiting))]
                    waiting[int(opaque)] = told
                peer.later.clear()
            if len(out) > before:
                # Each of them was answered when all were.
                row = self.rows.setdefault((code, 0, False), Histogram(RPC_BOUNDS))
                took_ms = (machine.perf_counter() - began) * 1000
                for _ in range(len(out) - before):
                    row.add(took_ms)
            return end

        return timed

    def _told_later(self, code: int, began: float, answer: bytes) -> None:
        row = self.rows.setdefault((code, _code_of(answer), False), Histogram(RPC_BOUNDS))
        row.add((machine.perf_counter() - began) * 1000)

    async def _awaited(
        self, answer: Awaitable[bytes | Parts | None], request: Request[Any], began: float
    ) -> bytes | Parts | None:
        try:
            data = await answer
        except ServerError as e:
            self._took(request, e.code, began)
            raise
        if data is not None:
            self._took(request, _code_of(data.head if isinstance(data, Parts) else data), began)
        return data

    def _later(self, peer: Peer, request: Request[Any], began: float) -> None:
        waiting = peer.awaited_answers
        if waiting is None:
            waiting = peer.awaited_answers = {}
        elif len(waiting) >= LATER_MAX:
            del waiting[next(iter(waiting))]
        is_pull = request.code in _PULLS

        def told(answer: bytes) -> None:
            self._took(request, _code_of(answer), began, held=is_pull)

        waiting[request.opaque] = told

    def _took(self, request: Request[Any], code: int, began: float, *, held: bool = False) -> None:
        took_ms = (machine.perf_counter() - began) * 1000
        key = request.code, code, held
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = Histogram(RPC_BOUNDS)
        row.add(took_ms)
        if request.code == _TOPIC_CREATION:
            kind = (code == 0, is_system_topic(request.ext.topic))
            self.topics.setdefault(kind, Histogram(CREATE_BOUNDS)).add(took_ms)
        elif request.code == _GROUP_CREATION:
            self.groups.setdefault(code == 0, Histogram(CREATE_BOUNDS)).add(took_ms)

    @staticmethod
    def names(key: tuple[int, int, bool]) -> dict[str, str]:
        """Return the labels of a row, by its key (request code, response code, held or not)."""
        request_code, code, held = key
        return {
            "protocol_type": "remoting",
            "request_code": _REQUESTS.get(request_code, str(request_code)),
            "response_code": _RESPONSES.get(code, str(code)),
            "is_long_polling": "true" if held else "false",
            "result": "success",
        }


def _code_of(answer: bytes) -> int:
    """Return the code of one of our reply frames: it stands first."""
    return int(answer[16 : answer.index(b",", 16, 32)])
