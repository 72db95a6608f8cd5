"""A client of another language as a process, commanded by JSON lines: {"id", "command", ...} in, result or error out.

Commands run side by side in the process; each answer carries the id of its command.
"""

from __future__ import annotations

import base64
import itertools
import json
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.official import started


class CommandError(Exception):
    """What the client threw: its error's type, text and, where it has one, response code."""

    def __init__(self, command: str, kind: str, text: str, code: int) -> None:
        super().__init__(f"{command}: {kind}: {text}")
        self.kind = kind
        self.text = text
        self.code = code


class Commanded:
    """The process of one client.

    Args:
        version: which client, for names.
        argv: what to run.
        folder: for its logs; stderr goes to driver.log there.
        environment: its environment variables [default: ours].
    """

    def __init__(self, version: str, argv: list[str], folder: Path, environment: dict[str, str] | None = None) -> None:
        started(argv[0])
        self.version = version
        self.folder = folder
        self._ids = itertools.count(1)
        self._pending: dict[int, tuple[str, Future[Any]]] = {}
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "driver.log").open("ab") as log:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment
            )
        self._reader = threading.Thread(target=self._read_answers, name=f"client-{version}", daemon=True)
        self._reader.start()
        self.call("ping")

    def submit(self, command: str, **args: Any) -> Future[Any]:
        """Sends a command and returns at once; the future holds its result or CommandError."""
        answer: Future[Any] = Future()
        line = {"command": command, **args}
        with self._lock:
            line["id"] = next(self._ids)
            self._pending[line["id"]] = (command, answer)
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()
        return answer

    def call(self, command: str, *, call_timeout_s: float = 200, **args: Any) -> Any:
        """Runs a command of the client's side and returns its result.

        Raises:
            CommandError: the client threw.
            TimeoutError: no answer within `call_timeout_s`.
        """
        return self.submit(command, **args).result(call_timeout_s)

    @contextmanager
    def started(self, kind: str, **args: Any) -> Iterator[str]:
        """Starts a client in the process for the length of a `with` block; yields the name that commands take.

        Args:
            kind: what the process can start: "producer", "push", "pull", "lite", "admin" and more.
            args: of its `start` command.
        """
        with self._lock:
            name = f"{kind}{next(self._ids)}"
        self.call(f"{kind}_start", name=name, **args)
        try:
            yield name
        finally:
            stopped = self.submit(f"{kind}_stop", name=name)
            # A consumer's stop stores its offsets and leaves its group. Others need not be waited for:
            # the Java 5.5.0 client's shutdown hangs 3 s now and then, joining a thread that polls.
            if kind in ("push", "lite"):
                stopped.result(200)

    def close(self) -> None:
        """Ends the process: by end of input, else by force."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._lock:
                command, waiting = self._pending.pop(answer["id"])
            if "error" in answer:
                error = answer["error"]
                waiting.set_exception(CommandError(command, error["type"], error["message"], error["code"]))
            else:
                waiting.set_result(answer["result"])
        with self._lock:
            left = list(self._pending.values())
            self._pending.clear()
        for command, waiting in left:
            text = f"the process ended; see {self.folder / 'driver.log'}"
            waiting.set_exception(CommandError(command, "Ended", text, -1))


def message(topic: str, body: bytes | str, **fields: Any) -> dict[str, Any]:
    """A message for the send commands; fields: tag, keys, flag, delay_level, properties, shard, times."""
    raw = body.encode() if isinstance(body, str) else body
    return {"topic": topic, "body": base64.b64encode(raw).decode(), **fields}


def body_of(received: dict[str, Any]) -> bytes:
    """The body of a message as a client's process returned it."""
    return base64.b64decode(received["body"])
