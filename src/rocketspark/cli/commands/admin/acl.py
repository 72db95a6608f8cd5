"""`acl create|update|delete|get|list|copy`: what users may do, as `mqadmin createAcl` and its like."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from rocketspark.cli.operate import (
    EVERYWHERE,
    CopyFrom,
    CopyTo,
    OnBrokers,
    Yes,
    confirm,
    print_copied,
    print_done,
    print_found,
    run_operation,
)
from rocketspark.cli.options import HERE, ClusterAccess, Json
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
    """What a rule does: it allows something, or denies it."""

    allow = "Allow"
    deny = "Deny"


class Policy(StrEnum):
    """The kinds of rules: those of kind Default are asked where no rule of kind Custom fits."""

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
    on: OnBrokers = EVERYWHERE,
) -> None:
    """Allow a user something, or deny it, on every master; his other rules stay, and what is not given of this one.

    Sending needs Pub on the topic; consuming needs Sub on the topic and on the group.

    Example: `rocketspark acl create billing -r Topic:orders -r Group:billing -a Sub`
    """
    brokers = run_operation(
        on.at,
        lambda operations: operations.create_acl(
            name,
            _listed(resource),
            _listed(action),
            decision=decision,
            source_ips=_addresses(ip),
            policy_type=policy,
            **on.named(),
        ),
    )
    print_done("created", name, f"rules of {shown(name)}", brokers, json=on.json)


@app.command()
def update(
    name: Name,
    resource: Resource,
    action: Annotated[list[str] | None, _ACTION] = None,
    ip: SourceIp = None,
    decision: Decide = None,
    policy: Kind = Policy.custom,
    on: OnBrokers = EVERYWHERE,
) -> None:
    """Change a user's rules for these resources on every master: what is given here; a new one needs an action.

    Example: `rocketspark acl update billing -r Topic:orders -a Pub,Sub --ip 10.0.0.0/8`
    """
    brokers = run_operation(
        on.at,
        lambda operations: operations.update_acl(
            name,
            _listed(resource),
            None if action is None else _listed(action),
            decision=decision,
            source_ips=_addresses(ip),
            policy_type=policy,
            **on.named(),
        ),
    )
    print_done("updated", name, f"rules of {shown(name)}", brokers, json=on.json)


@app.command()
def delete(
    name: Name,
    resource: Annotated[
        str | None, typer.Option("-r", "--resource", help="Only the rule for this resource.", show_default=False)
    ] = None,
    policy: Annotated[Policy | None, typer.Option("--policy", case_sensitive=False)] = None,
    yes: Yes = False,
    on: OnBrokers = EVERYWHERE,
) -> None:
    """Delete a user's rule for a resource, or all of his rules, on every master.

    Example: `rocketspark acl delete billing -r Topic:orders`
    """
    confirm(
        yes or resource is not None,
        f"Delete all rules of {shown(name)}?",
        "all of the user's rules will be gone: name a --resource, or confirm with --yes",
    )
    brokers = run_operation(
        on.at,
        lambda operations: operations.delete_acl(name, resource=resource, policy_type=policy, **on.named()),
    )
    print_done("deleted", name, f"rules of {shown(name)}", brokers, json=on.json)


@app.command()
def get(name: Name, on: OnBrokers = EVERYWHERE) -> None:
    """Print what one user may do, on each broker.

    Example: `rocketspark acl get billing`
    """
    found = run_operation(on.at, lambda operations: operations.get_acl(name, **on.named()))
    _print(found, json=on.json)


@app.command("list")
def list_(
    part: Annotated[str, typer.Argument(help="Only users whose names hold this.", show_default=False)] = "",
    resource: Annotated[
        str, typer.Option("-r", "--resource", help="Only resources that hold this.", show_default=False)
    ] = "",
    on: OnBrokers = EVERYWHERE,
) -> None:
    """Print what all users may do, on all masters.

    Example: `rocketspark acl list --resource orders`
    """
    found = run_operation(on.at, lambda operations: operations.list_acls(part, resource, **on.named()))
    _print(found, json=on.json)


@app.command()
def copy(
    source: CopyFrom,
    user: Annotated[
        list[str] | None, typer.Option("-u", "--user", help="Only this user's rules; may be repeated.")
    ] = None,
    to: CopyTo = None,
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


def _print(found: list[RuleState], *, json: bool) -> None:
    columns = ("subject", "policy", "resource", "actions", "source IPs", "decision")
    print_found(found, columns, _row, "there are no rules", json=json)


def _row(rule: RuleState) -> tuple[str, ...]:
    actions, source_ips = ", ".join(rule.actions), ", ".join(rule.source_ips) or "any"
    return rule.subject, rule.policy_type, rule.resource, actions, source_ips, rule.decision
