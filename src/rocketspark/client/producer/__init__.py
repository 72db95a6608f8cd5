"""Producers: a send with all its attempts, what may be in flight, batches that gather, transactions.

Imports client.connection. Start with producer, then send_attempts.
"""
