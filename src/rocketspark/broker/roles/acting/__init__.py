"""A slave that acts for its lost master, and a master that takes back what was done.

Start with acting_mode.
"""
