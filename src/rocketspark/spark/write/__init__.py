"""Writing topics: rows are checked, joined to batches, and sent to the queue that each belongs to.

Start with batch_sender.
"""
