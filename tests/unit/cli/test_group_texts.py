"""What servers and clients tell of groups and clients, in tables: escaped, whatever stands in it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.hostile_texts import MARK, TEXTS, unseen

from rocketspark.admin.clients import (
    ClientDetails,
    ClientState,
    ConsumerState,
    GroupMembers,
    Member,
    PoppedQueue,
    ReadQueue,
    Subscribed,
    TopicRates,
)
from rocketspark.admin.offsets import OffsetChange
from rocketspark.admin.progress import GroupLag, GroupState, QueueLag
from rocketspark.cli.commands.admin import client, group
from rocketspark.cli.offset_change_texts import print_changes
from rocketspark.cli.operate import console
from rocketspark.model import MessageQueue

pytestmark = pytest.mark.shows("text from messages is never executed or styled")


@pytest.mark.parametrize("text", TEXTS)
def test_tables_of_groups_and_clients(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    def of(kind: Any, **more: Any) -> Any:
        """A value whose texts are all this one."""
        made = {f.name: text if f.type in (str, "str") else 1 for f in msgspec.structs.fields(kind)}
        return kind(**{**made, **more})

    queue = MessageQueue(text, text, 0)
    subscribed = (of(Subscribed),)
    member = of(Member, brokers=(text,), subscriptions=subscribed, agrees=False)
    state = of(ClientState, brokers=(text,))
    told = of(
        ConsumerState,
        properties={text: text},
        subscriptions=subscribed,
        queues=(of(ReadQueue, queue=queue),),
        popped=(of(PoppedQueue, queue=queue),),
        topics=(of(TopicRates),),
        stacks=text,
    )
    drawn = [
        group._states_table([of(GroupState)]),
        group._lag_table(GroupLag(text, 1.0, (of(QueueLag, queue=queue, client_id=text),))),
        group._members_table(of(GroupMembers, subscriptions=subscribed, members=(member,))),
        group._members_table(of(GroupMembers, subscriptions=(), members=())),
        client._details_text(ClientDetails(text, (state,), (told,), {text: text})),
    ]
    for each in drawn:
        console().print(each)
        out = capsys.readouterr().out
        assert MARK in out
        assert unseen(out, allowed="\n") == set()
        assert "[bold red]" in out if "[bold" in text else True
    print_changes([OffsetChange(text, queue, None, 1, 0, 2)], with_topic=True)
    out = capsys.readouterr().out
    assert MARK in out
    assert unseen(out, allowed="\n") == set()
