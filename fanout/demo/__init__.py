"""The demonstration behind `fanout demo`: a stream under faults, and the proof that none is lost.

A producer fills an embedded Kinesis, or a topic of Apache Kafka, while a plan drawn from a seed
reshards it and breaks its connections, or kills its broker; a Spark query in a process of its own
writes every batch as Parquet; a third process compares that with what was sent. There may be two
queries, with a shuffle between them.
"""
