"""An operator's work on messages: found, sent, traced, given to consumers; dead letters, delayed and half messages.

Start with operations. Rule: a search has a bound and says how far it came; nothing here commits an offset.
"""
