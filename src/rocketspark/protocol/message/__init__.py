"""Formats of messages, byte for byte: the record, its properties, batches, ids, compression.

Imports nothing else of protocol. Start with record.
"""
