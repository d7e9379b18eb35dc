"""A query of foreach_batch: its stream, its batches, and their handler."""
