"""The ways of a message on the broker: put, retry, delay, timer, transaction.

Imports broker.storage and the broker's tables. Start with put_message.
"""
