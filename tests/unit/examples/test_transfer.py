"""The banks of the transfer example: each step is done once, whoever comes first and however often."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples.transfer.banks import PayingBank, ReceivingBank, Transfer

TRANSFER = Transfer("t-1", "ann", "bob", 30)


@pytest.fixture
def paying(tmp_path: Path) -> PayingBank:
    bank = PayingBank(tmp_path / "paying.db")
    bank.open({"ann": 100})
    return bank


@pytest.fixture
def receiving(tmp_path: Path) -> ReceivingBank:
    bank = ReceivingBank(tmp_path / "receiving.db")
    bank.open({"bob": 0})
    return bank


def test_a_transfer_is_debited_once_and_known_by_its_message(paying: PayingBank) -> None:
    assert paying.debit("m-1", TRANSFER)
    assert not paying.debit("m-2", TRANSFER)
    assert (paying.balance("ann"), paying.made()) == (70, {"t-1"})
    assert (paying.decide("m-1"), paying.decide("m-2")) == (True, False)


def test_what_was_decided_before_the_debit_is_never_debited(paying: PayingBank) -> None:
    assert not paying.decide("m-1")
    assert not paying.debit("m-1", TRANSFER)
    assert (paying.balance("ann"), paying.made()) == (100, set())
    assert paying.debit("m-2", TRANSFER)


def test_nobody_pays_more_than_there_is(paying: PayingBank) -> None:
    assert not paying.debit("m-1", Transfer("t-2", "ann", "bob", 101))
    assert (paying.balance("ann"), paying.decide("m-1")) == (100, False)


def test_a_refund_is_given_once(paying: PayingBank) -> None:
    assert paying.debit("m-1", TRANSFER)
    paying.refund(TRANSFER)
    paying.refund(TRANSFER)
    assert (paying.balance("ann"), paying.refunded()) == (100, {"t-1"})


def test_a_transfer_is_credited_once_and_never_after_it_was_refused(receiving: ReceivingBank) -> None:
    receiving.credit(TRANSFER)
    receiving.credit(TRANSFER)
    assert not receiving.refuse(TRANSFER)
    other = Transfer("t-2", "ann", "bob", 5)
    assert receiving.refuse(other)
    receiving.credit(other)
    assert (receiving.total(), receiving.states()) == (30, {"t-1": "credited", "t-2": "refused"})


def test_an_unknown_account_leaves_no_trace(receiving: ReceivingBank) -> None:
    stranger = Transfer("t-3", "ann", "nobody", 5)
    with pytest.raises(LookupError, match="nobody"):
        receiving.credit(stranger)
    assert (receiving.total(), receiving.states()) == (0, {})
    assert receiving.refuse(stranger)
