"""Who may do what at this broker: users, policies, and the gate that each request passes. Start with gate."""
