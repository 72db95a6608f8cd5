"""What a server takes at most: connections, unfinished frames, work that waits.

Imports nothing of the transport. Start with connection_bounds.
"""
