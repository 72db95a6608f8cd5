"""Writing topics: rows are checked, joined to batches, and sent to the queue that each belongs to.

Imports spark.cluster_queries and spark.offset_ranges. Start with batch_sender.
"""
