"""Transactions of the broker: half messages, alone and in batches, their ends, and the checks of those left open.

Imports put_message and what that imports, no handlers. Start with transactions.
"""
