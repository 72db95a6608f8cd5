"""Records to Arrow columns, without a Python object per message.

Imports protocol. Start with records.
"""
