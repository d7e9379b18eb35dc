"""Kafka as a source of the fan-out."""
