"""Spark's reads: batch and stream, and what their tasks do.

Imports tables.read. Start with batch_read, then tasks.
"""
