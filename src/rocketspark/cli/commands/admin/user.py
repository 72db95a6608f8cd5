"""`user create|update|delete|get|list|copy`: who may connect to brokers, as `mqadmin createUser` and its like."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
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
from rocketspark.cli.passwords import VARIABLE, new_password
from rocketspark.model.text import shown

if TYPE_CHECKING:
    from rocketspark.admin.access import UserState

app = typer.Typer(
    help="Create, update, delete, list and copy users of brokers with access control.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(help="The user's name, which is the access key of clients.", show_default=False)]
Password = Annotated[
    str | None, typer.Option(help="The password; process lists show it: prefer the other ways.", show_default=False)
]
PasswordFile = Annotated[
    Path | None, typer.Option(help="A file whose first line is the password; - for stdin.", show_default=False)
]
Generate = Annotated[bool, typer.Option("--generate", help="Make a random password, and print it once.")]


class UserType(StrEnum):
    """The types of users: a Super user may do everything, a Normal user what the rules allow."""

    super = "Super"
    normal = "Normal"


class Status(StrEnum):
    """Whether a user may connect: enable or disable."""

    enable = "enable"
    disable = "disable"


@app.command()
def create(
    name: Name,
    user_type: Annotated[UserType, typer.Option("-t", "--type", case_sensitive=False)] = UserType.normal,
    password_file: PasswordFile = None,
    generate: Generate = False,
    password: Password = None,
    on: OnBrokers = EVERYWHERE,
) -> None:
    """Create a user on every master; he may do nothing until a rule allows it (`acl create`).

    The password comes from --password-file, ROCKETMQ_USER_PASSWORD, --generate, or a prompt.

    Example: `rocketspark user create billing --generate`
    """
    secret = new_password(password, password_file, generate=generate)
    brokers = run_operation(
        on.at, lambda operations: operations.create_user(name, secret, user_type=user_type, **on.named())
    )
    _done("created", name, brokers, secret if generate else None, json=on.json)


@app.command()
def update(
    name: Name,
    user_type: Annotated[UserType | None, typer.Option("-t", "--type", case_sensitive=False)] = None,
    status: Annotated[Status | None, typer.Option("-s", "--status", case_sensitive=False)] = None,
    new: Annotated[
        bool, typer.Option("--new-password", help=f"Change the password, from {VARIABLE} or a prompt.")
    ] = False,
    password_file: PasswordFile = None,
    generate: Generate = False,
    password: Password = None,
    on: OnBrokers = EVERYWHERE,
) -> None:
    """Change a user's password, type or status on every master.

    Example: `rocketspark user update billing --status disable`

    Example: `rocketspark user update billing --generate`
    """
    wanted = new or generate or password is not None or password_file is not None
    if not wanted and user_type is None and status is None:
        raise typer.BadParameter("nothing to change: give --type, --status or --new-password")
    secret = new_password(password, password_file, generate=generate) if wanted else None
    brokers = run_operation(
        on.at,
        lambda operations: operations.update_user(
            name, password=secret, user_type=user_type, status=status, **on.named()
        ),
    )
    _done("updated", name, brokers, secret if generate else None, json=on.json)


@app.command()
def delete(
    name: Name,
    yes: Yes = False,
    on: OnBrokers = EVERYWHERE,
) -> None:
    """Delete a user, with his rules, on every master.

    Example: `rocketspark user delete billing --yes`
    """
    confirm(yes, f"Delete user {shown(name)} and his rules?", "his clients will be refused: confirm with --yes")
    brokers = run_operation(on.at, lambda operations: operations.delete_user(name, **on.named()))
    _done("deleted", name, brokers, None, json=on.json)


@app.command()
def get(name: Name, on: OnBrokers = EVERYWHERE) -> None:
    """Print one user: type and status, on each broker. Passwords are not shown.

    Example: `rocketspark user get billing`
    """
    found = run_operation(on.at, lambda operations: operations.get_user(name, **on.named()))
    _print(found, json=on.json)


@app.command("list")
def list_(
    part: Annotated[str, typer.Argument(help="Only names that hold this.", show_default=False)] = "",
    on: OnBrokers = EVERYWHERE,
) -> None:
    """Print the users of all masters: type and status. Passwords are not shown.

    Example: `rocketspark user list --json`
    """
    found = run_operation(on.at, lambda operations: operations.list_users(part, **on.named()))
    _print(found, json=on.json)


@app.command()
def copy(
    source: CopyFrom,
    user: Annotated[list[str] | None, typer.Option("-u", "--user", help="Only this user; may be repeated.")] = None,
    to: CopyTo = None,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Copy users, with their passwords, from one broker to others, e.g. to one that is new.

    Example: `rocketspark user copy broker-a --to broker-b`
    """
    copied = run_operation(
        at, lambda operations: operations.copy_users(source, usernames=user or (), brokers=to or None)
    )
    print_copied(copied, json=json)


def _print(found: list[UserState], *, json: bool) -> None:
    columns = ("user", "type", "status")
    print_found(found, columns, lambda u: (u.username, u.user_type, u.status), "there are no users", json=json)


def _done(done: str, name: str, brokers: Iterable[str], secret: str | None, *, json: bool) -> None:
    """Print what was done, and the password that was made for it, if one was."""
    print_done(done, name, shown(name), brokers, json=json, **({"password": secret} if secret else {}))
    if secret and not json:
        print(f"password: {secret}")
        print("keep it: it is not shown again", file=sys.stderr)
