"""The commit log: its files, and the appends to it: one message, a run of them or a batch.

Imports store.files, store.consumequeue and store.index. Start with commit_log, then append_message.
"""
