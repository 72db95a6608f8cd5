"""Bodies of QUERY_ASSIGNMENT: a member asks a broker which queues it reads, and how."""

from __future__ import annotations

from rocketspark.protocol.json.bodies import Body, QueueBody


class AssignmentQuery(Body):
    """Body of QUERY_ASSIGNMENT (400)."""

    topic: str
    consumer_group: str
    client_id: str = ""
    strategy_name: str = ""
    message_model: str = "CLUSTERING"


class Assigned(Body):
    """One queue of a member. `mode`: PULL or POP; queue -1 is all queues of its broker."""

    message_queue: QueueBody
    mode: str = "PULL"


class Assignment(Body, omit_defaults=True):
    """Reply to QUERY_ASSIGNMENT; without a list the member keeps what it has."""

    message_queue_assignments: list[Assigned] | None = None
