"""Benchmarks of fanout, each against the library that users would use instead."""
