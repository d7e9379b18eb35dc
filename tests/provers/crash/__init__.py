"""The crash campaign: a Spark job into Kafka is killed at every step, by seed, and compared."""
