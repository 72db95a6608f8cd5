"""How a broker takes its role among those of its name, and changes it while it runs.

Start with replication.
"""
