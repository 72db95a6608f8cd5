"""Pages of what applications keep beside the cluster: Spark streams, outboxes, tables of ids. Each is in the navigation
where the console was started with its option. Start with streams.
"""
