"""What a pull consumer handed out: what is taken, what counts as done, what iterators hold back."""

from __future__ import annotations

from typing import Any, cast

from tests.unit.client.consumer.test_puller import messages

from rocketspark.client.consumer.handed_out import HandedOut
from rocketspark.client.consumer.puller import ProcessQueue, Puller


class Reader:
    """A puller as far as it is looked at here, which fetched messages from offset 0 on."""

    def __init__(self, handed_out: HandedOut, count: int) -> None:
        self.process_queue = ProcessQueue(0, count_max=1000, bytes_max=1 << 20)
        self.dropped = False
        self.barred: int | None = None
        self.done = 0
        self.consumed_ms = 0
        made = messages(*range(count))
        self.process_queue.add(made)
        self.process_queue.next_offset = count
        handed_out.fetched.append((self.puller, made))

    @property
    def puller(self) -> Puller:
        return cast(Puller, self)


def offsets(runs: Any) -> list[int]:
    return [message.queue_offset for _, part in runs for message in part]


def test_so_many_are_taken_and_the_rest_stays_in_front() -> None:
    handed_out = HandedOut()
    Reader(handed_out, 3), Reader(handed_out, 2)
    assert offsets(handed_out.take(2)) == [0, 1]
    assert offsets(handed_out.take(2)) == [2, 0]
    assert offsets(handed_out.take(2)) == [1]
    assert handed_out.take(2) == []


def test_nothing_is_taken_of_a_queue_that_was_given_up() -> None:
    handed_out = HandedOut()
    gone, here = Reader(handed_out, 2), Reader(handed_out, 1)
    gone.dropped = True
    assert [run[0] for run in handed_out.take(10)] == [here.puller]


def test_only_what_was_handed_out_is_done_once_it_is_settled() -> None:
    handed_out = HandedOut()
    reader = Reader(handed_out, 3)
    handed_out.take(2)
    assert handed_out.done(reader.puller) == 0
    handed_out.settle([reader.puller])
    assert handed_out.done(reader.puller) == 2


def test_nothing_from_a_bar_on_is_done() -> None:
    handed_out = HandedOut()
    reader = Reader(handed_out, 3)
    handed_out.take(3)
    reader.barred = 1
    handed_out.settle([reader.puller])
    assert handed_out.done(reader.puller) == 1


def test_an_iterator_holds_back_what_it_did_not_come_to() -> None:
    handed_out = HandedOut()
    reader = Reader(handed_out, 3)
    portion = handed_out.lend(handed_out.take(3))
    given = iter(portion)
    next(given), next(given)
    handed_out.settle([reader.puller])
    assert handed_out.done(reader.puller) == 1
    assert offsets(handed_out.take_back(portion)) == [2]
    assert handed_out.take_back(portion) == []
    assert handed_out.lent == []


def test_an_iterator_that_is_through_holds_nothing() -> None:
    handed_out = HandedOut()
    reader = Reader(handed_out, 3)
    portion = handed_out.lend(handed_out.take(3))
    assert len(list(portion)) == 3
    handed_out.settle([reader.puller])
    assert (handed_out.done(reader.puller), handed_out.lent) == (3, [])


def test_what_one_iterator_gave_back_is_not_done_since_another_holds_later_ones() -> None:
    handed_out = HandedOut()
    reader = Reader(handed_out, 4)
    first = handed_out.lend(handed_out.take(2))
    handed_out.lend(handed_out.take(2))
    reader.barred = handed_out.take_back(first)[0][1][0].queue_offset
    assert handed_out.done(reader.puller) == 0
