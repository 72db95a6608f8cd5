"""`acl create|update|delete|get|list|copy`: what users may do, as `mqadmin createAcl` and its like."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from rocketspark.cli.on_brokers import Broker, Cluster, print_copied
from rocketspark.cli.operate import print_json, run_operation
from rocketspark.cli.options import HERE, ClusterAccess, Json
from rocketspark.cli.tables import by_broker, print_table
from rocketspark.model.text import shown

if TYPE_CHECKING:
    from rocketspark.admin.access import RuleState

app = typer.Typer(help="Create, update, delete, list and copy the rules of what users may do.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The user's name.", show_default=False)]
Resource = Annotated[
    list[str],
    typer.Option(
        "-r",
        "--resource",
        help="Topic:orders, Topic:order*, Group:*, Cluster:DefaultCluster, or * for everything; may be repeated.",
        show_default=False,
    ),
]
_ACTION = typer.Option(
    "-a",
    "--action",
    help="Pub, Sub, Create, Update, Delete, Get, List or All; several with commas between.",
    show_default=False,
)
Actions = Annotated[list[str], _ACTION]
SourceIp = Annotated[
    list[str] | None,
    typer.Option("-i", "--ip", help="Only from this address or network; any: from all. May be repeated."),
]


class Decision(StrEnum):
    """What a rule says."""

    allow = "Allow"
    deny = "Deny"


class Policy(StrEnum):
    """Which rules: Default ones are asked where no Custom one fits."""

    custom = "Custom"
    default = "Default"


Decide = Annotated[
    Decision | None,
    typer.Option("-d", "--decision", case_sensitive=False, help="A new rule allows.", show_default=False),
]
Kind = Annotated[Policy, typer.Option("--policy", case_sensitive=False, help="Default rules yield to Custom ones.")]


@app.command()
def create(
    name: Name,
    resource: Resource,
    action: Actions,
    ip: SourceIp = None,
    decision: Decide = None,
    policy: Kind = Policy.custom,
    broker: Broker = None,
    cluster: Cluster = None,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Allow a user something, or deny it, on every master; his other rules stay, and what is not given of this one.

    Sending needs Pub on the topic; consuming needs Sub on the topic and on the group.

    Example: `rocketspark acl create billing -r Topic:orders -r Group:billing -a Sub`
    """
    brokers = run_operation(
        at,
        lambda operations: operations.create_acl(
            name,
            _listed(resource),
            _listed(action),
            decision=decision and decision.value,
            source_ips=_addresses(ip),
            policy_type=policy.value,
            cluster=cluster,
            brokers=broker or None,
        ),
    )
    _done("created", name, brokers, json=json)


@app.command()
def update(
    name: Name,
    resource: Resource,
    action: Annotated[list[str] | None, _ACTION] = None,
    ip: SourceIp = None,
    decision: Decide = None,
    policy: Kind = Policy.custom,
    broker: Broker = None,
    cluster: Cluster = None,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Change a user's rules for these resources on every master: what is given here; a new one needs an action.

    Example: `rocketspark acl update billing -r Topic:orders -a Pub,Sub --ip 10.0.0.0/8`
    """
    brokers = run_operation(
        at,
        lambda operations: operations.update_acl(
            name,
            _listed(resource),
            None if action is None else _listed(action),
            decision=decision and decision.value,
            source_ips=_addresses(ip),
            policy_type=policy.value,
            cluster=cluster,
            brokers=broker or None,
        ),
    )
    _done("updated", name, brokers, json=json)


@app.command()
def delete(
    name: Name,
    resource: Annotated[
        str | None, typer.Option("-r", "--resource", help="Only the rule for this resource.", show_default=False)
    ] = None,
    policy: Annotated[Policy | None, typer.Option("--policy", case_sensitive=False)] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Don't ask.")] = False,
    broker: Broker = None,
    cluster: Cluster = None,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Delete a user's rule for a resource, or all of his rules, on every master.

    Example: `rocketspark acl delete billing -r Topic:orders`
    """
    if resource is None and not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("all of the user's rules will be gone: name a --resource, or confirm with --yes")
        typer.confirm(f"Delete all rules of {shown(name)}?", abort=True)
    brokers = run_operation(
        at,
        lambda operations: operations.delete_acl(
            name,
            resource=resource,
            policy_type=policy and policy.value,
            cluster=cluster,
            brokers=broker or None,
        ),
    )
    _done("deleted", name, brokers, json=json)


@app.command()
def get(
    name: Name,
    broker: Broker = None,
    cluster: Cluster = None,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Print what one user may do, on each broker.

    Example: `rocketspark acl get billing`
    """
    _print(
        run_operation(at, lambda operations: operations.get_acl(name, cluster=cluster, brokers=broker or None)),
        json=json,
    )


@app.command("list")
def list_(
    part: Annotated[str, typer.Argument(help="Only users whose names hold this.", show_default=False)] = "",
    resource: Annotated[
        str, typer.Option("-r", "--resource", help="Only resources that hold this.", show_default=False)
    ] = "",
    broker: Broker = None,
    cluster: Cluster = None,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Print what all users may do, on all masters.

    Example: `rocketspark acl list --resource orders`
    """
    _print(
        run_operation(
            at, lambda operations: operations.list_acls(part, resource, cluster=cluster, brokers=broker or None)
        ),
        json=json,
    )


@app.command()
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The broker to copy from, a name or host:port.")],
    user: Annotated[
        list[str] | None, typer.Option("-u", "--user", help="Only this user's rules; may be repeated.")
    ] = None,
    to: Annotated[
        list[str] | None, typer.Option("--to", help="The broker to copy to; may be repeated [default: other masters].")
    ] = None,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Copy rules from one broker to others, e.g. to one that is new; copy the users before (`user copy`).

    Example: `rocketspark acl copy broker-a --to broker-b`
    """
    copied = run_operation(at, lambda operations: operations.copy_acls(source, subjects=user or (), brokers=to or None))
    print_copied(copied, json=json)


def _listed(given: Iterable[str]) -> list[str]:
    """Return the parts of options that may hold several, with commas between."""
    return [part.strip() for each in given for part in each.split(",") if part.strip()]


def _addresses(given: list[str] | None) -> list[str] | None:
    """Return the addresses of a rule: None if none are given, none of them for `any`."""
    if given is None:
        return None
    listed = _listed(given)
    return [] if [each.lower() for each in listed] == ["any"] else listed


def _done(what: str, name: str, brokers: Iterable[str], *, json: bool) -> None:
    if json:
        print_json({"user": name, "brokers": list(brokers), "done": what})
    else:
        print(f"{what} rules of {shown(name)} on {', '.join(map(shown, brokers))}")


def _print(found: list[RuleState], *, json: bool) -> None:
    if json:
        print_json(found)
        return
    rows = by_broker(
        (
            rule.broker_name,
            (
                rule.subject,
                rule.policy_type,
                rule.resource,
                ", ".join(rule.actions),
                ", ".join(rule.source_ips) or "any",
                rule.decision,
            ),
        )
        for rule in found
    )
    if rows:
        print_table(("broker", "subject", "policy", "resource", "actions", "source IPs", "decision"), rows)
    else:
        print("there are no rules", file=sys.stderr)
