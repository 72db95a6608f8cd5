"""Consumers: the group's rebalance, pullers, listeners and offsets.

Imports client.connection. Start with push_consumer, then rebalance.
"""
