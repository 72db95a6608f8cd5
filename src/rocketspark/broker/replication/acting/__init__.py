"""The slave that acts for a lost master (enableSlaveActingMaster), and the master that returns and takes over again.

Start with acting_mode.
"""
