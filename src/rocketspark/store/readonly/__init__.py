"""A store directory read without its broker, or beside it. Nothing is written or locked.

Imports store.consumequeue for the units' layout. Start with read_only_store.
"""
