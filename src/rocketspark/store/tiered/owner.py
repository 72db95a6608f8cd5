"""Which store writes a broker's tier: a file in the tier names it, and a mark in the store says that it does so.

Rule: one store writes. Another one takes the tier over once the owner released it, or gave no sign of life for
`LEASE_S`. Each time that a store takes it has a number of its own, higher than all before. A tier without the file,
though this store wrote one, is not there: a folder that is not mounted, say.
"""

from __future__ import annotations

import json
import logging
import os
import platform

from rocketspark import machine
from rocketspark.errors import StoreUnwritable
from rocketspark.model.text import shown
from rocketspark.store.files import config_files
from rocketspark.store.files.system_calls import OsFiles
from rocketspark.store.tiered.segments import SECTOR_BYTES, SegmentStore, TierTaken

_log = logging.getLogger("rocketspark.store")
# A name that no topic can have.
OWNER_FILE = "owner.json"
MARK_FILE = "tieredStoreOwner.json"
# The owner signs so often, and has lost the tier after so long without a sign.
SIGN_S, LEASE_S = 10.0, 30.0
# An owner that could not sign for this share of it writes no more, as clocks do not all go at one pace.
KEPT_SHARE = 0.8


class TierOwner:
    """The right of one store to write a broker's tier. `folder`: of the broker, in the tier; `place`: where the tier
    is. For one thread.
    """

    def __init__(self, root: str, place: str, folder: str, segments: SegmentStore, files: OsFiles) -> None:
        self._key = f"{folder}/{OWNER_FILE}"
        self._place = place
        self._mark = f"{root}/config/{MARK_FILE}"
        self._where = f"{platform.node()}:{os.path.abspath(root)}"
        self._segments = segments
        self._files = files
        self._id = ""
        self._sign = 0
        # Of its sign when it took the tier: another one each time.
        self.number = 0
        # When the file was looked at, and when it was written: it is looked at more often.
        self._looked_s: float | None = None
        self._signed_s: float | None = None
        # What another owner wrote last, and when that was seen first.
        self._other: tuple[str, int] | None = None
        self._other_since_s = 0.0
        # Whether the other one has signed since.
        self.other_lives = False

    def hold(self) -> None:
        """Take the tier, or keep it; `number` is another one if it was not this store's all the time. Raises TierTaken
        while it is another store's, StoreUnwritable if it is not there.

        It costs something only every few seconds.
        """
        now = machine.monotonic()
        if self._looked_s is not None and now - self._looked_s < SIGN_S / 4:
            return
        if self._is_late(now):
            self._signed_s = None
        table = self._marked()
        if table.get("place") == self._place and self._segments.whole(self._key) is None:
            raise StoreUnwritable(
                f"{self._key} is not in {shown(self._place)}, where this broker has written it: is the tier mounted? To"
                f" begin with an empty tier, stop the broker and remove {self._mark}",
                retriable=True,
            )
        self._id = str(table.get("id") or machine.token_hex(8))
        with self._segments.alone(self._key, is_first=True):
            self._take_or_keep(now)
        if table.get("place") != self._place:
            text = config_files.sealed({"id": self._id, "place": self._place})
            config_files.write(self._mark, text, self._files)
        self._looked_s = now

    def _take_or_keep(self, now: float) -> None:
        name, sign, where = self._found()
        if name and name != self._name:
            self._wait_for(name, sign, where, now)
            _log.warning("the second tier is taken over from the store %s, which gives no sign of life", shown(where))
        if name != self._name or self._signed_s is None or now - self._signed_s >= SIGN_S:
            self._sign = max(self._sign, sign) + 1
            if name != self._name or self._signed_s is None:
                self.number = self._sign
                self._segments.taken(self._sign)
            self._write(self._name)
            # Another one may have found nobody's sign either, and written its own since.
            written, sign, where = self._found()
            if written != self._name:
                self._wait_for(written, sign, where, now)
            self._signed_s = now

    def keep(self, is_alone: bool = False) -> None:
        """Do what `hold` does, but take nothing that was not this store's all the time: raises TierTaken then, too.

        A process was halted, say, and another store may have written meanwhile. `is_alone`: nobody else can write until
        the caller has, so the sign is looked at now: this machine's clock may have been halted, too.
        """
        number = self.number
        if self._signed_s is not None and not self._is_late(machine.monotonic()):
            if is_alone and self._found()[:2] != (self._name, self._sign):
                self._looked_s = None
            self.hold()
            if self.number == number:
                return
        raise TierTaken(
            f"no sign could be written to {self._key} for {LEASE_S * KEPT_SHARE:.0f} seconds, so another store may"
            " have taken the tier over: it is looked at anew",
            retriable=True,
        )

    def _is_late(self, now: float) -> bool:
        return self._signed_s is not None and now - self._signed_s >= LEASE_S * KEPT_SHARE

    def look(self) -> None:
        """Raise StoreUnwritable if no broker has written the tier: it may not be mounted."""
        if self._segments.whole(self._key) is None:
            raise StoreUnwritable(
                f"{self._key} is not in {shown(self._place)}: no master has written there, or the tier is not mounted",
                retriable=True,
            )

    def _found(self) -> tuple[str, int, str]:
        return _decoded(self._segments.whole(self._key) or b"")

    @property
    def _name(self) -> str:
        return f"{self._id}@{self._where}"

    def _marked(self) -> dict[str, object]:
        try:
            found = config_files.unsealed(config_files.read(self._mark) or "{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _wait_for(self, name: str, sign: int, where: str, now: float) -> None:
        if self._other != (name, sign):
            self.other_lives = self._other is not None and self._other[0] == name
            self._other, self._other_since_s = (name, sign), now
        if now - self._other_since_s < LEASE_S:
            self._looked_s = self._signed_s = None
            raise TierTaken(
                f"{self._key} says that the store {shown(where)} writes there: two brokers of one cluster and name need"
                f" tiers of their own; once that one has stopped, this one takes over within {LEASE_S:.0f} seconds",
                retriable=True,
            )

    def _write(self, name: str) -> None:
        text = json.dumps({"owner": name, "sign": self._sign, "store": self._where}).encode()
        # Of one size, so that the next one has room on a full disk, too.
        self._segments.put(self._key, text.ljust(SECTOR_BYTES))

    def release(self) -> None:
        """Let others take the tier at once. Raises StoreFull, StoreUnwritable."""
        if self._signed_s is not None and not self._is_late(machine.monotonic()):
            self._looked_s = self._signed_s = None
            with self._segments.alone(self._key):
                if self._found()[:2] == (self._name, self._sign):
                    self._sign += 1
                    self._write("")


def _decoded(content: bytes) -> tuple[str, int, str]:
    """Return owner, number of the sign, and the owner's store; an empty owner if it was released."""
    try:
        table = json.loads(content)
        return str(table["owner"]), int(table["sign"]), str(table["store"])
    except (ValueError, KeyError, TypeError):
        return "", 0, ""
