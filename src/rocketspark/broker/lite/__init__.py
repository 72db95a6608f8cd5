"""Lite topics: light queues below a parent topic, to which clients subscribe one by one.

Start with subscriptions; events tells clients which of their lite topics have something to pop.
"""
