"""Benchmarks of fanout, each against the peer that people would use instead."""
