"""`controllers list|add|remove`: the members of a group of controllers, while they run."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from rocketspark.cli.operate import print_json, print_table
from rocketspark.cli.options import HERE, ClusterAccess, Json, LeftOut

if TYPE_CHECKING:
    from rocketspark.admin.controllers import ControllerGroup

T = TypeVar("T")

app = typer.Typer(help="Who belongs to a group of controllers: list them, add one, remove one.", no_args_is_help=True)

Controllers = Annotated[
    str, typer.Option("--controller", help="Controllers of the group, host:port;host:port: one that runs is enough.")
]
Access = Annotated[ClusterAccess, LeftOut("namesrv", "context")]
DEFAULT = "127.0.0.1:9877"


@app.command("list")
def list_(controller: Controllers = DEFAULT, at: Access = HERE, json: Json = False) -> None:
    """List the members, and who leads.

    Example: `rocketspark controllers list --controller 10.0.0.1:9877`
    """
    found = _run(controller, at, lambda group: group.members())
    if json:
        print_json([{"name": each.name, "address": each.address, "state": each.state} for each in found])
        return
    print_table(("name", "address", "state"), [(each.name, each.address, each.state or "away") for each in found])


@app.command()
def add(
    member: Annotated[str, typer.Argument(help="Its name and address, as in n3-10.0.0.4:9877.", show_default=False)],
    controller: Controllers = DEFAULT,
    at: Access = HERE,
) -> None:
    """Add a member. Start it first, with an empty folder, and all members and itself in --peers.

    One that is to be replaced is removed first: two of three are a majority, two of four are none.

    Example: `rocketspark controllers add n3-10.0.0.4:9877 --controller 10.0.0.1:9877`
    """
    _run(controller, at, lambda group: group.add(member))
    print(f"added {member}", file=sys.stderr)


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="Its name, as in n1.", show_default=False)],
    controller: Controllers = DEFAULT,
    at: Access = HERE,
) -> None:
    """Remove a member; stop it afterwards, and name it no more in --peers and controllerAddr.

    Example: `rocketspark controllers remove n1 --controller 10.0.0.1:9877`
    """
    _run(controller, at, lambda group: group.remove(name))
    print(f"removed {name}", file=sys.stderr)


def _run(controllers: str, at: ClusterAccess, act: Callable[[ControllerGroup], Awaitable[T]]) -> T:
    import asyncio

    from rocketspark.admin.controllers import ControllerGroup
    from rocketspark.cli.serving.serve import loop_factory
    from rocketspark.transport.connections import Connections, parse_addresses
    from rocketspark.transport.request_signer import RequestSigner
    from rocketspark.transport.tls.client_tls import client_tls

    addresses = parse_addresses(controllers)
    options = at.client_options()
    key, secret = options.pop("access_key", ""), options.pop("secret_key", "")
    token = options.pop("security_token", None)
    tls = client_tls(options.pop("use_tls", False), **options)

    async def run() -> T:
        connections = Connections(hooks=RequestSigner(key, secret, token) if key else None, tls=tls)
        try:
            return await act(ControllerGroup(addresses, connections))
        finally:
            await connections.close()

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(run())
