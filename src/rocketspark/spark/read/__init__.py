"""Reading topics: batch, stream and store directories; how executors pull.

Imports spark.plan. Start with batch_read, then partitions.
"""
