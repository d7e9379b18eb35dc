"""The demonstration behind `fanout demo`: a stream under faults, and a comparison of its output.

A producer fills an embedded Kinesis, or a topic of Apache Kafka, while a plan drawn from a seed
reshards it and breaks its connections, or kills its broker; a Spark query in a process of its own
writes every batch as Parquet; a third process compares that with the records sent. There may be two
queries, with a shuffle between them.
"""
