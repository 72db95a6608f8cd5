"""The proxy's port: what comes in by TLS, plain or through a load balancer, gRPC or remoting, and who sent it.

Start with port.
"""
