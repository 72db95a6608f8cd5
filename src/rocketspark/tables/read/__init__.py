"""Reads topics: which offsets, cut into partitions, and the records of each as Arrow batches.

Start with batch.
"""
