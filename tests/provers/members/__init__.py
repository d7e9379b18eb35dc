"""Processes that share a stream while they and its services fail."""
