"""Reading topics: batch, stream and store directories; how executors pull.

Imports spark.cluster_queries and spark.offset_ranges. Start with batch_read, then partitions.
"""
