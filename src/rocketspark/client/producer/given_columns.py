"""The columns that `send_many` is given, read and checked before anything is sent. Rule: a row is refused for what a
Message is refused for, and the error names the row and the column.

Columns are checked as a whole; a row is looked at by itself only to say what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from rocketspark.client import validators
from rocketspark.client.producer.prepared_message import PackingSettings, properties_text
from rocketspark.errors import ConfigError, MessageIllegal, UsageError
from rocketspark.model import Message
from rocketspark.model.text import LONG_MAX
from rocketspark.protocol.message import batch_columns, properties
from rocketspark.protocol.message.batch import HEAD_BYTES
from rocketspark.protocol.message.batch_columns import Piece

# The columns of a table that are sent, as `format("rocketmq")` names them, and the argument of each.
TABLE = {
    "body": "bodies",
    "tag": "tags",
    "keys": "keys",
    "shardingKey": "sharding_keys",
    "properties": "properties",
    "delayMs": "delay_ms",
}
_MARKS = ("\x01", "\x02")
# What a message without any of these columns has.
_PLAIN_CHARACTERS = len(properties_text(Message("t", b"x"), ""))


class Given(NamedTuple):
    """The columns of `send_many`, as they were given."""

    bodies: Any
    tags: Any = None
    keys: Any = None
    sharding_keys: Any = None
    properties: Any = None
    delay_ms: Any = None


class Rows(msgspec.Struct, frozen=True):
    """Checked rows of one topic, in the order in which they were given.

    `pieces`: the rows' properties behind UNIQ_KEY and WAIT, as `batch_columns.encode` takes them; `sharding_keys`: of
    each row, None: no row has one; `delays_ms`: the same, 0: none; `item_bytes`: the length of each as an item of a
    batch.
    """

    topic: str
    bodies: Sequence[bytes]
    pieces: list[Piece]
    sharding_keys: list[str | None] | None
    delays_ms: NDArray[np.int64] | None
    item_bytes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.bodies)

    def in_order(self, order: NDArray[np.int64]) -> Rows:
        """Return the rows with the given numbers, in the order of the numbers."""
        # Two or more: fewer are in order.
        in_order = itemgetter(*order.tolist())

        def take(column: Sequence[bytes]) -> list[bytes]:
            return list(in_order(column))

        pieces = [piece if isinstance(piece, bytes) else take(piece) for piece in self.pieces]
        return replace(self, bodies=take(self.bodies), pieces=pieces, item_bytes=self.item_bytes[order])

    def pieces_of(self, rows: slice) -> list[Piece]:
        """Return the properties of some rows."""
        return [piece if isinstance(piece, bytes) else piece[rows] for piece in self.pieces]


def check_rows(topic: str, given: Given, packing: PackingSettings, more: bytes = b"") -> Rows:
    """Check columns and return their rows. `more`: properties that each row has besides, in stored form.

    Raises MessageIllegal naming the first row and column that is wrong, UsageError for what is no column, ConfigError
    for an Arrow column of another library without pyarrow.
    """
    validators.check_batch_target(topic)
    given = _of_read(_of_table(given))
    bodies, body_bytes = _bodies(topic, given.bodies, packing.body_bytes_max)
    column = _Column(topic, len(bodies))
    sharding, sharding_keys = column.sharding_keys(given.sharding_keys)
    delay, delays_ms = column.delays(given.delay_ms)
    # In the order of a single message's properties.
    pieces = [
        *column.tags(given.tags),
        *column.keys(given.keys),
        *sharding,
        *delay,
        *column.own(given.properties),
        more,
    ]
    sizes = np.full(len(bodies), batch_columns.FIRST_BYTES, np.int64)
    for piece in pieces:
        sizes += len(piece) if isinstance(piece, bytes) else batch_columns.lengths(piece)
    if len(sizes) and int(sizes.max()) > properties.BYTES_MAX:
        row = int((sizes > properties.BYTES_MAX).argmax())
        text = f"properties, keys and tag take {sizes[row]} bytes; at most {properties.BYTES_MAX} are allowed"
        raise MessageIllegal(f"row {row}: {text}", topic=topic)
    sizes += body_bytes + (HEAD_BYTES + 2)
    return Rows(topic, bodies, _joined(pieces), sharding_keys, delays_ms, sizes)


class _Column:
    """Reads and checks columns of `count` rows."""

    def __init__(self, topic: str, count: int) -> None:
        self.topic = topic
        self.count = count

    def _cells(self, name: str, given: Any) -> list[Any]:
        found = _cells(name, given)
        if set(map(type, found)) - _USUAL:
            found = _plain(found)
        if len(found) != self.count:
            text = f"the columns have different lengths: bodies has {self.count} rows, {name} {len(found)}"
            raise MessageIllegal(f"{text}: each has a value a row, or one text for all", topic=self.topic)
        return found

    def _stored(self, name: str, cells: Iterable[Any], message: Callable[[Any], Message]) -> list[str]:
        """Return for each cell the properties of the message with it. Raises MessageIllegal for the first that no
        message takes.
        """
        found = []
        for row, cell in enumerate(cells):
            try:
                found.append(properties_text(message(cell), "")[_PLAIN_CHARACTERS:])
            except MessageIllegal as e:
                raise _illegal(row, name, str(e), self.topic) from None
        return found

    def texts(
        self, name: str, given: Any, message: Callable[[str], Message], *, may_be_empty: bool = True
    ) -> str | list[str | None] | None:
        """Return a column of texts, None where a row has none, or the text of all rows; None: there is no text.

        `message` makes a message with a text, which is asked why a text is refused.
        """
        if given is None:
            return None
        cells = [given] if isinstance(given, str) else self._cells(name, given)
        if _text(cells) is None or (not may_be_empty and "" in cells):
            for row, cell in enumerate(cells):
                if cell is not None and not isinstance(cell, str):
                    raise _illegal(row, name, f"{cell!r} is no text; make a str of it", self.topic)
            self._stored(name, cells, lambda cell: self._bare() if cell is None else message(cell))
        if isinstance(given, str):
            return given or None
        return cells if any(cells) else None

    def _bare(self, **fields: Any) -> Message:
        return Message(self.topic, b"x", **fields)

    def tags(self, given: Any) -> list[Piece]:
        """Return the property TAGS."""
        return self._pieces(properties.TAGS, self.texts("tags", given, lambda cell: self._bare(tag=cell)))

    def sharding_keys(self, given: Any) -> tuple[list[Piece], list[str | None] | None]:
        """Return the property of sharding keys, and the key of each row."""
        found = self.texts("sharding_keys", given, lambda cell: self._bare(sharding_key=cell))
        pieces = self._pieces(properties.SHARDING_KEY, found)
        return pieces, [found] * self.count if isinstance(found, str) else found

    def keys(self, given: Any) -> list[Piece]:
        """Return the property KEYS: words with a blank between them."""
        if given is None:
            return []

        def message(cell: Any) -> Message:
            return self._bare(keys=() if cell is None else cell)

        if isinstance(given, str):
            return [self._stored("keys", [given], message)[0].encode()]
        cells = self._cells("keys", given)
        are_lists = bool(cells) and not set(map(type, cells)) - {list, tuple}
        words = list(chain.from_iterable(cells)) if are_lists else list(filter(None, cells))
        text = _text(words) if all(words) else None
        if text is None or len(text.split()) > 1 or text != text.strip():
            # Texts of several words, or lists beside texts, if it is nothing wrong.
            return [[text.encode() for text in self._stored("keys", cells, message)]]
        return self._pieces(properties.KEYS, [" ".join(cell) for cell in cells] if are_lists else cells)

    def delays(self, given: Any) -> tuple[list[Piece], NDArray[np.int64] | None]:
        """Return the property that asks for a delay, and the delay of each row in ms, 0 for none."""
        if given is None:
            return [], None
        is_one = hasattr(given, "__index__") and not np.ndim(given)
        cells = [given] * self.count if is_one else self._cells("delay_ms", given)
        for row, cell in enumerate(cells) if set(map(type, cells)) - {int, type(None)} else ():
            is_whole = hasattr(cell, "__index__") or (isinstance(cell, float) and cell.is_integer())
            if cell is not None and (isinstance(cell, bool) or not is_whole):
                raise _illegal(row, "delay_ms", f"{cell!r}: a whole number of ms is needed", self.topic)
        numbers = [0 if cell is None else int(cell) for cell in cells]
        for row, number in enumerate(numbers):
            if not 0 <= number <= LONG_MAX:
                raise _illegal(row, "delay_ms", f"{number}: 0 or more is needed, in 64 bits", self.topic)
        if not any(numbers):
            return [], None
        texts = [str(number) if number else None for number in numbers]
        return self._pieces(properties.TIMER_DELAY_MS, texts), np.array(numbers, np.int64)

    def own(self, given: Any) -> list[Piece]:
        """Return the application's own properties: a dict for all rows, whose values may be columns; or a dict a
        row.
        """
        if given is None:
            return []
        if isinstance(given, Mapping):
            found: list[Piece] = []
            for name, value in given.items():
                label = f"properties[{name!r}]"

                def message(cell: Any, name: Any = name) -> Message:
                    return self._bare(properties={name: cell})

                # One text shows whether the name is one.
                self._stored(label, [value if isinstance(value, str) else "x"], message)
                found += self._pieces(name, self.texts(label, value, message, may_be_empty=False))
            return found
        cells = self._cells("properties", given)
        if set(map(type, cells)) == {dict} and len(set(map(tuple, cells))) == 1:
            # All rows name the same ones, as is common: columns take a quarter of the time.
            columns = {name: [cell[name] for cell in cells] for name in cells[0]}
            if all(all(column) and _text(column) is not None for column in columns.values()):
                return self.own(columns)
        stored = self._stored("properties", cells, lambda cell: self._bare(properties={} if cell is None else cell))
        return [[text.encode() for text in stored]]

    def _pieces(self, name: str, column: str | list[str | None] | None) -> list[Piece]:
        """Return a property of all rows as pieces of their stored text."""
        if column is None:
            return []
        before = (name + "\x01").encode()
        if isinstance(column, str):
            return [b"%b%b\x02" % (before, column.encode())]
        if all(column):
            return [before, list(map(str.encode, column)), b"\x02"]  # type: ignore[arg-type]
        return [[b"%b%b\x02" % (before, text.encode()) if text else b"" for text in column]]


def _text(cells: Collection[Any]) -> str | None:
    """Return all cells as one text; None if one is neither a text that can be stored, nor None."""
    kinds = set(map(type, cells))
    if kinds - {str, type(None)}:
        return None
    joined = "".join(cells if kinds == {str} else filter(None, cells))
    if any(mark in joined for mark in _MARKS):
        return None
    try:
        joined.isascii() or joined.encode()
    except UnicodeEncodeError:
        return None
    return joined


def _joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Join neighbouring texts that all rows share."""
    found: list[Piece] = []
    for piece in pieces:
        last = found[-1] if found else None
        if isinstance(piece, bytes) and isinstance(last, bytes):
            found[-1] = last + piece
        else:
            found.append(piece)
    return found


def _illegal(row: int, name: str, text: str, topic: str) -> MessageIllegal:
    return MessageIllegal(f"row {row}, column {name}: {text}", topic=topic)


def _bodies(topic: str, given: Any, bytes_max: int) -> tuple[Sequence[bytes], NDArray[np.int64]]:
    """Return the bodies and their lengths."""
    found = _cells("bodies", given)
    if set(map(type, found)) <= {bytes}:
        sizes = batch_columns.lengths(found)
        if not len(sizes) or 0 < int(sizes.min()) <= int(sizes.max()) <= bytes_max:
            return found, sizes
    for row, body in enumerate(_plain(found)):
        if body is None:
            raise _illegal(row, "bodies", "it is null: leave such rows out", topic)
        try:
            validators.check_body(topic, body, bytes_max)
        except MessageIllegal as e:
            raise _illegal(row, "bodies", str(e), topic) from None
    found = [bytes(body) for body in found]
    return found, batch_columns.lengths(found)


def _of_table(given: Given) -> Given:
    """Return the columns of a table or data frame that was given as bodies, with those that were given beside it."""
    table = _of_arrow("bodies", given.bodies)
    given = given._replace(bodies=table)
    if not hasattr(table, "__len__"):
        # Nor has it columns that can be taken, as Polars' lazy frame.
        return given
    names = getattr(table, "column_names", None)
    if names is None:
        names = list(table) if isinstance(table, Mapping) else list(getattr(table, "columns", ()))
    if not names and not isinstance(table, Mapping):
        return given
    for name in names:
        if name not in TABLE:
            text = f"the table has a column {name!r}, which is not sent"
            raise UsageError(f"{text}: select those of {', '.join(TABLE)}, and give a property in `properties`")
    if "body" not in names:
        raise UsageError(f"the table has no column 'body'; it has {', '.join(names) or 'none'}")
    if len(set(names)) < len(names):
        raise UsageError(f"the table has two columns of one name: {', '.join(names)}")
    for name in names:
        if name != "body" and getattr(given, TABLE[name]) is not None:
            raise UsageError(f"give {TABLE[name]} or a column {name!r} of the table, not both")
        given = given._replace(**{TABLE[name]: table[name]})
    return given


def _of_read(given: Given) -> Given:
    """Return columns with properties as dicts that are a column of Arrow's maps or structs, or what pandas and Polars
    make of these. Nulls are left out, and so are RocketMQ's own properties, which a read gives too: of these the
    sharding key stays, as the column that it is, if none was given.
    """
    if given.properties is None or isinstance(given.properties, Mapping):
        return given
    found = _cells("properties", given.properties)
    pairs = [_pairs(cell) for cell in found]
    if _library(given.properties) in ("pyarrow", "polars"):
        found = [_without_nulls(cell) for cell in found]
    if not any(pairs):
        return given._replace(properties=found)
    keys = [None if of_row is None else of_row.get(properties.SHARDING_KEY) for of_row in pairs]
    if given.sharding_keys is None and any(keys):
        given = given._replace(sharding_keys=keys)
    own = [cell if of_row is None else _own(of_row) for cell, of_row in zip(found, pairs, strict=True)]
    return given._replace(properties=own)


def _pairs(cell: Any) -> dict[Any, Any] | None:
    """Return a map of Arrow as a dict, or what pandas (tuples) or Polars (structs) make of it; None: it is no map."""
    if not isinstance(cell, list | np.ndarray):
        return None
    if all(isinstance(pair, tuple) and len(pair) == 2 for pair in cell):
        return dict(cell)
    if all(isinstance(pair, dict) and pair.keys() == {"key", "value"} for pair in cell):
        return {pair["key"]: pair["value"] for pair in cell}
    return None


def _own(pairs: dict[Any, Any]) -> dict[Any, Any]:
    return {name: value for name, value in pairs.items() if value is not None and name not in properties.SYSTEM_NAMES}


def _without_nulls(cell: Any) -> Any:
    return {name: value for name, value in cell.items() if value is not None} if isinstance(cell, dict) else cell


def _cells(name: str, given: Any) -> list[Any]:
    """Return the values of a column, None for nulls. Raises UsageError for what is no column."""
    given = _of_arrow(name, given)
    library = _library(given)
    if library == "polars" and hasattr(given, "to_list"):
        return list(given.to_list())
    if library == "pandas" and hasattr(given, "tolist"):
        gone = np.asarray(given.isna())
        values = given.tolist()
        return [None if none else value for value, none in zip(values, gone, strict=True)] if gone.any() else values
    if library == "pyarrow" and hasattr(given, "type") and not hasattr(given, "as_py"):
        return [cell for chunk in getattr(given, "chunks", [given]) for cell in _arrow_cells(chunk)]
    if isinstance(given, np.ndarray):
        if given.ndim != 1:
            raise UsageError(f"{name}: an array of {given.ndim} dimensions; a column has one")
        return list(given.tolist())
    none_such = (str, bytes, bytearray, memoryview, Mapping, set, frozenset)
    # A data frame, or a single value of Arrow.
    is_other = hasattr(type(given), "columns") or hasattr(given, "as_py")
    if isinstance(given, none_such) or is_other or not isinstance(given, Iterable):
        kind = type(given).__name__
        raise UsageError(f"{name}: a column is needed, such as a list, an array or a Series, not {kind}")
    return list(given)


# The types of cells as they are read; of others some are nulls.
_USUAL = {str, int, list, tuple, dict, type(None)}
_NULLS = ("NAType", "NaTType")


def _plain(cells: Iterable[Any]) -> list[Any]:
    """Return cells with None for NaN and the nulls of pandas, and lists for arrays, which pandas makes of lists."""
    found = [cell.tolist() if isinstance(cell, np.ndarray) else cell for cell in cells]
    return [
        None if type(cell).__name__ in _NULLS or (isinstance(cell, float) and cell != cell) else cell for cell in found
    ]


def _library(given: Any) -> str:
    return type(given).__module__.partition(".")[0]


def _of_arrow(name: str, given: Any) -> Any:
    """Return what another library gives by Arrow's C interface as an array or table of pyarrow, all else as it is."""
    is_stream = hasattr(given, "__arrow_c_stream__")
    if _library(given) in ("pyarrow", "pandas", "polars") or not (is_stream or hasattr(given, "__arrow_c_array__")):
        return given
    try:
        import pyarrow
    except ImportError:
        text = f"{name}: columns of {_library(given)} need pyarrow: pip install 'rocketspark[arrow]'"
        raise ConfigError(text) from None
    array = pyarrow.chunked_array(given) if is_stream else pyarrow.array(given)
    return pyarrow.Table.from_struct_array(array) if str(array.type).startswith("struct") else array


# Columns whose values are read by their places: the types of these, and whether they are texts.
_PLACES = {
    "binary": (np.int32, False),
    "large_binary": (np.int64, False),
    "string": (np.int32, True),
    "large_string": (np.int64, True),
}


def _arrow_cells(chunk: Any) -> list[Any]:
    """Return the values of an Arrow array; bytes, and texts of ASCII, by their places, which is six times as quick."""
    kind = str(chunk.type)
    if kind in _PLACES and len(chunk) and not chunk.null_count:
        places, is_text = _PLACES[kind]
        _, offsets, data = chunk.buffers()
        at = np.frombuffer(offsets, places)[chunk.offset : chunk.offset + len(chunk) + 1]
        stored = b"" if data is None else data.slice(int(at[0]), int(at[-1] - at[0])).to_pybytes()
        if not is_text or stored.isascii():
            values: Any = stored.decode() if is_text else stored
            return [values[start:end] for start, end in pairwise((at - at[0]).tolist())]
    return list(chunk.to_pylist())
