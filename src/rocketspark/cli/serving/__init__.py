"""How servers are run: in this process or in ones beside it, with which options.

Start with serve.
"""
