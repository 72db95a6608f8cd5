"""A file's rows on their way into a topic. Rule: how many of them are stored is noted beside the file, so that another
run goes on behind them; what a kill leaves unnoted is sent again. A topic that was made anew since has none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import pyarrow as pa

from rocketspark.errors import ConfigError, RouteNotFound, ServerError, UsageError
from rocketspark.model import typed_json
from rocketspark.model.text import shown
from rocketspark.tables import file_rows
from rocketspark.tables.client_access import Access
from rocketspark.tables.cluster_queries import ClusterQueries, making_of, remade
from rocketspark.tables.export_topic import locked, replace
from rocketspark.transport.connections import in_one_form

# What `making_of` returns, as JSON can hold it.
Making = list[tuple[tuple[str, str], int]]


class Note(msgspec.Struct, frozen=True):
    """What is noted of an import: the file that it reads, where it sends, how many rows are stored, and in which making
    of the topic.
    """

    file_bytes: int
    changed_ns: int
    namesrv: str
    rows: int
    making: Making = []


def told_making(namesrv: str, topic: str, access: Access) -> Making:
    """Return what tells a topic from one that is made anew under its name; nothing where brokers do not tell it, or not
    to this user. Raises TransportError.
    """
    with closing(ClusterQueries(namesrv, access=access)) as cluster:
        try:
            return list(making_of(cluster.bounds(cluster.queues([topic]), if_there=True)).items())
        except (RouteNotFound, ServerError, ConfigError):
            return []


NO_ACCESS = Access()


class Import:
    """The rows of a file that are still to be sent to a topic, within a `with` block. Raises UsageError for a file that
    changed since, or that another run sends there now, for a topic that was made anew since, and OSError.

    `rows`: how many are stored, in all runs; `rows_now`: by this one; `continued`: by those before. `same_queues`: rows
    keep their column queueId; `anew`: earlier runs are forgotten.
    """

    def __init__(
        self, path: Path, topic: str, namesrv: str, *, same_queues: bool, anew: bool, access: Access = NO_ACCESS
    ) -> None:
        file_rows.format_of(path)
        now = path.stat()
        self._path, self._same_queues = path, same_queues
        self._beside = path.with_name(f"{path.name}.{topic}.sent")
        self._note = Note(now.st_size, now.st_mtime_ns, in_one_form(namesrv), 0)
        self._anew, self.continued = anew, 0
        self._topic, self._access = topic, access
        self._alone = ExitStack()

    def __enter__(self) -> Import:
        with ExitStack() as alone:
            alone.enter_context(locked(self._beside.with_name(f"{self._beside.name}.lock")))
            self._begin()
            self._alone = alone.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._alone.close()

    def _begin(self) -> None:
        if not self._anew and (found := self._found()) is not None:
            found = msgspec.structs.replace(found, namesrv=in_one_form(found.namesrv))
            if msgspec.structs.replace(found, rows=0, making=[]) != self._note:
                raise UsageError(
                    f"{shown(str(self._beside))} is of another file or cluster: --anew sends all of this one"
                )
            self._note = found
            self._check_making(found)
        if not self._note.making:
            self._note_making()
        self.continued = self._note.rows
        # Before the first row is sent: where it cannot be noted, none is.
        self._keep()

    def _note_making(self) -> None:
        making = told_making(self._note.namesrv, self._topic, self._access)
        self._note = msgspec.structs.replace(self._note, making=making)

    def _check_making(self, note: Note) -> None:
        """Raise UsageError if the rows that earlier runs stored are not in the topic as it is now."""
        if not (note.rows and note.making):
            return
        brokers = {broker for (_, broker), _ in note.making}
        try:
            broker = remade(note.namesrv, self._access, self._topic, dict(note.making), brokers)
        except RouteNotFound:
            broker = min(brokers)  # It was deleted.
        except (ServerError, ConfigError):
            return  # Another user's run could ask; this one may only send.
        if broker:
            raise UsageError(
                f"topic {shown(self._topic)} was made anew on broker {broker}, or the broker's store was, since"
                f" {note.rows:,} rows of {shown(str(self._path))} were sent to it: --anew sends all of them"
            )

    def _found(self) -> Note | None:
        try:
            return typed_json.decode(self._beside.read_bytes(), Note)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as e:
            raise UsageError(f"{shown(str(self._beside))} cannot be read ({e}): --anew begins anew") from None

    def _keep(self) -> None:
        replace(self._beside, msgspec.json.encode(self._note))

    @property
    def rows(self) -> int:
        """How many rows are stored, in all runs."""
        return self._note.rows

    @property
    def rows_now(self) -> int:
        """How many rows this run has stored."""
        return self._note.rows - self.continued

    def batches(self, rows_max: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are to be sent, in batches of at most so many."""
        for batch in file_rows.batches_of(self._path, self.continued):
            if not self._same_queues and "queueId" in batch.schema.names:
                batch = batch.drop_columns(["queueId"])
            for at in range(0, batch.num_rows, rows_max):
                yield batch.slice(at, rows_max)

    def sent(self, count: int) -> None:
        """Note that so many more rows are stored."""
        self._note = msgspec.structs.replace(self._note, rows=self._note.rows + count)
        if not self._note.making and self.rows_now == count:
            self._note_making()  # The first rows may have made the topic.
        self._keep()

    def done(self) -> None:
        """Note that all is sent: nothing is left to go on with."""
        self._beside.unlink()
