"""The promises, held against a history: each rule is a function of a history, and returns what breaks it.

Rule: what a client was not told may have happened or not; only what was acknowledged with SEND_OK is promised.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from tests.simulation.histories import History, Place, Read, Sent, Stored

# A clock jumps, a broker was down, a queue moved: so late may a timer message be that is not lost.
EARLY_MS = 1000
# What counts as the same moment: a reply is on its way while a queue's state is another.
SLACK_S = 0.05
SETTLED_WITHIN_S = 120.0
# So long after something changed all goes again: a master that is gone is missed, another elected, routes known.
HEALED_S = 15.0
ROUTES_S = 22.0
SERVERS = ("namesrv", "controller", "broker")
# Sends that nothing but a trouble keeps from an answer: to topics and by users that nobody deletes.
ANSWERED = ("send", "keyed", "batch", "delay", "timer", "transaction", "pop")
# A message that was acknowledged is read within so long by who waits for it.
SOON_S = 5.0
# Topics of ours; those of parts have rules of their own for what their groups are given.
ONCE = ("t-", "p-")
PART = "p-"
# Where the acknowledgement tells of another topic than the one that readers see.
LATER = ("delay", "timer", "transaction")
# Topics that are deleted and made anew: an offset is another message then.
LIVES = "p-life"
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
WHEEL = "rmq_sys_wheel_timer"


class View:
    """A history with what rules ask for again and again."""

    def __init__(self, history: History) -> None:
        self.history = history
        # All replicas hold the same, which a rule checks: here are the records of the longest.
        self.records: list[Stored] = max(history.stored.values(), key=len, default=[])
        # Where the log begins now: the files before that went.
        self.begin = self.records[0].position if self.records else 0
        self.at: dict[Place, list[Stored]] = defaultdict(list)
        self.of_body: dict[tuple[str, str], list[Stored]] = defaultdict(list)
        for stored in self.records:
            self.at[stored.topic, stored.queue, stored.offset].append(stored)
            self.of_body[stored.topic, body_of(stored.body)].append(stored)
        self.sent_of: dict[str, Sent] = {body: sent for sent in history.sent for body in sent.bodies}

    def acknowledged(self, *ways: str) -> Iterator[tuple[Sent, int, str]]:
        """Yield each body of a send with SEND_OK, and which of its send it is."""
        for sent in self.history.sent:
            if sent.is_ok and (not ways or sent.way in ways):
                for part, body in enumerate(sent.bodies):
                    yield sent, part, body

    def is_calm(self, begin_s: float, end_s: float, *, but: str = "") -> bool:
        """Tell whether nothing was wrong between two times; machines whose name begins with `but` do not count."""
        return not any(
            begin <= end_s and end >= begin_s and not (but and name.startswith(but))
            for begin, end, name, _ in self.history.troubles
        )

    def is_healed(self, begin_s: float, end_s: float) -> bool:
        """Tell whether no server had a trouble between two times and HEALED_S before, but for a split that goes on."""
        for begin, end, name, what in self.history.troubles:
            if not name.startswith(SERVERS):
                continue  # A member of a group that dies is nobody's trouble but its own.
            # Who hears a master that is none any more asks for its route anew each 30 s.
            since_s = begin + HEALED_S + ROUTES_S if what == "split" else 1e9
            if begin <= end_s and end >= begin_s - HEALED_S and not (since_s < begin_s and end_s < end):
                return False
        return True

    def due_s(self, at_s: float, after_s: float) -> float:
        """Return when what a broker noted at `at_s` is due at the earliest, `after_s` later by its clock.

        A clock that stood then noted the time at which it had stopped, and is set right when it goes on.
        """
        stood = [
            max(end, begin + after_s)
            for begin, end, name in self.history.stands
            if name.startswith("broker") and begin <= at_s <= end
        ]
        return min([at_s + after_s, *stood])

    @property
    def are_clocks_wrong(self) -> bool:
        """Whether a machine's clock told another time than the true one."""
        jumped = any(fault["what"] in ("clock", "drift") for fault in self.history.faults)
        return jumped or bool(self.history.stands)

    @property
    def hold_pops_for_long(self) -> bool:
        """Whether a machine's clock was set back: what was popped then may be out of sight for so long."""
        return any(fault["what"] == "clock" and fault["value"] < -5 for fault in self.history.faults)

    def of_queue(self, topic: str) -> dict[int, list[Stored]]:
        """Return the records of a topic by queue, in the order of their offsets."""
        found: dict[int, list[Stored]] = defaultdict(list)
        for stored in self.records:
            if stored.topic == topic:
                found[stored.queue].append(stored)
        return {queue: sorted(records, key=lambda one: one.offset) for queue, records in found.items()}


def body_of(content: str) -> str:
    return content.split(" ", 1)[0]


Rule = Callable[[View], Iterable[str]]
RULES: dict[str, Rule] = {}


def rule(function: Rule) -> Rule:
    RULES[function.__name__.replace("_", " ")] = function
    return function


# -- sends -------------------------------------------------------------------------------------------------------


@rule
def acknowledged_is_there(view: View) -> Iterator[str]:
    """What was acknowledged lies where the acknowledgement said."""
    for sent, part, body in view.acknowledged():
        assert sent.place is not None
        topic, queue, offset = sent.place
        if sent.way in LATER or topic.startswith(LIVES) or sent.position < view.begin:
            continue
        found = [body_of(stored.body) for stored in view.at.get((topic, queue, offset + part), [])]
        if found != [body]:
            yield f"{body} was acknowledged at {topic} {queue} {offset + part}, where {found or 'nothing'} is"


@rule
def a_place_means_one_message(view: View) -> Iterator[str]:
    """A queue's offset is one message, for whoever reads it whenever, and for whoever was told of it."""
    told: dict[Place, tuple[str, str]] = {}
    for place, found in view.at.items():
        if place[0].startswith(LIVES):
            continue
        if len(found) > 1:
            yield f"{place} is {[stored.body[:20] for stored in found]} in one log"
        told[place] = body_of(found[0].body), "is stored"
    for read in view.history.reads:
        if "pop" in read.how or read.place[0].startswith(("%", LIVES)):
            continue
        body, who = told.setdefault(read.place, (read.body, f"{read.client} read"))
        if body != read.body:
            yield f"{read.place}: {who} {body}, {read.client} read {read.body} at {read.at_s:.3f}"


@rule
def sent_once_is_stored_once(view: View) -> Iterator[str]:
    """A send that no client repeated is stored at most once."""
    for (topic, body), found in view.of_body.items():
        sent = view.sent_of.get(body)
        if sent is None or not topic.startswith(ONCE) or len(found) < 2:
            continue
        if sent.attempts == 1 and sent.way not in LATER:
            yield f"{body} of one attempt is stored {len(found)} times: {[stored.position for stored in found]}"


@rule
def nothing_comes_from_nowhere(view: View) -> Iterator[str]:
    """Each message of our topics was sent."""
    for stored in view.records:
        if stored.topic.startswith(ONCE) and body_of(stored.body) not in view.sent_of:
            yield f"{stored.topic} {stored.queue} {stored.offset} holds {stored.body[:40]!r}, which nobody sent"


def _in_order(sent: Sent) -> tuple[float, int]:
    return sent.began_s, int(sent.bodies[0].partition(".")[2])


@rule
def keys_keep_their_order(view: View) -> Iterator[str]:
    """Messages of one key, sent one after the other, lie in one queue in that order."""
    by_key: dict[str, list[Sent]] = defaultdict(list)
    for sent, _, _ in view.acknowledged("keyed"):
        by_key[sent.key].append(sent)
    for key, sends in by_key.items():
        for before, after in pairwise(sorted(sends, key=_in_order)):
            assert before.place is not None
            assert after.place is not None
            if before.place[1] != after.place[1]:
                continue  # A route had no queue of a broker for a while: the key's queue is another then.
            if after.place[2] <= before.place[2]:
                yield f"{key}: {after.bodies[0]} at {after.place} was sent after {before.bodies[0]} at {before.place}"


@rule
def the_log_is_in_the_order_of_time(view: View) -> Iterator[str]:
    """What was sent after another send was answered is after it in the log: so no two masters acknowledge at once."""
    sends = sorted((sent for sent in view.history.sent if sent.is_ok), key=lambda sent: sent.began_s)
    ended = sorted(sends, key=lambda sent: sent.ended_s)
    ends = [sent.ended_s for sent in ended]
    # The furthest of those that ended by then.
    furthest: list[Sent] = []
    for sent in ended:
        furthest.append(max((furthest[-1], sent), key=lambda s: s.position) if furthest else sent)
    for sent in sends:
        number = bisect_right(ends, sent.began_s - 1e-6) - 1
        if number >= 0 and furthest[number].position >= sent.position:
            before = furthest[number]
            yield (
                f"{sent.bodies[0]} at {sent.position} of {sent.host} began at {sent.began_s:.3f}, after"
                f" {before.bodies[0]} at {before.position} of {before.host} was answered at {before.ended_s:.3f}"
            )


@rule
def no_send_waits_for_a_clock_that_stands(view: View) -> Iterator[str]:
    """While a clock stands, and nobody was killed or cut off lately, every send is acknowledged and soon read.

    A broker that no other server hears may stay so: by then another is elected, as nothing that waits goes by the wall.
    """
    history = view.history
    first_read: dict[str, float] = {}
    for read in history.reads:
        if read.group == "follow":
            first_read.setdefault(read.body, read.at_s)
    for begin_s, end_s, node in history.stands:
        for sent in (sent for sent in history.sent if sent.way in ANSWERED):
            if not begin_s <= sent.began_s <= sent.ended_s <= end_s or not view.is_healed(sent.began_s, sent.ended_s):
                continue
            if not sent.is_ok:
                yield f"{sent.bodies[0]} of {sent.began_s:.3f} had {sent.error or sent.status}; {node}'s clock stood"
            until_s = sent.ended_s + SOON_S
            if sent.is_ok and sent.way == "send" and until_s < end_s and view.is_healed(sent.began_s, until_s):
                read_s = first_read.get(sent.bodies[0], 1e9)
                if read_s > until_s:
                    yield f"{sent.bodies[0]} of {sent.began_s:.3f} was read at {read_s:.3f}; {node}'s clock stood"


# -- reading -----------------------------------------------------------------------------------------------------


def _sessions(view: View) -> dict[tuple[str, str, int], list[Read]]:
    found: dict[tuple[str, str, int], list[Read]] = defaultdict(list)
    for read in view.history.reads:
        if read.session and not read.group.startswith(PART):
            found[read.session, read.place[0], read.place[1]].append(read)
    return found


@rule
def reads_go_on(view: View) -> Iterator[str]:
    """Who holds a queue reads each of its offsets, one after the other."""
    for (session, topic, queue), reads in _sessions(view).items():
        for before, after in pairwise(reads):
            if after.place[2] <= before.place[2]:
                yield f"{session} read {topic} {queue} at {before.place[2]}, then back at {after.place[2]}"
            elif after.place[2] > before.place[2] + 1:
                yield f"{session} read {topic} {queue} at {before.place[2]}, then only {after.place[2]}"


@rule
def groups_read_everything(view: View) -> Iterator[str]:
    """What is in a queue at the end, each group that reads the topic was given."""
    read: dict[str, set[tuple[str, str]]] = defaultdict(set)
    topics: dict[str, set[str]] = defaultdict(set)
    for one in view.history.reads:
        if one.group.startswith(PART):
            continue
        topic = one.place[0]
        if topic.startswith("%RETRY%"):
            topic = "t-pop" if one.how == "pop" else "t-plain"
        read[one.group].add((topic, one.body))
        topics[one.group].add(topic)
    for group, seen in read.items():
        if group == "pop" and view.hold_pops_for_long:
            continue
        for (topic, body), found in view.of_body.items():
            if topic in topics[group] and (topic, body) not in seen:
                yield f"{group} was never given {body} of {topic} at {[(s.queue, s.offset) for s in found]}"


@rule
def commits_are_of_what_was_given(view: View) -> Iterator[str]:
    """A group's offset is never beyond what its members were given; at the end it is all of it."""
    given: dict[tuple[str, str, int], int] = {}
    for read in view.history.reads:
        key = read.group, read.place[0], read.place[1]
        given[key] = max(given.get(key, 0), read.place[2] + 1)
    for committed in view.history.committed:
        until = given.get((committed.group, committed.topic, committed.queue), 0)
        if committed.offset != until:
            yield (
                f"{committed.group} committed {committed.offset} of {committed.topic} {committed.queue},"
                f" and was given what is before {until}"
            )


@rule
def popped_is_out_of_sight(view: View) -> Iterator[str]:
    """Nobody gets a popped message again before its invisible time is over, nor after it was acknowledged.

    Held only where no fault came between: a broker that dies may forget who has what, and gives it out again.
    """
    acked: dict[str, list[tuple[float, float | None]]] = defaultdict(list)
    for ack in view.history.acked:
        if ack.is_ok:
            acked[ack.body].append((ack.ended_s, ack.invisible_s))
    pops: dict[str, list[Read]] = defaultdict(list)
    for read in view.history.reads:
        if read.how == "pop":
            pops[read.body].append(read)
    troubles = view.history.troubles_s
    sent = {body: one.attempts for body, one in view.sent_of.items()}
    for body, reads in pops.items():
        if sent.get(body, 2) > 1 and len(view.of_body.get(("t-pop", body), ())) > 1:
            continue  # A producer's second attempt: two messages with one body.
        for before, after in pairwise(sorted(reads, key=lambda read: read.at_s)):
            # Since a broker died there may be two of it: in its queue, and in the one where it waits to come again.
            since_s = (before if before.place == after.place else reads[0]).asked_s - 1
            if any(since_s <= at <= after.at_s for at in troubles):
                continue
            until = view.due_s(before.asked_s, before.invisible_s)
            for at, invisible_s in acked[body]:
                if before.at_s <= at <= after.at_s:
                    until = 1e12 if invisible_s is None else view.due_s(at, invisible_s) - SLACK_S
            if after.at_s < until - SLACK_S:
                yield f"{body} was popped at {before.at_s:.3f} by {before.client}, again at {after.at_s:.3f}"


# -- messages of later -------------------------------------------------------------------------------------------


@rule
def later_messages_come_once_and_in_time(view: View) -> Iterator[str]:
    """A delayed or timer message is stored in its topic once, not before its time; one that was recalled never."""
    jumped = view.are_clocks_wrong
    recalled = {one.body: one for one in view.history.recalled}
    first_read: dict[tuple[str, str], Read] = {}
    for read in view.history.reads:
        first_read.setdefault((read.place[0], read.body), read)
    for sent in view.history.sent:
        if sent.way not in ("delay", "timer"):
            continue
        topic, body = "t-delay" if sent.way == "delay" else "t-timer", sent.bodies[0]
        count = len(view.of_body.get((topic, body), ()))
        recall = recalled.get(body)
        # A send that was repeated has two copies of two times; the handle is that of the one that was answered.
        copies = len(view.of_body.get((WHEEL, body), ())) if sent.attempts > 1 else 1
        if recall is not None and recall.is_ok and count >= max(copies, 1):
            yield f"{body} was recalled at {recall.ended_s:.3f} and came"
        # One that was due by a clock that was ahead may be due later than the run lasts.
        if sent.is_ok and recall is None and count == 0 and not jumped:
            yield f"{body}, due at {sent.due_ms}, never came to {topic}"
        if count > 1 and sent.attempts == 1:
            yield f"{body}, due at {sent.due_ms}, came {count} times to {topic}"
        read = first_read.get((topic, body))
        if read is not None and read.now_ms < sent.due_ms - EARLY_MS and not jumped:
            yield f"{body}, due at {sent.due_ms}, was read at {read.now_ms}, {sent.due_ms - read.now_ms} ms early"


# -- transactions ------------------------------------------------------------------------------------------------


@rule
def transactions_end_one_way(view: View) -> Iterator[str]:
    """What was committed is there, once for each half; what was rolled back never is; none stays open."""
    for sent in view.history.sent:
        if sent.way != "transaction":
            continue
        body = sent.bodies[0]
        count, halves = (len(view.of_body.get((topic, body), ())) for topic in ("t-trans", HALF))
        outcome = {ended.outcome for ended in view.history.ended if ended.body == body} or {""}
        if sent.is_ok and outcome == {"COMMIT"} and not count:
            yield f"{body} was committed and is not there"
        if outcome == {"ROLLBACK"} and count:
            yield f"{body} was rolled back and is there"
        if sent.attempts == 1 and count > 1:
            yield f"{body} is there {count} times, of {halves} half messages"


# -- replicas, and the end ---------------------------------------------------------------------------------------


@rule
def replicas_are_equal(view: View) -> Iterator[str]:
    """After all is mended the logs are the same, byte by byte."""
    logs = sorted(view.history.logs.items())
    for (one, (first, log)), (other, (other_first, other_log)) in pairwise(logs):
        begin = max(first, other_first)
        log, other_log = log[begin - first :], other_log[begin - other_first :]
        if log != other_log:
            at = next((n for n, pair in enumerate(zip(log, other_log, strict=False)) if pair[0] != pair[1]), -1)
            yield f"{one} and {other} end at {begin + len(log)} and {begin + len(other_log)}; first other byte: {at}"


@rule
def it_settles(view: View) -> Iterator[str]:
    """Once nothing more is done to it the cluster is whole, and everything is read, within a bound."""
    took_s = view.history.settled_s - view.history.faults_end_s
    if not view.history.settled_s or took_s > SETTLED_WITHIN_S:
        yield f"it took {took_s:.0f} s after the last fault" if view.history.settled_s else "it never did"


def broken(history: History) -> dict[str, list[str]]:
    """Return what breaks each rule that is broken."""
    view = View(history)
    found = {name: list(check(view)) for name, check in RULES.items()}
    return {name: lines for name, lines in found.items() if lines}


class PromiseBroken(AssertionError):
    """A rule of `checker` does not hold."""


def raise_for(found: dict[str, list[str]]) -> None:
    """Raise PromiseBroken, which names each rule that `broken` found, if it found one."""
    if found:
        told = [f"{name} ({len(lines)}): " + "; ".join(lines[:4]) for name, lines in found.items()]
        raise PromiseBroken("\n".join(told))
