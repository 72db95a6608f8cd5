"""Bodies in JSON, Avro and Protobuf as columns. Rule: types are Spark's, without Spark.

Start with bodies.
"""
