"""Writing topics: checked rows, batches, the queue of each.

Imports spark.plan. Start with batch_sender.
"""
