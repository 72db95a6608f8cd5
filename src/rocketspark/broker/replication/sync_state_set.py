"""The in-sync set of a master under a controller, and up to where its members hold the log. Pure: times are handed in.

Rule: until the controller answered, the set before and all that was asked for count together. RocketMQ 5.5.0 drops a
lost member at once; a send is then acknowledged with fewer copies than the controller may elect from.
"""

from __future__ import annotations

from collections.abc import Mapping, Set


class SyncStateSet:
    """Ids of the replicas that may become master without loss, this one among them.

    `members`, `epoch`: as the controller said last; `target`: the set as it should be. Whoever asks does so with one
    request at a time, in the order of one connection, until an answer settles it: see `is_open`.
    """

    def __init__(self, own_id: int) -> None:
        self.own_id = own_id
        self.members: frozenset[int] = frozenset({own_id})
        self.target = self.members
        self.epoch = 0
        # All that it was or will be asked for since its last answer: any of it may have been accepted.
        self._unanswered: frozenset[int] = frozenset()
        self._is_refused = False
        # When each slave last held all there was.
        self._caught_up_s: dict[int, float] = {}

    @property
    def all_members(self) -> frozenset[int]:
        """Those whose copy counts: the set and all that was asked for together."""
        return self.members | self._unanswered

    @property
    def size(self) -> int:
        """How many these are: what the controller may elect from counts, not what is wanted (5.5.0)."""
        return len(self.all_members)

    @property
    def is_open(self) -> bool:
        """True while the controller has to be asked: for another set, or for the one that it has."""
        return self.target != self.members or bool(self._unanswered)

    @property
    def wanted(self) -> frozenset[int] | None:
        """The set to ask for; None if nothing is to be asked for, or first which one the controller has."""
        return None if self._is_refused or self.target == self.members else self.target

    def begin(self, members: Set[int], epoch: int, now_s: float) -> None:
        """This broker takes office with the controller's set. Each member has time to connect before it is dropped."""
        self.target = frozenset(members) | {self.own_id}
        self._take(self.target, epoch)
        self._caught_up_s = {member: now_s for member in self.members if member != self.own_id}

    def adopt(self, members: Set[int], epoch: int) -> bool:
        """Take what the controller says, as its answer or by itself; False if it is no news."""
        if epoch <= self.epoch:
            return False
        # Whatever is on its way to it names an older epoch, and is taken no more.
        self._take(frozenset(members), epoch)
        return True

    def settle(self, members: Set[int], epoch: int) -> bool:
        """Take what the controller said when it was asked after all that had no answer; False if it is of before."""
        if epoch >= self.epoch:
            self._take(frozenset(members), epoch)
        return epoch >= self.epoch

    def _take(self, members: frozenset[int], epoch: int) -> None:
        self.members, self.epoch, self._is_refused = members, epoch, False
        # What is to be asked for next counts already.
        self._unanswered = self.target if self.target != members else frozenset()

    def refused(self) -> None:
        """The controller refused, and may have another set than is known: who was to join reports again."""
        self.target &= self.members
        self._is_refused = True

    def caught_up(self, replica_id: int, at_s: float) -> None:
        """A slave held all there was at that time."""
        self._caught_up_s[replica_id] = max(at_s, self._caught_up_s.get(replica_id, at_s))

    def joined(self, replica_id: int, position: int, *, confirmed: int, epoch_start: int) -> frozenset[int] | None:
        """Return the set as it should be after a report of a slave that is no learner; None if nothing changes.

        It joins once it holds all that is confirmed and begins to hold what this master wrote.
        """
        if replica_id in self.target or position < confirmed or position < epoch_start:
            return None
        return self._want(self.target | {replica_id})

    def lost(self, replica_id: int) -> frozenset[int] | None:
        """Return the set as it should be after a slave's connection ended; None if it is no member."""
        if replica_id not in self.target or replica_id == self.own_id:
            return None
        return self._want(self.target - {replica_id})

    def overdue(self, now_s: float, lag_max_s: float) -> frozenset[int] | None:
        """Return it without those that were not caught up for so long, or never; None if all were."""
        times = self._caught_up_s
        kept = frozenset(
            member
            for member in self.target
            if member == self.own_id or (member in times and now_s - times[member] <= lag_max_s)
        )
        return self._want(kept) if kept != self.target else None

    def _want(self, target: frozenset[int]) -> frozenset[int]:
        self.target = target
        self._unanswered |= target
        return target


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
