"""What a push consumer does with its listener: calls it, and gives back to brokers what it did not take.

Start with listeners.
"""
