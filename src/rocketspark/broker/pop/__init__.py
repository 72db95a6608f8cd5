"""POP: what consumers were given and have not acknowledged, and its second delivery.

Start with in_flight, which handlers ask; what it notes lies in the revive topic, where revive reads it.
"""
