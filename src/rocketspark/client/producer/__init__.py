"""Producers: a send with all its attempts, what may be in flight, batches that gather, transactions.

Imports client.connection. Start with in_flight_send and its table, send_states.
"""
