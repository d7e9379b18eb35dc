"""Processes that share topics of Kafka as members of one consumer group (KIP-848)."""
