"""The commands of `rocketspark pipeline`, one file each."""
