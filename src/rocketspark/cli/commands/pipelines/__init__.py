"""The commands of `rocketspark pipeline`, one file each.

Start with shared, then the file of the pipeline's name.
"""
