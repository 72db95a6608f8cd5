"""Consumers: the group's rebalance, pullers, listeners and offsets.

Imports client.connection. Start with push_consumer, then rebalance (which queues a member reads) and
allocate_queues (how that is computed).
"""
