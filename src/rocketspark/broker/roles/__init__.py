"""How a broker takes its role among those of its name, and changes it while it runs.

Internal: import from the modules.
"""
