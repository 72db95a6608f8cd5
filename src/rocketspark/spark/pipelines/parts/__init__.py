"""What the pipelines are made of: a file begins with the name of the pipeline that it is a part of; `session`,
`progress`, `streaming` and `report` are parts of all. Executors import these files, so none imports a pipeline.

Start with session.
"""
