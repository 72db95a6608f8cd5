"""The Spark streams that processes publish: asked at the addresses that the console was started with, when somebody
looks. Rule: what a process said last is kept while it does not answer, so that a stream gone silent is seen.
"""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from rocketspark import machine
from rocketspark.console.settings import stream_address
from rocketspark.model import typed_json
from rocketspark.model.stream_progress import PATH, StreamProgress, StreamsProgress
from rocketspark.model.text import shown
from rocketspark.transport.loose_threads import in_thread

# For each piece of an answer and for all of them; and until nobody waits for it any more.
ASK_S, WAIT_S = 3.0, 4.0
LIFE_S = 2.0
ANSWER_BYTES_MAX, PIECE_BYTES = 16 << 20, 64 << 10


class Source(NamedTuple):
    """What a process said of its streams. `age_s`: how long ago, None if it never did; `error`: why it does not answer
    now, "" if it does.
    """

    address: str
    said: StreamsProgress | None
    age_s: float | None
    error: str

    def since_s(self, at_s: float) -> float:
        """Return how long ago a time by that process's clock was."""
        assert self.said is not None
        return max(0.0, self.said.said_s - at_s + (self.age_s or 0.0))


class Streams:
    """The processes at some addresses, http://host:port of their metrics."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self._processes = [_Process(address) for address in addresses]
        self._asking: asyncio.Task[None] | None = None
        self._asked_s: float | None = None

    def __bool__(self) -> bool:
        return bool(self._processes)

    async def look(self) -> list[Source]:
        """Return what each process says, as of two seconds ago at most. Callers at the same time ask once."""
        if self._asking is None and (self._asked_s is None or machine.monotonic() - self._asked_s > LIFE_S):
            self._asking = asyncio.create_task(self._ask())
        if self._asking is not None:
            await asyncio.shield(self._asking)
        return [process.source() for process in self._processes]

    async def _ask(self) -> None:
        try:
            await asyncio.gather(*(process.ask() for process in self._processes))
        finally:
            self._asked_s, self._asking = machine.monotonic(), None


class _Process:
    def __init__(self, address: str) -> None:
        self.address, self._host, self._port = stream_address(address)
        self._said: StreamsProgress | None = None
        self._said_s: float | None = None
        self._error = ""
        self._fetching: asyncio.Future[bytes] | None = None

    def source(self) -> Source:
        age_s = None if self._said_s is None else machine.monotonic() - self._said_s
        return Source(self.address, self._said, age_s, self._error)

    async def ask(self) -> None:
        try:
            # One at a time: an answer may come so slowly that it never ends.
            if self._fetching is None or self._fetching.done():
                self._fetching = in_thread(self._fetch, "rocketspark-streams")
            async with asyncio.timeout(WAIT_S):
                body = await asyncio.shield(self._fetching)
            self._said = typed_json.decode(body, StreamsProgress)
            self._said_s, self._error = machine.monotonic(), ""
        except TimeoutError:
            self._error = f"no answer within {ASK_S:.0f} s"
        except msgspec.MsgspecError:
            self._error = "its answer is no progress of streams: does metrics.listen or --metrics-port serve there?"
        except (OSError, http.client.HTTPException, ValueError) as e:
            self._error = shown(str(e) or type(e).__name__)

    def _fetch(self) -> bytes:
        end_s, body = machine.monotonic() + ASK_S, bytearray()
        connection = http.client.HTTPConnection(self._host, self._port, timeout=ASK_S)
        try:
            connection.request("GET", PATH)
            answer = connection.getresponse()
            if answer.status != 200:
                raise ValueError(f"it answered {answer.status} {answer.reason}")
            while piece := answer.read1(PIECE_BYTES):
                body += piece
                if len(body) > ANSWER_BYTES_MAX:
                    raise ValueError(f"its answer has more than {ANSWER_BYTES_MAX >> 20} MiB")
                # The connection's limit is that of each piece.
                if machine.monotonic() > end_s:
                    raise TimeoutError
        finally:
            connection.close()
        return bytes(body)


def find(sources: Iterable[Source], address: str, run_id: str) -> tuple[Source, StreamProgress] | None:
    """Return a run that a process published, None if there is none."""
    for source in sources:
        if source.address == address and source.said is not None:
            for each in source.said.streams:
                if each.run_id == run_id:
                    return source, each
    return None
