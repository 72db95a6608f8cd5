"""`backup` and `restore`: a store's files copied while its broker runs, and back.

The store is imported by these two alone: with numpy it takes a third of the time in which a command starts.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocketspark.cli.operate import print_json
from rocketspark.cli.options import Json

if TYPE_CHECKING:
    from rocketspark.store.backup import Copied, Tell

_PROGRESS_S = 1.0
_MIB = 1 << 20


def backup(
    store: Annotated[Path, typer.Option(help="The store's folder; its broker may run.", show_default=False)],
    to: Annotated[Path, typer.Option(help="The backup's folder: a new one, or an older backup of this store.")],
    commit_log: Annotated[
        Path | None, typer.Option(help="The log's folder, if storePathCommitLog puts it elsewhere.")
    ] = None,
    json: Json = False,
) -> None:
    """Copy a store: messages, queues, offsets, timers, tables. Its broker may run and take messages meanwhile.

    The backup holds at least all that was stored when it began. Into a folder that holds an older backup only what is
    new of the log is copied; one of another store is refused, as is a folder into which another backup is being made.

    Example: `rocketspark backup --store ./store --to /backups/broker-a`
    """
    from rocketspark.store.backup import backup as copy_out

    done = copy_out(store, to, commit_log=str(commit_log or ""), tell=_progress())
    _report("backed up", store, to, done, as_json=json)


def restore(
    source: Annotated[Path, typer.Option("--from", help="The backup's folder.", show_default=False)],
    store: Annotated[Path, typer.Option(help="The new store's folder: empty, or not there yet.", show_default=False)],
    new_identity: Annotated[
        bool,
        typer.Option(help="Start as a new replica, with a new number: for a copy beside the original."),
    ] = False,
    json: Json = False,
) -> None:
    """Make a store of a backup; start a broker on it then.

    Example: `rocketspark restore --from /backups/broker-a --store ./store`
    """
    from rocketspark.store.backup import restore as copy_back

    done = copy_back(source, store, with_identity=not new_identity, tell=_progress())
    if (store / "brokerIdentity").exists():
        print(
            "the store keeps the number that its controller gave it: beside the original, or under a new controller, it"
            " waits for a master that never comes; restore with --new-identity then",
            file=sys.stderr,
        )
    _report("restored", source, store, done, as_json=json)


def _progress() -> Tell:
    """Return what prints how far it is, about once a second, if somebody watches."""
    told_s = time.monotonic()

    def tell(files: int, copied_bytes: int) -> None:
        nonlocal told_s
        if time.monotonic() - told_s >= _PROGRESS_S:
            told_s = time.monotonic()
            print(f"{files} files, {copied_bytes // _MIB} MiB", file=sys.stderr)

    return tell


def _report(what: str, source: Path, target: Path, done: Copied, *, as_json: bool) -> None:
    if as_json:
        print_json({"from": str(source), "to": str(target), **done._asdict()})
        return
    same = f", {done.same_files} of the log were there" if done.same_files else ""
    print(f"{what} {source} to {target}: {done.files} files, {done.copied_bytes / _MIB:.1f} MiB{same}")
