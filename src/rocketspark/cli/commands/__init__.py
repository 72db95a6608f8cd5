"""The commands, one file each.

Start with the file of the command's name.
"""
