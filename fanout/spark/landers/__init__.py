"""Landers as jobs of Spark, seen from the driver."""
