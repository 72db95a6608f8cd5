"""The second tier: copies of messages by topic and queue in a folder or an object store, in RocketMQ's layout (5.5.0).

Imports store.files, store.get_message. Start with tier.
"""
