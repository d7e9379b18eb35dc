"""Writing a batch to Kafka, exactly once.

`handler` is what users call; `exactly_once` is the order of things; `rows` and `partitioning` lay a
DataFrame out, `job` runs it, and `tasks` is what happens in Spark's Python workers; `state` is what
the checkpoint remembers.
"""
