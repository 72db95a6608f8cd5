"""The commands of an operator, one file each: they show what an operation of `rocketspark.admin` returns.

Start with the file of the command's name.
"""
