"""What ObjectSegments needs of a pyarrow FileSystem, in memory. Rule: every request goes through `asked`."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

from pyarrow import fs

T = TypeVar("T")


class Objects:
    """An object store; who derives from it says in `asked` what becomes of a request."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}

    def asked(self, carry_out: Callable[[], T]) -> T:
        """Make a request."""
        return carry_out()

    def get_file_info(self, asked: Any) -> Any:
        def info(path: str) -> Any:
            found = self.content.get(path)
            kind = fs.FileType.NotFound if found is None else fs.FileType.File
            return SimpleNamespace(path=path, size=None if found is None else len(found), type=kind)

        if isinstance(asked, str):
            return self.asked(lambda: info(asked))
        below = f"{asked.base_dir}/"
        return self.asked(lambda: [info(path) for path in self.content if path.startswith(below)])

    def delete_file(self, path: str) -> None:
        def delete() -> None:
            if self.content.pop(path, None) is None:
                raise FileNotFoundError(path)

        self.asked(delete)

    def open_output_stream(self, path: str) -> Any:
        return _Stream(lambda content: self.write(path, content))

    def write(self, path: str, content: bytes) -> None:
        self.asked(lambda: self.content.update({path: content}))

    def open_input_file(self, path: str) -> Any:
        def read_at(count: int, at: int) -> bytes:
            content = self.content.get(path)
            if content is None:
                raise FileNotFoundError(path)
            return content[at : at + count]

        return _Stream(lambda _: None, lambda count, at: self.asked(lambda: read_at(count, at)))


class _Stream:
    def __init__(self, close: Callable[[bytes], None], read_at: Callable[[int, int], bytes] | None = None) -> None:
        self._close, self.read_at = close, read_at
        self._content = b""

    def __enter__(self) -> _Stream:
        return self

    def write(self, content: bytes) -> None:
        self._content += content

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            self._close(self._content)
