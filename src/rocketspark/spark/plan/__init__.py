"""The driver's planning: topics, offsets, times, and the cluster it asks.

Imports nothing else of spark but its options. Start with cluster_queries.
"""
