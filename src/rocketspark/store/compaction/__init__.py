"""Compaction: of topics with cleanup.policy=COMPACTION the newest message of each key is kept, however old it is.

Imports store.files. Start with compaction_log. Layout: CompactionStore of RocketMQ 5.x.
"""
