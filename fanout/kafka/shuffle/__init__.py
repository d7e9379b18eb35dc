"""Records distributed by key over the partitions of a Kafka topic, with their watermarks.

The topic holds frames. docs/shuffle.md describes them, and the duties of writers and readers.
"""
