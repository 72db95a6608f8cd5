"""Consumers that pop: the broker hands messages out, and each is acknowledged by its receipt handle.

Start with simple_consumer.
"""
