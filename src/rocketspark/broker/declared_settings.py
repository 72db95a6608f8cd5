"""How a setting is declared: its kind, with its bounds, its unit, and who hears of a change while the broker runs.

Rule: what a text may be is decided by the kind, in `Setting.value_of` alone, for the start and for live changes.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Annotated, Any, NamedTuple, TypeVar, get_args

import msgspec

from rocketspark.errors import ConfigError
from rocketspark.model.conf_lines import number_of, truth_of
from rocketspark.model.text import INT_MAX, LONG_MAX, shown
from rocketspark.transport.metrics.settings import INTERVAL_MS_MIN

# The limit of queues of a topic: a request that visits each queue would block the loop for long.
QUEUES_MAX = 65_536
QUEUE_UNIT_BYTES = 20
BATCH_QUEUE_UNIT_BYTES = 46

# The kinds of numbers, each with its bounds: those of Java's int, but where another one harms.
Whole = Annotated[int, msgspec.Meta(ge=0, le=INT_MAX)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=INT_MAX)]
# With 0 or less a loop would never pause.
Interval = Annotated[int, msgspec.Meta(ge=1, le=INT_MAX)]
# A time that is only compared with, a long in Java: some set one that is never reached.
Time = Annotated[int, msgspec.Meta(ge=0, le=LONG_MAX)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=LONG_MAX)]
# Any number: RocketMQ bounds these by itself, or gives 0 and less a meaning.
Whatever = Annotated[int, msgspec.Meta(ge=-INT_MAX - 1, le=INT_MAX)]
Idle = Annotated[int, msgspec.Meta(ge=-1000 * (INT_MAX + 1), le=1000 * INT_MAX)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Permission = Annotated[int, msgspec.Meta(ge=0, le=7)]
QueueCount = Annotated[int, msgspec.Meta(ge=1, le=QUEUES_MAX)]
ReviveQueues = Annotated[int, msgspec.Meta(ge=1, le=64)]
Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
Priority = Annotated[int, msgspec.Meta(ge=0, le=INT_MAX)]
FileCount = Annotated[int, msgspec.Meta(ge=1, le=1000)]
BrokerId = Annotated[int, msgspec.Meta(ge=-1, le=INT_MAX)]
FileBytes = Annotated[int, msgspec.Meta(ge=4096, le=INT_MAX)]
QueueBytes = Annotated[int, msgspec.Meta(ge=QUEUE_UNIT_BYTES, le=INT_MAX)]
BatchQueueBytes = Annotated[int, msgspec.Meta(ge=BATCH_QUEUE_UNIT_BYTES, le=INT_MAX)]
ExportInterval = Annotated[int, msgspec.Meta(ge=INTERVAL_MS_MIN, le=INT_MAX)]
TEXT_LENGTH_MAX = 4096
_CONTROL = re.compile("[\x00-\x1f\x7f]")


class Secret(str):
    """A text that is shown to nobody."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(HIDDEN if self else "")


HIDDEN = "(hidden)"


class Hearer(Enum):
    """A part of the broker that is told when a setting changes; broker/server.py connects each with what it does."""

    MESSAGES = auto()
    REPLIES = auto()
    TOPICS = auto()
    FLUSH = auto()
    TRANSACTIONS = auto()
    FAST_FAILURE = auto()
    REPLICATION = auto()


Live = tuple[Hearer, ...]
# Of a setting that is read each time it is used: it may change, and nobody has to hear of it.
AT_USE: Live = ()
T = TypeVar("T")
DECLARED: dict[str, tuple[str, Live | None]] = {}


def setting(key: str, default: T, *, unit: str = "", live: Live | None = None) -> T:
    """Declare a setting by its key in broker.conf.

    `unit`: the unit of the value in broker.conf (the field's own unit is the ending of the field's name); `live`: the
    parts that are told of a change while the broker runs, None for a setting that needs a restart.
    """
    DECLARED[key] = unit, live
    field: T = msgspec.field(name=key, default=default)
    return field


class Setting(NamedTuple):
    """One setting as declared. `name`: its field; `type`: bool, str or a number with its bounds."""

    key: str
    name: str
    type: Any
    default: Any
    unit: str
    live: Live | None

    @property
    def _factor(self) -> int:
        """The number of the field's units in one of broker.conf's."""
        return 1000 if self.unit == "s" and self.name.endswith("_ms") else 1

    @property
    def is_text(self) -> bool:
        """Tell whether its values are texts."""
        return self.type in (str, Secret)

    def shown_of(self, settings: msgspec.Struct) -> str:
        """Return the value as it is shown to operators."""
        text = self.text_of(settings)
        return HIDDEN if text and self.type is Secret else text

    def text_of(self, settings: msgspec.Struct) -> str:
        """Return the value as it stands in broker.conf."""
        value = getattr(settings, self.name)
        if isinstance(value, bool):
            return str(value).lower()
        return str(value // self._factor if self._factor > 1 else value)

    def value_of(self, text: str, key: str = "") -> Any:
        """Return the field's value for broker.conf's text. Raises ConfigError naming the key and the valid values."""
        key = key or self.key
        if self.type is bool:
            return truth_of(key, text)
        if self.is_text:
            if len(text) > TEXT_LENGTH_MAX or _CONTROL.search(text):
                told = key if self.type is Secret else f"{key}={shown(text)!r}"
                raise ConfigError(
                    f"{told}: a text of at most {TEXT_LENGTH_MAX} characters is needed, none of them a"
                    " control character"
                )
            return self.type(text)
        _, meta = get_args(self.type)
        return number_of(key, text, -(-meta.ge // self._factor), meta.le // self._factor) * self._factor
