"""The demonstration behind `fanout demo`: a stream under faults, and the proof that none is lost.

A producer fills an embedded Kinesis while a plan drawn from a seed reshards it and breaks its
connections; a Spark query in a process of its own writes every batch as Parquet; a third process
compares that with what was sent.
"""
