"""Timer messages of the broker: checked, put on the wheel, delivered when due, counted.

Imports put_message and what that imports, no handlers. Start with timer_messages.
"""
