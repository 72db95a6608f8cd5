"""The requests about pops: messages given out for a time.

Start with pop_message; what it asks is in broker/pop.
"""
