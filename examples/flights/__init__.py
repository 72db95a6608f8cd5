"""A year of real flights through the whole system: `make demo`."""
