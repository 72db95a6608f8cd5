"""The files of a store: mapped files in a row, the system calls on them, the lock of the directory, the checkpoint.

Imports nothing else of the store. Start with mapped_file_queue.
"""
