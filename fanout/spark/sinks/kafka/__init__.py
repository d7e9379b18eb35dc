"""Sinks that write each batch of a query to Kafka, exactly once.

A batch goes through these modules, in this order: `kafka_sink` or `shuffle_sink` (the handlers),
`transaction`, `job`, `partitioned_rows`, and in Spark's Python workers `worker_task`. The
checkpoint keeps `stored_tokens`.
"""
