"""The broker's files other than messages: flushing, JSON tables, cleaning.

Imports the store. Start with flush.
"""
