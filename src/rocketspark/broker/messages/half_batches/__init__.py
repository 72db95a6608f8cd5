"""Half messages that came in batches, and their ends by ranges.

Start with batched_halves.
"""
