"""`context list|show|use|add|delete`: clusters by name, in a file of the user's own."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from rocketspark.cli.completion import contexts
from rocketspark.cli.contexts import Context, Contexts, changing, contexts_path, read_contexts, write_contexts
from rocketspark.cli.operate import Yes, confirm, print_json, print_table
from rocketspark.cli.options import SECRET_KEY_VARIABLE, Json
from rocketspark.errors import ConfigError
from rocketspark.model.text import shown

app = typer.Typer(
    help="Clusters by name: which there are, which one commands use; add, show and delete them.", no_args_is_help=True
)
Name = Annotated[str, typer.Argument(help="The context's name.", show_default=False, autocompletion=contexts)]
_KEYS = "Keys and TLS"


def _option(name: str, text: str) -> Any:
    return typer.Option(name, help=text, show_default=False, rich_help_panel=_KEYS)


@app.command("list")
def list_(json: Json = False) -> None:
    """List the contexts; * marks the one that commands use where nothing else names a cluster.

    Example: `rocketspark context list`
    """
    known = read_contexts()
    rows = [_fields(known, name) for name in sorted(known.contexts)]
    if json:
        print_json(rows)
    elif rows:
        texts = (
            ("*" if r["current"] else "", r["name"], r["namesrv"], r["access_key"], "yes" if r["tls"] else "no")
            for r in rows
        )
        print_table(("", "context", "NameServers", "user", "TLS"), texts)
    else:
        print("there are no contexts: `rocketspark context add` makes one", file=sys.stderr)


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(help="The context's name [default: the current one].", autocompletion=contexts)
    ] = "",
    json: Json = False,
) -> None:
    """Print one context. Secret keys are not shown.

    Example: `rocketspark context show prod --json`
    """
    known = read_contexts()
    if not name and not known.current:
        raise typer.BadParameter("no context is current: name one")
    found = _fields(known, name or known.current)
    if json:
        print_json(found)
    else:
        for key, value in found.items():
            if value not in ("", None):
                print(f"{key} = {shown(str(value).lower() if isinstance(value, bool) else value)}")


def _fields(known: Contexts, name: str) -> dict[str, Any]:
    context = known.get(name)
    tls = (context.tls_ca, context.tls_cert, context.tls_key, context.tls_verify, context.tls_server_name)
    return {
        "name": name,
        "current": name == known.current,
        "namesrv": context.namesrv,
        "access_key": context.access_key,
        "secret": context.secret,
        "tls": any(tls) if context.tls is None else context.tls,
        "tls_ca": context.tls_ca,
        "tls_cert": context.tls_cert,
        "tls_key": context.tls_key,
        "tls_verify": context.tls_verify,
        "tls_server_name": context.tls_server_name,
    }


@app.command()
def use(name: Name, json: Json = False) -> None:
    """Have commands use a context where neither --namesrv nor the environment names a cluster.

    Example: `rocketspark context use prod`
    """
    read_contexts().get(name)
    with changing() as known:
        known.get(name)
        write_contexts(msgspec.structs.replace(known, current=name))
    _done("used", name, json)


class Keys(NamedTuple):
    """The options of a context's user and of his secret key."""

    access_key: Annotated[str, _option("--access-key", "The user's name.")] = ""
    secret_key_file: Annotated[
        Path | None, _option("--secret-key-file", "The file whose first line is his secret key.")
    ] = None
    secret_key_command: Annotated[
        str, _option("--secret-key-command", "A command that prints it, as of a keyring: its words, no shell's.")
    ] = ""
    store_secret: Annotated[
        bool,
        _option("--store-secret", f"Keep the secret key in the file of contexts: from {SECRET_KEY_VARIABLE} or asked."),
    ] = False

    def fields(self) -> dict[str, Any]:
        """Return them as Context takes them; asks for the secret key if it is to be stored. Raises BadParameter."""
        try:
            words = tuple(shlex.split(self.secret_key_command))
        except ValueError as e:
            told = f"{shown(self.secret_key_command)!r}: {e}"
            raise typer.BadParameter(told, param_hint="--secret-key-command") from None
        return {
            "access_key": self.access_key,
            "secret_key_file": _absolute(self.secret_key_file),
            "secret_key_command": words,
            "secret_key": _asked() if self.store_secret else "",
        }


class Tls(NamedTuple):
    """The options of a context's TLS."""

    tls: Annotated[bool | None, _option("--tls/--no-tls", "Encrypt all connections.")] = None
    tls_ca: Annotated[Path | None, _option("--tls-ca", "PEM file of the authorities to trust; means --tls.")] = None
    tls_cert: Annotated[Path | None, _option("--tls-cert", "PEM file of the client's own certificate chain.")] = None
    tls_key: Annotated[Path | None, _option("--tls-key", "PEM file of its private key.")] = None
    tls_key_password_file: Annotated[
        Path | None, _option("--tls-key-password-file", "The file whose first line is the private key's password.")
    ] = None
    tls_verify: Annotated[str, _option("--tls-verify", "full, ca or none.")] = ""
    tls_server_name: Annotated[str, _option("--tls-server-name", "The name in the certificates.")] = ""

    def fields(self) -> dict[str, Any]:
        """Return them as Context takes them."""
        return {name: _absolute(value) if name in _FILES else value for name, value in self._asdict().items()}


_FILES = frozenset(("tls_ca", "tls_cert", "tls_key", "tls_key_password_file"))
KEYS, TLS = Keys(), Tls()


@app.command()
def add(
    name: Name,
    namesrv: Annotated[str, typer.Option("-n", "--namesrv", help="NameServers, host:port;host:port.")],
    keys: Keys = KEYS,
    tls: Tls = TLS,
    replace: Annotated[bool, typer.Option("--replace", help="Also if there is one of this name.")] = False,
    current: Annotated[bool, typer.Option("--use", help="Have commands use it from now on.")] = False,
    json: Json = False,
) -> None:
    """Add a context. Its keys go to its own NameServers and brokers alone.

    Example: `rocketspark context add test -n 10.0.0.1:9876 --use`

    Example: `rocketspark context add prod -n a:9876 --access-key ann --secret-key-command 'secret-tool lookup mq prod'`
    """
    context = Context(namesrv=namesrv, **keys.fields(), **tls.fields())
    context.check(name)
    if tls.tls_verify not in ("", "full", "ca", "none"):
        raise typer.BadParameter(f"{shown(tls.tls_verify)!r} is none of full, ca, none", param_hint="--tls-verify")
    with changing() as known:
        if name in known.contexts and not replace:
            raise ConfigError(f"there is a context {name} already: --replace writes over it")
        now = name if current else known.current
        write_contexts(Contexts(current=now, contexts={**known.contexts, name: context}))
    if keys.store_secret:
        print(f"the secret key is in {shown(contexts_path())}, which only you may read", file=sys.stderr)
    _done("added", name, json)


def _absolute(path: Path | None) -> str:
    return "" if path is None else str(path.absolute())


def _asked() -> str:
    if found := os.environ.get(SECRET_KEY_VARIABLE):
        return found
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"no secret key: set {SECRET_KEY_VARIABLE}, or be asked for it on a terminal")
    answer: str = typer.prompt("Secret key", hide_input=True)
    return answer


@app.command()
def delete(name: Name, yes: Yes = False, json: Json = False) -> None:
    """Delete a context; the cluster is not touched.

    Example: `rocketspark context delete test --yes`
    """
    read_contexts().get(name)
    confirm(yes, f"Delete context {shown(name)}?", "what it says of the cluster will be gone: confirm with --yes")
    with changing() as known:
        known.get(name)
        left = {each: context for each, context in known.contexts.items() if each != name}
        write_contexts(Contexts(current="" if known.current == name else known.current, contexts=left))
    _done("deleted", name, json)


def _done(done: str, name: str, json: bool) -> None:
    if json:
        print_json({"name": name, "done": done})
    else:
        print(f"{done} context {shown(name)}" if done != "used" else f"commands use context {shown(name)} now")
