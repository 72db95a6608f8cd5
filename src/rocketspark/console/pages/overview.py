"""The first page: the brokers with their figures, and what an operator should look at."""

from __future__ import annotations

from starlette.responses import Response

from rocketspark import machine
from rocketspark.admin.broker_states import BrokerFigures
from rocketspark.console.call import Call, Failed, together
from rocketspark.console.cluster.sampler import figures, lags, sample
from rocketspark.console.routes import page
from rocketspark.model.text import whole_number

# As of RocketMQ's brokers, which delete by force above the second.
DISK_WARN, DISK_BAD = 0.75, 0.85
MASTERS_MAX = 8


async def overview(call: Call) -> Response:
    """The brokers of the cluster."""
    brokers, groups, sets = await together(
        figures(call.view),
        call.attempt(lags(call.view)),
        call.attempt(call.read("replica_sets", lambda admin: admin.replica_sets(), 5.0)),
    )
    masters = [each for each in brokers if each.broker_id == 0]
    return call.page(
        "overview.html",
        brokers=brokers,
        groups=groups,
        sets={} if isinstance(sets, Failed) else sets,
        alarms=alarms(brokers),
        now=sample(brokers, [] if isinstance(groups, Failed) else groups),
        now_s=machine.time_ns() / 1e9,
        in_today=sum(each.in_today for each in masters),
        answering=sum(1 for each in brokers if not each.error),
        clusters=len({each.cluster for each in brokers}),
        masters=[f"put_rate:{each.broker_name}" for each in masters[:MASTERS_MAX]],
        master_names=[each.broker_name for each in masters[:MASTERS_MAX]],
    )


def alarms(brokers: list[BrokerFigures]) -> list[tuple[bool, str]]:
    """Return what an operator should look at, as (whether it is grave, text)."""
    told = []
    with_master = {(each.cluster, each.broker_name) for each in brokers if each.broker_id == 0}
    for each in brokers:
        name = f"{each.broker_name} at {each.address}"
        if each.error:
            told.append((True, f"{name} does not answer: {each.error}"))
            continue
        if (each.cluster, each.broker_name) not in with_master:
            told.append((True, f"{each.broker_name} has no master: nothing can be sent to it"))
        if each.active is False:
            told.append((True, f"{name} takes no part: it is not active"))
        if each.disk_used >= DISK_WARN:
            more = "; messages are deleted before their time" if each.disk_used >= DISK_BAD else ""
            told.append((each.disk_used >= DISK_BAD, f"the disk of {name} is {each.disk_used:.0%} full{more}"))
        if aside := whole_number(each.table.get("quarantinedMessages")):
            told.append((False, f"{name} set {aside} messages aside that it could not deliver: see Quarantine"))
        if failed := whole_number(each.table.get("putMessageFailedTimes")):
            told.append((False, f"{name} could not store {failed} messages since it started"))
    return told


ROUTES = [page("/", overview)]
