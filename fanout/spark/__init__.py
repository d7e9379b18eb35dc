"""Exact micro-batches of a fan-out, handed to Spark."""
