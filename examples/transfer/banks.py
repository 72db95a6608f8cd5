"""The two banks' books, each a SQLite database of its own.

Rule: what tells that a step was done is written in the same database transaction as the step; so each step is done
once, however often it is asked for, and wherever a process is killed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec


class Transfer(msgspec.Struct, frozen=True):
    """What the message says. `id` is the key of the message, and what tells a repetition."""

    id: str
    source: str
    target: str
    cents: int


class Bank:
    """Accounts in a database file."""

    tables = "CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, cents INTEGER NOT NULL CHECK (cents >= 0));"

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, accounts: dict[str, int]) -> None:
        """Make the database, with these accounts."""
        with closing(sqlite3.connect(self._path)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(self.tables)
            with db:
                db.executemany("INSERT INTO accounts VALUES (?, ?)", accounts.items())

    def total(self) -> int:
        """The money in all accounts."""
        with self.transaction() as db:
            return int(db.execute("SELECT total(cents) FROM accounts").fetchone()[0])

    def balance(self, account: str) -> int:
        """The money in one account."""
        with self.transaction() as db:
            return int(db.execute("SELECT cents FROM accounts WHERE name = ?", (account,)).fetchone()[0])

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One transaction: committed at the end, rolled back if the block raises."""
        # A connection each: listeners run in several threads.
        with closing(sqlite3.connect(self._path, timeout=60, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")


class PayingBank(Bank):
    """Where the money comes from. `decisions`: how each message's local transaction ended; no transfer: not at all."""

    tables = (
        Bank.tables
        + """
        CREATE TABLE IF NOT EXISTS decisions (message_id TEXT PRIMARY KEY, transfer_id TEXT UNIQUE);
        CREATE TABLE IF NOT EXISTS refunds (transfer_id TEXT PRIMARY KEY);
        """
    )

    def debit(self, message_id: str, transfer: Transfer) -> bool:
        """Take the money, and note that this message tells of it. False if it is not to be sent.

        That is: the account has too little, the transfer was made by another message, or `decide` was first.
        """
        try:
            with self.transaction() as db:
                db.execute("INSERT INTO decisions VALUES (?, ?)", (message_id, transfer.id))
                db.execute(
                    "UPDATE accounts SET cents = cents - ? WHERE name = ?",
                    (transfer.cents, transfer.source),
                )
        except sqlite3.IntegrityError:
            return False
        return True

    def decide(self, message_id: str) -> bool:
        """Whether this message's transfer was made. If not, it never will be: who asks first settles it."""
        with self.transaction() as db:
            db.execute("INSERT OR IGNORE INTO decisions VALUES (?, NULL)", (message_id,))
            (transfer_id,) = db.execute(
                "SELECT transfer_id FROM decisions WHERE message_id = ?", (message_id,)
            ).fetchone()
        return transfer_id is not None

    def refund(self, transfer: Transfer) -> None:
        """Give the money back, once."""
        with self.transaction() as db:
            if db.execute("INSERT OR IGNORE INTO refunds VALUES (?)", (transfer.id,)).rowcount:
                db.execute("UPDATE accounts SET cents = cents + ? WHERE name = ?", (transfer.cents, transfer.source))

    def made(self) -> set[str]:
        """The ids of the transfers that were debited."""
        with self.transaction() as db:
            return {id for (id,) in db.execute("SELECT transfer_id FROM decisions WHERE transfer_id IS NOT NULL")}

    def refunded(self) -> set[str]:
        """The ids of those that were given back."""
        with self.transaction() as db:
            return {id for (id,) in db.execute("SELECT transfer_id FROM refunds")}


class ReceivingBank(Bank):
    """Where the money goes. `transfers`: what became of each, "credited" or "refused"."""

    tables = Bank.tables + "CREATE TABLE IF NOT EXISTS transfers (id TEXT PRIMARY KEY, state TEXT NOT NULL);"

    def credit(self, transfer: Transfer) -> None:
        """Put the money into the account, once. Raises LookupError if there is no such account."""
        with self.transaction() as db:
            if not db.execute("INSERT OR IGNORE INTO transfers VALUES (?, 'credited')", (transfer.id,)).rowcount:
                return
            done = db.execute("UPDATE accounts SET cents = cents + ? WHERE name = ?", (transfer.cents, transfer.target))
            if not done.rowcount:
                raise LookupError(f"transfer {transfer.id}: no account {transfer.target!r}")

    def refuse(self, transfer: Transfer) -> bool:
        """Settle that this transfer is not credited, now or later; False if it was."""
        with self.transaction() as db:
            db.execute("INSERT OR IGNORE INTO transfers VALUES (?, 'refused')", (transfer.id,))
            (state,) = db.execute("SELECT state FROM transfers WHERE id = ?", (transfer.id,)).fetchone()
        return bool(state == "refused")

    def states(self) -> dict[str, str]:
        """What became of each transfer."""
        with self.transaction() as db:
            return dict(db.execute("SELECT id, state FROM transfers").fetchall())
