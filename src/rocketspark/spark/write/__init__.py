"""Writing topics: checked rows, batches, the queue of each.

Imports spark.cluster_queries and spark.offset_ranges. Start with batch_sender.
"""
