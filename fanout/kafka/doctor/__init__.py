"""Checks of a Kafka cluster, its topics and groups, and what a principal may do."""
