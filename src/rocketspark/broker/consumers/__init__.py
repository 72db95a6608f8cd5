"""The broker's state about consumers: connected clients, settings of groups, offsets, held pulls, queue locks.

Imports broker.storage. Start with consumer_offsets and long_polling.
"""
