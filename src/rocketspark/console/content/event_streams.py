"""Answers that go on: events, each sent once it comes.

Rule: who does not read leaves the place to others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator

from starlette.responses import StreamingResponse
from starlette.types import Send

log = logging.getLogger("rocketspark.console")

# An event is waited for so long until the ones before it are read.
READ_S = 60.0


class EventStream(StreamingResponse):
    """Events of a browser's EventSource. `events`: each as its bytes; closed at the end."""

    def __init__(self, events: AsyncGenerator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._events = events

    async def stream_response(self, send: Send) -> None:
        """Send the events until the last one, or one that is not read."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for event in self._events:
                async with asyncio.timeout(READ_S):
                    await send({"type": "http.response.body", "body": event, "more_body": True})
        except TimeoutError:
            # The server closes the connection of an answer that is not whole.
            log.info("a page has not read its events for %.0f s: it gets no more", READ_S)
            return
        finally:
            await self._events.aclose()
        await send({"type": "http.response.body", "body": b""})
