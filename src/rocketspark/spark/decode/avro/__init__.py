"""Avro: schemas as Spark's types, and bodies to values. Start with bodies."""
