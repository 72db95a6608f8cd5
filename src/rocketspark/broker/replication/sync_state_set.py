"""The in-sync set of a master under a controller, and up to where its members hold the log. Pure: times are handed in.

Rule: until the controller answered, the set before and all that was asked for count together. RocketMQ 5.5.0 drops a
lost member at once; a send is then acknowledged with fewer copies than the controller may elect from.
"""

from __future__ import annotations

from collections.abc import Mapping, Set


class SyncStateSet:
    """Ids of the replicas that may become master without loss, this one among them.

    `members`, `epoch`: as the controller said last; `wanted`: the set it is to be asked for. Whoever asks does so with
    one set at a time and, without an answer, again.
    """

    def __init__(self, own_id: int) -> None:
        self.own_id = own_id
        self.members: frozenset[int] = frozenset({own_id})
        self.epoch = 0
        self.wanted: frozenset[int] | None = None
        # All that it was asked for since its last answer: any of it may have been accepted.
        self._unanswered: frozenset[int] = frozenset()
        # When each slave last held all there was.
        self._caught_up_s: dict[int, float] = {}

    @property
    def all_members(self) -> frozenset[int]:
        """Those whose copy counts: the set and the one asked for together."""
        return self.members | self._unanswered

    @property
    def size(self) -> int:
        """The larger of the set and the one asked for (rule: inSyncReplicasNums, 5.5.0)."""
        return max(len(self.members), len(self.wanted or ()))

    def begin(self, members: Set[int], epoch: int, now_s: float) -> None:
        """This broker takes office with the controller's set. Each member has time to connect before it is dropped."""
        self.members, self.epoch = frozenset(members) | {self.own_id}, epoch
        self.refused()
        self._caught_up_s = {member: now_s for member in self.members if member != self.own_id}

    def adopt(self, members: Set[int], epoch: int) -> bool:
        """Take what the controller says, as its answer or by itself; False if it is no news."""
        if epoch <= self.epoch:
            return False
        self.members, self.epoch = frozenset(members), epoch
        self.refused()
        return True

    def refused(self) -> None:
        """The controller said that the set stays as it is. After no answer at all it may have changed."""
        self.wanted, self._unanswered = None, frozenset()

    def doubtful(self) -> None:
        """The controller refused, and its set may be another than the one known: whoever was asked for counts still."""
        self.wanted = None

    def caught_up(self, replica_id: int, at_s: float) -> None:
        """A slave held all there was at that time."""
        self._caught_up_s[replica_id] = max(at_s, self._caught_up_s.get(replica_id, at_s))

    def joined(self, replica_id: int, position: int, *, confirmed: int, epoch_start: int) -> frozenset[int] | None:
        """Return the set to ask for after a report of a slave that is no learner; None if nothing changes.

        It joins once it holds all that is confirmed and begins to hold what this master wrote.
        """
        asked = self.members if self.wanted is None else self.wanted
        if replica_id in asked or position < confirmed or position < epoch_start:
            return None
        return self._ask(asked | {replica_id})

    def lost(self, replica_id: int) -> frozenset[int] | None:
        """Return the set to ask for after a slave's connection ended; None if it is no member."""
        asked = self.members if self.wanted is None else self.wanted
        return self._ask(asked - {replica_id}) if replica_id in asked and replica_id != self.own_id else None

    def overdue(self, now_s: float, lag_max_s: float) -> frozenset[int] | None:
        """Return the set to ask for without those that were not caught up for so long, or never; None if all were."""
        asked = self.members if self.wanted is None else self.wanted
        times = self._caught_up_s
        kept = frozenset(
            member
            for member in asked
            if member == self.own_id or (member in times and now_s - times[member] <= lag_max_s)
        )
        return self._ask(kept) if kept != asked else None

    def _ask(self, wanted: frozenset[int]) -> frozenset[int] | None:
        if wanted == self.members:
            self.wanted = None
            return None
        self.wanted = wanted
        self._unanswered |= wanted
        return wanted


def master_confirmed(
    members: Set[int], own_id: int, acked: Mapping[int, int], *, end_position: int, before: int, all_ack: bool
) -> int:
    """Return up to where every member of the set holds the master's log.

    `acked`: by id, of the slaves that are connected, 0 or less of one that did not report yet; `before`: the position
    so far, which stays while a member is away or did not report (Java passes over those that did not). Without
    `all_ack` (allAckInSyncStateSet) it is the log's end (5.5.0).
    """
    others = members - {own_id}
    if not others or not all_ack:
        return end_position
    if not others <= acked.keys():
        return before
    return min(end_position, *(acked[member] if acked[member] > 0 else before for member in others))
