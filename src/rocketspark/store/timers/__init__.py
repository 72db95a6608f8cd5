"""The files of timer messages: the wheel of slots by delivery time, the log of units, the checkpoint.

Imports store.files. Start with timer_files.
"""
