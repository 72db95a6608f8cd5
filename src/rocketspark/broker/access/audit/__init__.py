"""What a broker puts on record: which requests, and what of each.

Imports the parts of access that decide. Start with broker_audit.
"""
