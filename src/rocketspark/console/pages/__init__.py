"""The console's pages, a module for each. Imports call. Start with overview; how one is made: rocketspark.console."""
