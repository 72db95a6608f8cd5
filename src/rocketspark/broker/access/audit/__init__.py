"""What access control refused and what operators changed, on record.

Imports the parts of access that decide. Start with audit_log.
"""
