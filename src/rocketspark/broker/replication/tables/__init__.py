"""What a slave takes from its master beside the log: topics, groups, offsets, delay levels, timers.

Start with slave_synchronize.
"""
