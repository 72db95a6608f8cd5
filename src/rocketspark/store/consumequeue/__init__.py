"""Consume queues: units that point into the commit log, one file row per queue.

Imports store.files. Start with consume_queue, then consume_queue_store, which holds them all.
"""
