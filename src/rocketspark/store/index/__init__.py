"""The key index: hash chains from keys to physical offsets.

Imports store.files. Start with index_service.
"""
