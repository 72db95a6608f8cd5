"""The three processes: one pays, one credits, one takes care of the dead letters.

Rule: each may be killed at any time and started again; none ends by itself.

    python -m examples.transfer.steps pay|credit|refund NAMESRV FOLDER TRANSFERS
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from examples.transfer.banks import PayingBank, ReceivingBank, Transfer
from rocketspark import Message, PushConsumer, ReceivedMessage, Transaction, TransactionProducer, TransactionState
from rocketspark.errors import RocketSparkError

TOPIC = "transfers"
GROUP = "receiving-bank"


def transfers(count: int) -> list[Transfer]:
    """What is to be paid. Every tenth goes to an account that is not there; the last is more than the payer has."""
    made = [
        Transfer(f"transfer-{n}", f"payer-{n % 3}", "nobody" if n % 10 == 9 else f"payee-{n % 5}", 100 + n)
        for n in range(count)
    ]
    return [*made, Transfer("too-much", "payer-0", "payee-0", 10**12)]


class Paying:
    """The local transaction of a message: the debit."""

    def __init__(self, bank: PayingBank) -> None:
        self._bank = bank

    def execute(self, message: Message, transaction: Transaction) -> TransactionState:
        return self._state(self._bank.debit(transaction.id, transaction.argument))

    def check(self, message: ReceivedMessage) -> TransactionState:
        return self._state(self._bank.decide(message.message_id))

    def _state(self, made: bool) -> TransactionState:
        return TransactionState.COMMIT if made else TransactionState.ROLLBACK


def pay(namesrv: str, folder: Path, count: int) -> None:
    """Debit each transfer and tell of it; then answer the broker's checks."""
    bank = PayingBank(folder / "paying.db")
    with TransactionProducer(namesrv, "paying-bank", listener=Paying(bank)) as producer:
        made = bank.made()
        for transfer in transfers(count):
            if transfer.id not in made:
                transfer_once(producer, bank, transfer)
        forever()


def transfer_once(producer: TransactionProducer, bank: PayingBank, transfer: Transfer) -> None:
    """Returns when the transfer is made, or the account has too little for it."""
    body = msgspec.json.encode(transfer)
    while True:
        try:
            result = producer.send_in_transaction(TOPIC, body, keys=[transfer.id], argument=transfer)
        except RocketSparkError:
            time.sleep(0.2)  # Nothing was begun: the same again, until a broker is there.
            continue
        if result.state is TransactionState.COMMIT or bank.balance(transfer.source) < transfer.cents:
            return


def credit(namesrv: str, folder: Path) -> None:
    """Credit each transfer that is told of; what cannot be credited fails, until it is a dead letter."""
    bank = ReceivingBank(folder / "receiving.db")
    consume(namesrv, GROUP, TOPIC, lambda message: bank.credit(transfer_of(message)))


def refund(namesrv: str, folder: Path) -> None:
    """Give back what is a dead letter, once the receiving bank has settled that it won't be credited."""
    paying, receiving = PayingBank(folder / "paying.db"), ReceivingBank(folder / "receiving.db")

    def give_back(message: ReceivedMessage) -> None:
        transfer = transfer_of(message)
        if receiving.refuse(transfer):
            paying.refund(transfer)

    consume(namesrv, "refunds", f"%DLQ%{GROUP}", give_back)


def transfer_of(message: ReceivedMessage) -> Transfer:
    """What a message says."""
    return msgspec.json.decode(message.body, type=Transfer)


def consume(namesrv: str, group: str, topic: str, listener: Callable[[ReceivedMessage], None]) -> None:
    """Until killed. An exception of the listener brings the message again, twice at most."""
    while True:
        # Short intervals: what a killed process had is shared out again soon.
        consumer = PushConsumer(
            namesrv,
            group,
            consume_from="first",
            threads=4,
            max_reconsume_times=1,
            rebalance_interval_ms=500,
            commit_interval_ms=200,
        )
        consumer.subscribe(topic)
        consumer.listen(listener)
        try:
            with consumer:
                forever()
        except RocketSparkError:
            time.sleep(0.2)  # No server is there yet.


def forever() -> None:
    """Work goes on in other threads."""
    threading.Event().wait()


def main() -> None:
    step, namesrv, folder, count = sys.argv[1:]
    if step == "pay":
        pay(namesrv, Path(folder), int(count))
    else:
        {"credit": credit, "refund": refund}[step](namesrv, Path(folder))


if __name__ == "__main__":
    main()
