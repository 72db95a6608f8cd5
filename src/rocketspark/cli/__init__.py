"""The `rocketspark` command.

Imports everything below it, Spark only once a command needs it. Start with main, then commands.
"""
