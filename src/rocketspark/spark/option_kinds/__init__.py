"""Options by their kinds: each read from its text, and refused by its name.

Start with given_options.
"""
