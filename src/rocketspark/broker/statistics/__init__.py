"""Counters and histograms of the broker, plain numbers until a reader asks.

Imports protocol. Start with stats.
"""
