"""A transfer of money between two banks, over messages: nothing is lost or made, whichever process is killed.

`python -m examples.transfer.run` shows it.
"""
