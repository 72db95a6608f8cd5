"""Answers that a browser saves as a file.

Rule: a file counts from when it is made until the browser has it: what is not read is given up, and one user leaves
room to the others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rocketspark.errors import UsageError

log = logging.getLogger("rocketspark.console")

FILES_MAX, FILES_OF_ONE_MAX = 4, 2
# A file is sent in pieces of this size: the next one leaves once the last one is read. A piece is waited for so long, a
# file a second more for so many bytes: a slow line gets a large one too.
SEND_S = 120.0
PIECE_BYTES = 256 << 10
BYTES_PER_S_MIN = 32 << 10


class Download(Response):
    """A file that is sent a piece at a time. `sent`: called once it is sent, or given up."""

    def __init__(self, data: bytes, name: str, media_type: str, sent: Callable[[], None]) -> None:
        safe = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)
        disposition = f'attachment; filename="{safe}"'
        super().__init__(data, media_type=media_type, headers={"Content-Disposition": disposition})
        self._sent = sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        whole = memoryview(self.body)
        begun_s = time.monotonic()
        try:
            async with asyncio.timeout(SEND_S + len(whole) / BYTES_PER_S_MIN):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                for at in range(0, len(whole), PIECE_BYTES):
                    piece = bytes(whole[at : at + PIECE_BYTES])
                    async with asyncio.timeout(SEND_S):
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            # The server closes the connection of an answer that is not whole.
            lasted_s = time.monotonic() - begun_s
            log.info("a file of %d bytes was not read within %.0f s: it is given up", len(whole), lasted_s)
        finally:
            self._sent()


class Downloads:
    """Counts the files that are made or sent, of all users and of each."""

    def __init__(self) -> None:
        self._of = Counter[str]()

    async def answer(self, who: str, make: Callable[[], Awaitable[tuple[bytes, str, str]]]) -> Download:
        """Return the answer with a file. `who`: for whom; `make`: returns its content, its name and its media type.

        Raises UsageError while he, or all, have as many as they may.
        """
        if self._of.total() >= FILES_MAX or self._of[who] >= FILES_OF_ONE_MAX:
            raise UsageError("as many files are being saved as may be at a time: try again once one of them is there")
        self._of[who] += 1
        try:
            return Download(*await make(), lambda: self._ended(who))
        except BaseException:
            self._ended(who)
            raise

    def _ended(self, who: str) -> None:
        self._of[who] -= 1
        if not self._of[who]:
            del self._of[who]
