"""Who may look at what applications keep: whoever may see the state of a broker, where users log in."""

from __future__ import annotations

from rocketspark.console.call import Call
from rocketspark.console.cluster.sampler import figures
from rocketspark.errors import UsageError


async def may_look(call: Call) -> None:
    """Raise what keeps a user who logged in from the state of every broker; nobody logs in where the cluster asks for
    no keys.
    """
    if call.session is None:
        return
    found = await figures(call.view)
    refused = [each.error for each in found if each.error]
    if len(refused) == len(found):
        raise UsageError(refused[0] if refused else "no broker tells whether you may look at this")
